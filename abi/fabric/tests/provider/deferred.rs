//! Triggered operations and the deferred work queue.

use crate::harness::*;
use crate::messages;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub(crate) fn add(counter: *mut FidCntr, value: u64) {
    // SAFETY: the handle is live.
    assert_eq!(unsafe { ((*(*counter).ops).add)(counter, value) }, 0);
}

fn set(counter: *mut FidCntr, value: u64) {
    // SAFETY: the handle is live.
    assert_eq!(unsafe { ((*(*counter).ops).set)(counter, value) }, 0);
}

fn errors(counter: *mut FidCntr) -> u64 {
    // SAFETY: the handle is live.
    unsafe { ((*(*counter).ops).readerr)(counter) }
}

fn threshold(cntr: *mut FidCntr, threshold: usize) -> TriggeredContext {
    TriggeredContext {
        event_type: FI_TRIGGER_THRESHOLD,
        trigger: Trigger {
            threshold: Threshold { cntr, threshold },
        },
    }
}

fn tagged(iov: &[libc::iovec], peer: u64, tag: u64, context: *mut c_void) -> MsgTagged {
    MsgTagged {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: iov.len(),
        addr: peer,
        tag,
        ignore: 0,
        context,
        data: 0,
    }
}

fn trecv(side: &Side, into: &mut [u8], tag: u64, ignore: u64) {
    messages::trecv(side, FI_ADDR_UNSPEC, into, tag, ignore, 0);
}

/// A tagged send with `FI_TRIGGER`; its lists are freed when this returns.
fn tsend_at(side: &Side, peer: u64, bytes: &[u8], tag: u64, at: &mut TriggeredContext) -> isize {
    let iov = [libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }];
    let msg = tagged(&iov, peer, tag, (&raw mut *at).cast());
    // SAFETY: the handle is live; context and bytes stay until the completion.
    unsafe { ((*(*side.ep).tagged).sendmsg)(side.ep, &msg, FI_TRIGGER | FI_COMPLETION) }
}

fn tsend(side: &Side, peer: u64, bytes: &[u8], tag: u64) {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        ((*(*side.ep).tagged).send)(side.ep, at, len, null_mut(), peer, tag, null_mut())
    });
    assert_eq!(code, 0);
}

#[test]
fn triggered_sends_follow_the_order_of_their_thresholds() {
    let (a, b, peer) = pair(&Wish::default());
    let counter = counter(a.domain);
    let mut contexts = [3, 1, 2, 1].map(|at| threshold(counter, at));
    for (n, context) in contexts.iter_mut().enumerate() {
        assert_eq!(tsend_at(&a, peer, &[7], n as u64, context), 0);
    }
    let mut into = [0u8; 1];
    // A plain send starts first, although it was posted last.
    tsend(&a, peer, &[1], 99);
    assert!(a.completion(&[&b]).is_ok());
    trecv(&b, &mut into, 0, u64::MAX);
    assert_eq!(b.completion(&[&a]).unwrap().tag, 99);
    assert_eq!(close(counter.cast()), -libc::EBUSY, "work waits for it");
    set(counter, 5);
    for expected in [1, 3, 2, 0] {
        trecv(&b, &mut into, 0, u64::MAX);
        assert_eq!(b.completion(&[&a]).unwrap().tag, expected);
        let entry = a.completion(&[&b]).unwrap();
        assert_eq!(
            entry.op_context,
            (&raw mut contexts[expected as usize]).cast()
        );
    }
    // A send whose threshold is already reached starts at once.
    assert_eq!(tsend_at(&a, peer, &[7], 4, &mut contexts[0]), 0);
    trecv(&b, &mut into, 4, 0);
    assert_eq!(b.completion(&[&a]).unwrap().tag, 4);
    assert_eq!(close(counter.cast()), 0);
}

#[test]
fn a_triggered_operation_can_be_cancelled_and_ends_with_its_endpoint() {
    let (a, b, peer) = pair(&Wish::default());
    let counter = counter(a.domain);
    let mut contexts = [1, 1].map(|at| threshold(counter, at));
    for context in &mut contexts {
        assert_eq!(tsend_at(&a, peer, &[7], 1, context), 0);
    }
    let context: *mut c_void = (&raw mut contexts[0]).cast();
    // SAFETY: the handle is live.
    let cancel = || unsafe { ((*(*a.ep).ops).cancel)(a.ep.cast(), context) };
    assert_eq!(cancel(), 0);
    let error = a.completion(&[]).unwrap_err();
    assert_eq!((error.op_context, error.err), (context, libc::ECANCELED));
    assert_eq!(cancel(), -libc::ENOENT as isize);
    assert_eq!(close(a.ep.cast()), 0);
    assert_eq!(close(counter.cast()), 0, "no work waits for it now");
    assert!(poll(b.cq).is_none());
}

/// Deferred work, which owns the structures that it points to.
pub(crate) struct Work<T> {
    work: Box<DeferredWork>,
    _op: Box<T>,
}

impl<T> Work<T> {
    pub(crate) fn new(
        op_type: c_int,
        op: T,
        trigger: *mut FidCntr,
        at: u64,
        completion_cntr: *mut FidCntr,
    ) -> Self {
        let op = Box::new(op);
        let work = DeferredWork {
            context: Context2 {
                internal: [null_mut(); 8],
            },
            threshold: at,
            triggering_cntr: trigger,
            completion_cntr,
            op_type,
            op: (&raw const *op).cast(),
        };
        Self {
            work: Box::new(work),
            _op: op,
        }
    }

    pub(crate) fn command(&self, domain: *mut FidDomain, command: c_int) -> c_int {
        control(
            domain.cast(),
            command,
            (&raw const *self.work).cast_mut().cast(),
        )
    }

    pub(crate) fn queue(&self, domain: *mut FidDomain) -> c_int {
        self.command(domain, FI_QUEUE_WORK)
    }
}

fn atomic(iov: &[Ioc], to: &[RmaIoc], peer: u64, op: c_int) -> MsgAtomic {
    MsgAtomic {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: iov.len(),
        addr: peer,
        rma_iov: to.as_ptr(),
        rma_iov_count: to.len(),
        datatype: FI_UINT64,
        op,
        context: null_mut(),
        data: 0,
    }
}

pub(crate) fn rma(iov: &[libc::iovec], to: &[RmaIov], peer: u64) -> MsgRma {
    MsgRma {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: iov.len(),
        addr: peer,
        rma_iov: to.as_ptr(),
        rma_iov_count: to.len(),
        context: null_mut(),
        data: 0,
    }
}

#[test]
fn deferred_work_of_every_kind_executes() {
    let (a, b, peer) = pair(&Wish::default());
    let (go, done) = (counter(a.domain), counter(a.domain));
    let mut words = [5u64, 0];
    // SAFETY: plain numbers as bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 16) };
    let mr = b.reg(bytes, REMOTE, 1, 0).unwrap();
    let ep = a.ep;
    let place = |addr| RmaIov {
        addr,
        len: 8,
        key: 1,
    };
    let number = |addr| RmaIoc {
        addr,
        count: 1,
        key: 1,
    };
    let (mut read, mut written, mut sent) = ([0u8; 8], [9u8; 8], [4u8; 8]);
    let (mut two, mut seven, mut old, mut before) = (2u64, 7u64, 0u64, 0u64);
    let (read_iov, read_from) = ([iovec(&mut read)], [place(0)]);
    let (write_iov, write_to) = ([iovec(&mut written)], [place(8)]);
    let sent_iov = [iovec(&mut sent)];
    let ioc = |at: &mut u64| {
        [Ioc {
            addr: (&raw mut *at).cast(),
            count: 1,
        }]
    };
    let (two_ioc, seven_ioc) = (ioc(&mut two), ioc(&mut seven));
    let (old_ioc, before_ioc) = (ioc(&mut old), ioc(&mut before));
    let first = [number(0)];
    let lists = |iov: &[Ioc]| DeferredLists {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
    };
    let transfer = |op_type, msg| {
        let op = DeferredRma { ep, msg, flags: 0 };
        Work::new(op_type, op, go, 1, done)
    };
    let works = [
        transfer(FI_OP_READ, rma(&read_iov, &read_from, peer)),
        transfer(FI_OP_WRITE, rma(&write_iov, &write_to, peer)),
    ];
    let send = Work::new(
        FI_OP_TSEND,
        DeferredTagged {
            ep,
            msg: tagged(&sent_iov, peer, 3, null_mut()),
            flags: 0,
        },
        go,
        1,
        done,
    );
    let base = Work::new(
        FI_OP_ATOMIC,
        DeferredAtomic {
            ep,
            msg: atomic(&two_ioc, &first, peer, FI_SUM),
            flags: 0,
        },
        go,
        2,
        done,
    );
    let fetch = Work::new(
        FI_OP_FETCH_ATOMIC,
        DeferredFetch {
            ep,
            msg: atomic(&two_ioc, &first, peer, FI_SUM),
            fetch: lists(&old_ioc),
            flags: 0,
        },
        go,
        3,
        done,
    );
    let compare = Work::new(
        FI_OP_COMPARE_ATOMIC,
        DeferredCompare {
            ep,
            msg: atomic(&two_ioc, &first, peer, FI_CSWAP_NE),
            fetch: lists(&before_ioc),
            compare: lists(&seven_ioc),
            flags: 0,
        },
        go,
        4,
        done,
    );
    for work in &works {
        assert_eq!(work.queue(a.domain), 0);
    }
    assert_eq!(send.queue(a.domain), 0);
    assert_eq!(base.queue(a.domain), 0);
    assert_eq!(fetch.queue(a.domain), 0);
    assert_eq!(compare.queue(a.domain), 0);
    assert_eq!(count(done), 0, "nothing has begun");
    let wait = |value: u64| {
        let started = std::time::Instant::now();
        while count(done) < value {
            // The target makes progress without reading anything.
            // SAFETY: the handle is live.
            unsafe { ((*(*b.cq).ops).read)(b.cq, null_mut(), 0) };
            assert!(started.elapsed() < PATIENCE, "{} of {value}", count(done));
        }
        assert_eq!((count(done), errors(done)), (value, 0));
    };
    for (step, value) in [(1, 3), (1, 4), (1, 5), (1, 6)] {
        add(go, step);
        wait(value);
    }
    let mut into = [0u8; 8];
    trecv(&b, &mut into, 3, 0);
    assert_eq!(b.completion(&[&a]).unwrap().tag, 3);
    assert_eq!(into, [4; 8]);
    assert_eq!(u64::from_ne_bytes(read), 5);
    assert_eq!((old, before), (7, 9));
    assert!(poll(a.cq).is_none(), "no completions were requested");
    assert_eq!(mr.close(), 0);
    assert_eq!(words, [2, u64::from_ne_bytes([9; 8])]);
}

#[test]
fn deferred_receives_count_and_complete_if_requested() {
    let (a, b, peer) = pair(&Wish::default());
    let (go, done) = (counter(b.domain), counter(b.domain));
    let (mut plain, mut with_tag) = ([0u8; 4], [0u8; 4]);
    let (plain_iov, tagged_iov) = ([iovec(&mut plain)], [iovec(&mut with_tag)]);
    let msg = Msg {
        msg_iov: plain_iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        context: 5 as *mut c_void,
        data: 0,
    };
    let op = DeferredMsg {
        ep: b.ep,
        msg,
        flags: FI_COMPLETION,
    };
    let recv = Work::new(FI_OP_RECV, op, go, 1, done);
    let op = DeferredTagged {
        ep: b.ep,
        msg: tagged(&tagged_iov, FI_ADDR_UNSPEC, 8, 6 as *mut c_void),
        flags: 0,
    };
    let recv_tagged = Work::new(FI_OP_TRECV, op, go, 1, done);
    assert_eq!((recv.queue(b.domain), recv_tagged.queue(b.domain)), (0, 0));
    add(go, 1);
    tsend(&a, peer, &[8; 4], 8);
    let bytes = [3u8; 4];
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        let send = (*(*a.ep).msg).send;
        send(a.ep, bytes.as_ptr().cast(), 4, null_mut(), peer, null_mut())
    });
    assert_eq!(code, 0);
    assert_eq!(wait_count(done, 2), 2);
    let entry = b.completion(&[&a]).unwrap();
    assert_eq!((entry.op_context as usize, entry.len), (5, 4));
    assert!(poll(b.cq).is_none(), "the other requested none");
    assert_eq!((plain, with_tag), ([3; 4], [8; 4]));
}

#[test]
fn deferred_work_is_started_by_peers_writes_and_by_other_work() {
    let (a, b, to_b) = pair(&Wish::default());
    let to_a = b.peer(&a);
    let (mut inbox, mut back) = ([0u8; 4], [0u8; 4]);
    let there = b.reg(&mut inbox, REMOTE, 1, 0).unwrap();
    let here = a.reg(&mut back, REMOTE, 2, 0).unwrap();
    let [hits, done, chained] = [(); 3].map(|()| counter(b.domain));
    assert_eq!(there.bind(hits, FI_REMOTE_WRITE), 0);
    let mut answer = [6u8; 4];
    let (iov, to) = (
        [iovec(&mut answer)],
        [RmaIov {
            addr: 0,
            len: 4,
            key: 2,
        }],
    );
    let op = DeferredRma {
        ep: b.ep,
        msg: rma(&iov, &to, to_a),
        flags: 0,
    };
    let reply = Work::new(FI_OP_WRITE, op, hits, 2, done);
    let op = DeferredCount {
        cntr: chained,
        value: 40,
    };
    let follow = Work::new(FI_OP_CNTR_SET, op, done, 1, null_mut());
    let op = DeferredCount {
        cntr: chained,
        value: 2,
    };
    let then = Work::new(FI_OP_CNTR_ADD, op, chained, 40, null_mut());
    for code in [
        reply.queue(b.domain),
        follow.queue(b.domain),
        then.queue(b.domain),
    ] {
        assert_eq!(code, 0);
    }
    assert_eq!(a.write(to_b, &[1; 4], 0, 1), 0);
    // The writer completes first.
    assert_eq!((wait_count(hits, 1), count(done)), (1, 0));
    assert_eq!(a.write(to_b, &[2; 4], 0, 1), 0);
    assert_eq!(wait_count(done, 1), 1);
    assert_eq!(wait_count(chained, 42), 42);
    assert!(poll(b.cq).is_none());
    assert_eq!((close(hits.cast()), there.close(), here.close()), (0, 0, 0));
    assert_eq!((inbox, back), ([2; 4], [6; 4]));
}

#[test]
fn deferred_work_can_be_cancelled_or_flushed_and_can_fail() {
    let (a, _, peer) = pair(&Wish::default());
    let [go, other, done, foreign] = [
        a.domain,
        a.domain,
        a.domain,
        Side::open(&Wish::default()).domain,
    ]
    .map(counter);
    let mut bytes = [1u8; 4];
    let iov = [iovec(&mut bytes)];
    let to = [RmaIov {
        addr: 0,
        len: 4,
        key: 77,
    }];
    let write = |trigger, flags| {
        let op = DeferredRma {
            ep: a.ep,
            msg: rma(&iov, &to, peer),
            flags,
        };
        Work::new(FI_OP_WRITE, op, trigger, 1, done)
    };
    let (first, second, third) = (write(go, 0), write(go, 0), write(other, 0));
    for work in [&first, &second, &third] {
        assert_eq!(work.queue(a.domain), 0);
    }
    assert_eq!(first.command(a.domain, FI_CANCEL_WORK), 0);
    assert_eq!(first.command(a.domain, FI_CANCEL_WORK), -libc::ENOENT);
    assert_eq!(control(a.domain.cast(), FI_FLUSH_WORK, go.cast()), 0);
    assert_eq!(second.command(a.domain, FI_CANCEL_WORK), -libc::ENOENT);
    assert_eq!(control(a.domain.cast(), FI_FLUSH_WORK, null_mut()), 0);
    assert_eq!(third.command(a.domain, FI_CANCEL_WORK), -libc::ENOENT);
    add(go, 1);
    assert_eq!((count(done), errors(done)), (0, 0));
    // An unknown key, and an address without an endpoint.
    assert_eq!(write(go, 0).queue(a.domain), 0);
    let started = std::time::Instant::now();
    while errors(done) == 0 && started.elapsed() < PATIENCE {}
    assert_eq!((count(done), errors(done)), (0, 1));
    let op = DeferredRma {
        ep: a.ep,
        msg: rma(&iov, &to, 1234),
        flags: FI_COMPLETION,
    };
    assert_eq!(Work::new(FI_OP_WRITE, op, go, 1, done).queue(a.domain), 0);
    assert_eq!(errors(done), 2);
    assert_eq!(a.completion(&[]).unwrap_err().err, libc::EINVAL);
    // Invalid arguments.
    let counts = |cntr| DeferredCount { cntr, value: 1 };
    for (code, refusal) in [
        (write(foreign, 0).queue(a.domain), -libc::EINVAL),
        (write(null_mut(), 0).queue(a.domain), -libc::EINVAL),
        (write(go, FI_MULTICAST).queue(a.domain), -260),
        (write(go, FI_TRIGGER).queue(a.domain), -260),
        (write(go, 1 << 63).queue(a.domain), -260),
        (
            Work::new(FI_OP_CNTR_ADD, counts(go), go, 1, done).queue(a.domain),
            -libc::EINVAL,
        ),
        (
            Work::new(FI_OP_CNTR_ADD, counts(foreign), go, 1, null_mut()).queue(a.domain),
            -libc::EINVAL,
        ),
        (
            Work::new(99, counts(go), go, 1, null_mut()).queue(a.domain),
            -libc::ENOSYS,
        ),
        (
            control(a.domain.cast(), FI_QUEUE_WORK, null_mut()),
            -libc::EINVAL,
        ),
    ] {
        assert_eq!(code, refusal);
    }
    // Refused: a trigger of another kind, no trigger, and an endpoint without the capability.
    let mut context = threshold(go, 1);
    context.event_type = 1;
    assert_eq!(
        tsend_at(&a, peer, &[1], 1, &mut context),
        -libc::ENOSYS as isize
    );
    let msg = tagged(&iov, peer, 1, null_mut());
    // SAFETY: a live handle, and a message that lives as long as the call.
    let code = unsafe { ((*(*a.ep).tagged).sendmsg)(a.ep, &msg, FI_TRIGGER) };
    assert_eq!(code, -libc::EINVAL as isize);
    let wish = Wish {
        caps: FI_MSG | FI_TAGGED,
        ..Wish::default()
    };
    let (plain, _, peer) = pair(&wish);
    let mut context = threshold(counter(plain.domain), 1);
    let code = tsend_at(&plain, peer, &[1], 1, &mut context);
    assert_eq!(code, -libc::EOPNOTSUPP as isize);
}

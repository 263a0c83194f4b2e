//! Shared receive contexts.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A domain with a context and two endpoints that share it.
struct Sharing {
    srx: *mut FidEp,
    ends: [Side; 2],
}

fn shared_info(wish: &Wish) -> *mut Info {
    let info = wish.info();
    // SAFETY: our own `fi_info`.
    unsafe { (*(*info).ep_attr).rx_ctx_cnt = FI_SHARED_CONTEXT };
    info
}

fn srx_of(domain: *mut FidDomain) -> *mut FidEp {
    let mut srx = null_mut();
    // SAFETY: a live handle, no attributes, and room for a handle.
    let code = unsafe { ((*(*domain).ops).srx_ctx)(domain, null_mut(), &mut srx, null_mut()) };
    assert_eq!(code, 0);
    srx
}

impl Sharing {
    fn open(wish: &Wish) -> Self {
        let info = shared_info(wish);
        let (fabric, domain) = open_domain(wish.version, info);
        let srx = srx_of(domain);
        let mut common: *mut FidAv = null_mut();
        let ends = [0, 1].map(|_| {
            let mut side = Side::waiting((fabric, domain), info);
            if common.is_null() {
                common = side.av;
            }
            side.av = common;
            let ep = side.ep;
            assert_eq!(bind(ep.cast(), common.cast(), 0), 0);
            assert_eq!(side.enable(), -269, "not bound to the context");
            assert_eq!(bind(ep.cast(), srx.cast(), 1), -260, "no flags");
            assert_eq!(bind(ep.cast(), srx.cast(), 0), 0);
            assert_eq!(bind(ep.cast(), srx.cast(), 0), -libc::EBUSY);
            assert_eq!(side.enable(), 0);
            side
        });
        Self { srx, ends }
    }
}

pub(crate) fn recv(ep: *mut FidEp, into: &mut [u8], context: usize) -> isize {
    let (at, len, context) = (into.as_mut_ptr().cast(), into.len(), context as *mut c_void);
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    unsafe { ((*(*ep).msg).recv)(ep, at, len, null_mut(), FI_ADDR_UNSPEC, context) }
}

pub(crate) fn trecvmsg(
    ep: *mut FidEp,
    into: &mut [u8],
    tag: u64,
    context: usize,
    flags: u64,
) -> isize {
    let iov = [iovec(into)];
    let msg = MsgTagged {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        tag,
        ignore: 0,
        context: context as *mut c_void,
        data: 0,
    };
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    unsafe { ((*(*ep).tagged).recvmsg)(ep, &msg, flags) }
}

/// Sends bytes, with their number as the operation's context.
pub(crate) fn send(side: &Side, peer: u64, bytes: &[u8]) {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        let send = (*(*side.ep).msg).send;
        send(side.ep, at, len, null_mut(), peer, len as *mut c_void)
    });
    assert_eq!(code, 0);
}

fn tsend(side: &Side, peer: u64, bytes: &[u8], tag: u64) {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        ((*(*side.ep).tagged).send)(side.ep, at, len, null_mut(), peer, tag, null_mut())
    });
    assert_eq!(code, 0);
}

/// Waits until a tagged message is at one of the endpoints, without receiving it.
fn wait_for_tag(it: &Sharing, at: usize, tag: u64) {
    let started = Instant::now();
    loop {
        assert_eq!(trecvmsg(it.srx, &mut [], tag, 77, FI_PEEK), 0);
        // The result is at the endpoint that has the message; otherwise the first reports that there is none.
        let answers = [poll(it.ends[0].cq), poll(it.ends[1].cq)];
        if let Some(Ok(entry)) = &answers[at] {
            assert_eq!((entry.op_context as usize, entry.tag), (77, tag));
            return;
        }
        assert!(started.elapsed() < PATIENCE, "the message never arrived");
        std::thread::yield_now();
    }
}

#[test]
fn a_shared_receive_goes_to_the_endpoint_that_gets_a_message() {
    let wish = Wish::default();
    let (a, b) = (Side::open(&wish), Sharing::open(&wish));
    let peers = [0, 1].map(|n| a.peer(&b.ends[n]));
    let mut buffers = [[0u8; 8]; 4];
    for (context, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(recv(b.srx, buffer, context), 0);
    }
    for (n, &to) in [1, 0, 0, 1].iter().enumerate() {
        send(&a, peers[to], &[n as u8 + 1; 8]);
        let entry = b.ends[to].completion(&[&a]).unwrap();
        assert_eq!((entry.op_context as usize, entry.len), (n, 8));
        assert_eq!(entry.flags & (FI_RECV | FI_MSG), FI_RECV | FI_MSG);
        assert!(a.completion(&[]).is_ok());
    }
    assert_eq!(buffers, [[1; 8], [2; 8], [3; 8], [4; 8]]);
    assert!(poll(b.ends[0].cq).is_none() && poll(b.ends[1].cq).is_none());
}

#[test]
fn unexpected_messages_match_later_shared_receives_in_order() {
    let wish = Wish::default();
    let (a, b) = (Side::open(&wish), Sharing::open(&wish));
    let peers = [0, 1].map(|n| a.peer(&b.ends[n]));
    let long = vec![9u8; 100_000];
    // Two messages with the same tag, the first one long, are at the second endpoint; a third shows that both have
    // arrived.
    tsend(&a, peers[1], &long, 5);
    tsend(&a, peers[1], &[2; 4], 5);
    tsend(&a, peers[1], &[3; 4], 6);
    tsend(&a, peers[0], &[4; 4], 7);
    wait_for_tag(&b, 1, 6);
    wait_for_tag(&b, 0, 7);
    let (mut first, mut second) = (vec![0u8; 100_000], vec![0u8; 100_000]);
    assert_eq!(trecvmsg(b.srx, &mut first, 5, 1, 0), 0);
    assert_eq!(trecvmsg(b.srx, &mut second, 5, 2, 0), 0);
    let mut seen = [0, 1].map(|_| {
        let entry = b.ends[1].completion(&[&a]).unwrap();
        (entry.op_context as usize, entry.len)
    });
    seen.sort_unstable();
    assert_eq!(seen, [(1, 100_000), (2, 4)]);
    assert!(first == long && second[..4] == [2; 4]);
    let mut third = [0u8; 4];
    assert_eq!(trecvmsg(b.srx, &mut third, 7, 3, 0), 0);
    assert_eq!(b.ends[0].completion(&[]).unwrap().op_context as usize, 3);
    assert_eq!(third, [4; 4]);
}

#[test]
fn a_message_can_be_claimed_through_the_shared_context() {
    let wish = Wish::default();
    let (a, b) = (Side::open(&wish), Sharing::open(&wish));
    let peer = a.peer(&b.ends[1]);
    tsend(&a, peer, &[5; 4], 3);
    wait_for_tag(&b, 1, 3);
    let mut into = [0u8; 4];
    assert_eq!(trecvmsg(b.srx, &mut into, 3, 8, FI_PEEK | FI_CLAIM), 0);
    assert_eq!(b.ends[1].completion(&[]).unwrap().op_context as usize, 8);
    assert_eq!(trecvmsg(b.srx, &mut into, 3, 9, FI_CLAIM), -22, "another");
    assert_eq!(trecvmsg(b.srx, &mut into, 3, 8, FI_CLAIM), 0);
    assert_eq!(b.ends[1].completion(&[]).unwrap().op_context as usize, 8);
    assert_eq!(into, [5; 4]);
    assert_eq!(trecvmsg(b.srx, &mut into, 3, 8, FI_PEEK), 0);
    let error = b.ends[0].completion(&[]).unwrap_err();
    assert_eq!((error.op_context as usize, error.err), (8, libc::ENOMSG));
}

#[test]
fn one_multi_receive_buffer_serves_several_endpoints() {
    let wish = Wish::default();
    let (a, b) = (Side::open(&wish), Sharing::open(&wish));
    let peers = [0, 1].map(|n| a.peer(&b.ends[n]));
    let least = 8usize;
    // SAFETY: a live handle, and a number for the option.
    let code = unsafe {
        let setopt = (*(*b.srx).ops).setopt;
        setopt(
            b.srx.cast(),
            0,
            FI_OPT_MIN_MULTI_RECV,
            (&raw const least).cast(),
            size_of::<usize>(),
        )
    };
    assert_eq!(code, 0);
    let mut buffer = [0u8; 30];
    let iov = [iovec(&mut buffer)];
    let msg = Msg {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        context: 4 as *mut c_void,
        data: 0,
    };
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    let code = unsafe { ((*(*b.srx).msg).recvmsg)(b.srx, &msg, FI_MULTI_RECV) };
    assert_eq!(code, 0);
    for (n, to) in [0, 1, 0].into_iter().enumerate() {
        send(&a, peers[to], &[n as u8 + 1; 10]);
        let entry = b.ends[to].completion(&[&a]).unwrap();
        assert_eq!(entry.flags & FI_MULTI_RECV != 0, n == 2, "message {n}");
    }
    assert_eq!((buffer[9], buffer[10], buffer[29]), (1, 2, 3));
}

#[test]
fn a_shared_context_supports_cancel_and_close() {
    let wish = Wish::default();
    let b = Sharing::open(&wish);
    let mut buffer = [0u8; 8];
    assert_eq!(recv(b.srx, &mut buffer, 6), 0);
    // SAFETY: the handle is live.
    let cancel =
        |context: usize| unsafe { ((*(*b.srx).ops).cancel)(b.srx.cast(), context as *mut c_void) };
    assert_eq!((cancel(5), cancel(6)), (-libc::ENOENT as isize, 0));
    let error = b.ends[0].completion(&[]).unwrap_err();
    assert_eq!((error.op_context as usize, error.err), (6, libc::ECANCELED));
    assert_eq!(
        recv(b.ends[0].ep, &mut buffer, 0),
        -libc::EOPNOTSUPP as isize,
        "receives are posted to the context"
    );
    // SAFETY: a live handle: calls that do not apply to contexts are refused.
    let code = unsafe { ((*(*b.srx).msg).send)(b.srx, null_mut(), 0, null_mut(), 0, null_mut()) };
    assert_eq!(code, -libc::EINVAL as isize);
    assert_eq!(close(b.srx.cast()), -libc::EBUSY);
    for end in &b.ends {
        assert_eq!(close(end.ep.cast()), 0);
    }
    assert_eq!(
        recv(b.srx, &mut buffer, 0),
        0,
        "without users it can be closed"
    );
    assert_eq!(
        (close(b.srx.cast()), close(b.srx.cast())),
        (0, -libc::EINVAL)
    );
}

#[test]
fn a_shared_context_refuses_endpoints_that_do_not_match_it() {
    let wish = Wish::default();
    let info = shared_info(&wish);
    let (_, domain) = open_domain(wish.version, info);
    let (_, elsewhere) = open_domain(wish.version, info);
    let (srx, foreign) = (srx_of(domain), srx_of(elsewhere));
    let (first, _, av) = open_disabled(domain, info);
    let (second, _, other_av) = open_disabled(domain, info);
    let (plain, ..) = open_disabled(domain, wish.info());
    assert_eq!(
        bind(plain.cast(), srx.cast(), 0),
        -libc::EINVAL,
        "not bound to a context"
    );
    assert_eq!(bind(first.cast(), foreign.cast(), 0), -libc::EINVAL);
    for (ep, av, enabled) in [(first, av, 0), (second, other_av, -libc::EINVAL)] {
        assert_eq!(bind(ep.cast(), srx.cast(), 0), 0);
        assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
        let code = control(ep.cast(), FI_ENABLE, null_mut());
        assert_eq!(code, enabled, "all have the same address vector");
    }
    let with_key = Wish {
        auth_key: b"other",
        ..wish
    };
    let (keyed, ..) = open_disabled(domain, shared_info(&with_key));
    assert_eq!(bind(keyed.cast(), srx.cast(), 0), -libc::EINVAL);
}

#[test]
fn shared_contexts_are_offered_for_every_kind_of_endpoint() {
    let provider = rkey_fi::fi_prov_ini();
    for ep_type in [FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM] {
        for (tx, rx) in [(0, FI_SHARED_CONTEXT), (FI_SHARED_CONTEXT, 0)] {
            // SAFETY: the entry point's structure; complete hints.
            unsafe {
                let mut ep: EpAttr = std::mem::zeroed();
                (ep.ep_type, ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (ep_type, tx, rx);
                let mut hints: Info = std::mem::zeroed();
                hints.ep_attr = &mut ep;
                let mut info = null_mut();
                let getinfo = (*provider).getinfo;
                let found = getinfo(V1_17, null_mut(), null_mut(), 0, &hints, &mut info);
                assert_eq!(found, 0);
                assert_eq!((*(*info).ep_attr).tx_ctx_cnt, tx.max(1));
                assert_eq!((*(*info).ep_attr).rx_ctx_cnt, rx.max(1));
                assert!((*(*info).domain_attr).max_ep_srx_ctx > 1);
                assert!((*(*info).domain_attr).max_ep_stx_ctx > 1);
            }
        }
    }
}

/// A listening side with a context for all of its connections.
pub(crate) struct Server {
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
    eq: *mut FidEq,
    pep: *mut FidPep,
    pub(crate) srx: *mut FidEp,
}

/// Endpoints are opened and closed while a thread polls the context that they share.
#[test]
fn endpoints_close_while_their_shared_receives_are_used() {
    const CLOSES: usize = 5000;
    let wish = Wish::default();
    let info = shared_info(&wish);
    let (_fabric, domain) = open_domain(wish.version, info);
    let srx = srx_of(domain) as usize;
    let (ep, cq, av) = open_disabled(domain, info);
    let open = |ep: *mut FidEp| {
        assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
        assert_eq!(bind(ep.cast(), (srx as *mut FidEp).cast(), 0), 0);
        assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);
    };
    open(ep);
    let (over, first) = (AtomicBool::new(false), cq as usize);
    let closed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                trecvmsg(srx as *mut FidEp, &mut [], 5, 7, FI_PEEK);
                while poll(first as *mut FidCq).is_some() {}
            }
        });
        // Deadlocked threads cannot be stopped, but the process can.
        scope.spawn(|| {
            let (mut last, mut since) = (usize::MAX, Instant::now());
            while !over.load(Ordering::Relaxed) {
                let now = closed.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                }
                if since.elapsed() > PATIENCE {
                    eprintln!("fi_close hangs after {now}");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for _ in 0..CLOSES {
            let (ep, cq, own) = open_disabled(domain, info);
            open(ep);
            let codes = (close(ep.cast()), close(cq.cast()), close(own.cast()));
            assert_eq!(codes, (0, 0, 0));
            closed.fetch_add(1, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(close(ep.cast()), 0);
}

/// The next event, which must be of this kind; returns its entry.
fn event(eq: *mut FidEq, wanted: u32) -> EqCmEntry {
    let started = Instant::now();
    loop {
        let (mut event, mut room) = (0, [0u64; 64]);
        let at = room.as_mut_ptr().cast();
        // SAFETY: the handle is live, and the buffer is our own.
        let code = unsafe { ((*(*eq).ops).read)(eq, &mut event, at, size_of_val(&room), 0) };
        if code > 0 {
            assert_eq!(event, wanted);
            // SAFETY: a connection event is this structure.
            return unsafe { room.as_ptr().cast::<EqCmEntry>().read() };
        }
        assert_eq!(code, -libc::EAGAIN as isize);
        assert!(started.elapsed() < PATIENCE, "no event");
        std::thread::yield_now();
    }
}

impl Server {
    pub(crate) fn open(wish: &Wish) -> Self {
        let info = shared_info(wish);
        let (fabric, domain) = open_domain(wish.version, info);
        let eq = event_queue(fabric);
        let mut pep = null_mut();
        // SAFETY: live handles, and the provider's `fi_info`.
        unsafe {
            let code = ((*(*fabric).ops).passive_ep)(fabric, info, &mut pep, null_mut());
            assert_eq!(code, 0);
            assert_eq!(bind(pep.cast(), eq.cast(), 0), 0);
            assert_eq!(((*(*pep).cm).listen)(pep), 0);
        }
        let srx = srx_of(domain);
        Self {
            fabric,
            domain,
            eq,
            pep,
            srx,
        }
    }

    /// A new client and our end of the connection.
    pub(crate) fn connect(&self, wish: &Wish) -> (Side, Side) {
        let client = connected_side(
            open_domain(wish.version, wish.info()),
            wish.info(),
            null_mut(),
        );
        let (mut name, mut len) = ([0u8; 128], 128);
        // SAFETY: the handles are live, and the buffer is our own.
        unsafe {
            let at = name.as_mut_ptr().cast::<c_void>();
            assert_eq!(
                ((*(*self.pep).cm).getname)(self.pep.cast(), at, &mut len),
                0
            );
            let connect = (*(*client.ep).cm).connect;
            assert_eq!(connect(client.ep, at, null_mut(), 0), 0);
        }
        let info = event(self.eq, FI_CONNREQ).info;
        // SAFETY: the `fi_info` of the request, which is ours.
        unsafe { assert_eq!((*(*info).ep_attr).rx_ctx_cnt, FI_SHARED_CONTEXT) };
        let here = connected_side((self.fabric, self.domain), info, self.srx);
        // SAFETY: the handle is live.
        let code = unsafe { ((*(*here.ep).cm).accept)(here.ep, null_mut(), 0) };
        assert_eq!(code, 0);
        event(here.eq, FI_CONNECTED);
        event(client.eq, FI_CONNECTED);
        (client, here)
    }
}

/// An endpoint with its own queues, and with a context if there is one.
fn connected_side(
    opened: (*mut FidFabric, *mut FidDomain),
    info: *mut Info,
    srx: *mut FidEp,
) -> Side {
    let mut side = Side::waiting(opened, info);
    side.eq = event_queue(side.fabric);
    assert_eq!(bind(side.ep.cast(), side.eq.cast(), 0), 0);
    if !srx.is_null() {
        assert_eq!(bind(side.ep.cast(), srx.cast(), 0), 0);
    }
    side
}

#[test]
fn receives_of_a_shared_context_outlive_a_connection_that_ends() {
    let wish = Wish {
        ep_type: FI_EP_MSG,
        ..Wish::default()
    };
    let server = Server::open(&wish);
    let (first, here_first) = server.connect(&wish);
    let (second, here_second) = server.connect(&wish);
    let mut buffers = [[0u8; 4]; 3];
    for (context, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(recv(server.srx, buffer, context), 0);
    }
    for (n, (there, here)) in [(&first, &here_first), (&second, &here_second)]
        .into_iter()
        .enumerate()
    {
        send(there, 0, &[n as u8 + 1; 4]);
        assert_eq!(here.completion(&[there]).unwrap().op_context as usize, n);
        assert!(there.completion(&[here]).is_ok());
    }
    assert_eq!(close(first.ep.cast()), 0);
    let started = Instant::now();
    loop {
        // Polling detects the end.
        assert!(poll(here_first.cq).is_none(), "the receive is not flushed");
        let mut room = [0u64; 64];
        let (at, len) = (room.as_mut_ptr().cast(), size_of_val(&room));
        let mut kind = 0;
        // SAFETY: the handle is live, and the buffer is our own.
        let code = unsafe { ((*(*here_first.eq).ops).read)(here_first.eq, &mut kind, at, len, 0) };
        if code > 0 {
            assert_eq!(kind, FI_SHUTDOWN);
            break;
        }
        assert!(started.elapsed() < PATIENCE, "no event");
        std::thread::yield_now();
    }
    send(&second, 0, &[3; 4]);
    assert_eq!(
        here_second.completion(&[&second]).unwrap().op_context as usize,
        2
    );
    assert_eq!(buffers, [[1; 4], [2; 4], [3; 4]]);
}

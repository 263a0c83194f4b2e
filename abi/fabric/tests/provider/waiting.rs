//! Waiting for a completion queue, in a call (`fi_cq_sread`) or by its descriptor after `fi_trywait`: any work and any
//! entry wakes the program.

use crate::harness::*;
use crate::peer::until;
use crate::silent::called;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

pub(crate) const AGAIN: isize = -(libc::EAGAIN as isize);
/// The milliseconds of a wait that must not time out.
pub(crate) const LONG: c_int = 3 * PATIENCE.as_millis() as c_int;

/// A queue with a descriptor.
pub(crate) fn waitable_cq(domain: *mut FidDomain) -> *mut FidCq {
    let mut cq = null_mut();
    // SAFETY: the handle is live, and the attributes are our own.
    let code = unsafe {
        let mut attr: CqAttr = std::mem::zeroed();
        attr.format = FI_CQ_FORMAT_TAGGED;
        attr.wait_obj = FI_WAIT_FD;
        ((*(*domain).ops).cq_open)(domain, &mut attr, &mut cq, null_mut())
    };
    assert_eq!(code, 0);
    cq
}

/// A side whose queue has a descriptor.
pub(crate) fn waitable(wish: &Wish) -> Side {
    waitable_with(wish, 0, |_| {})
}

/// Like [`waitable`], with other flags of the binding; `prepare` runs before the endpoint is enabled.
pub(crate) fn waitable_with(wish: &Wish, flags: u64, prepare: impl FnOnce(&Side)) -> Side {
    let info = wish.info();
    let (fabric, domain) = open_domain(wish.version, info);
    let cq = waitable_cq(domain);
    let (mut av, mut ep) = (null_mut(), null_mut());
    // SAFETY: the handles are live, and the attributes are our own.
    unsafe {
        let ops = &*(*domain).ops;
        let mut attr: AvAttr = std::mem::zeroed();
        assert_eq!((ops.av_open)(domain, &mut attr, &mut av, null_mut()), 0);
        assert_eq!((ops.endpoint)(domain, info, &mut ep, null_mut()), 0);
    }
    assert_eq!(bind(ep.cast(), cq.cast(), FI_SEND | FI_RECV | flags), 0);
    assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
    let side = Side {
        fabric,
        domain,
        cq,
        av,
        ep,
        eq: null_mut(),
    };
    prepare(&side);
    assert_eq!(side.enable(), 0);
    side
}

/// The descriptor of a queue.
pub(crate) fn descriptor(queue: *mut Fid) -> c_int {
    let mut fd: c_int = -1;
    assert_eq!(control(queue, FI_GETWAIT, (&raw mut fd).cast()), 0);
    fd
}

pub(crate) fn trywait(fabric: *mut FidFabric, queue: *mut Fid) -> c_int {
    let mut list = [queue];
    // SAFETY: the handles are live.
    unsafe { ((*(*fabric).ops).trywait)(fabric, list.as_mut_ptr(), 1) }
}

/// Waits until a descriptor is readable; returns `false` if it does not become readable.
pub(crate) fn readable(fd: c_int) -> bool {
    let mut set = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: a list of this length.
    unsafe { libc::poll(&mut set, 1, PATIENCE.as_millis() as c_int) == 1 }
}

/// `fi_cq_sread` for one entry, and how long it took.
pub(crate) fn sread(cq: *mut FidCq) -> (isize, Duration) {
    let started = Instant::now();
    // SAFETY: a live handle, and room for an entry of the longest format.
    let code = unsafe {
        let mut entry: CqTaggedEntry = std::mem::zeroed();
        let at = (&raw mut entry).cast();
        ((*(*cq).ops).sread)(cq, at, 1, null_mut(), LONG)
    };
    (code, started.elapsed())
}

/// Waits until a thread of this process sleeps.
pub(crate) fn until_asleep(thread: &AtomicI32) {
    until("the thread to sleep", || {
        let path = format!("/proc/self/task/{}/stat", thread.load(Ordering::Acquire));
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with('S')
    });
}

/// How many times a thread has gone to sleep.
pub(crate) fn sleeps(thread: &AtomicI32) -> u64 {
    let path = format!("/proc/self/task/{}/status", thread.load(Ordering::Acquire));
    let status = std::fs::read_to_string(path).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// The calling thread, for [`until_asleep`].
pub(crate) fn note_thread(into: &AtomicI32) {
    // SAFETY: no memory is passed.
    into.store(unsafe { libc::gettid() }, Ordering::Release);
}

/// A handle that may be sent to another thread.
pub(crate) struct Shared<T>(pub(crate) *mut T);
// SAFETY: the provider's objects may be used by several threads (FI_THREAD_SAFE).
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

pub(crate) fn inject(ep: *mut FidEp, peer: u64) -> isize {
    // SAFETY: the handle is live; the byte is copied.
    unsafe { ((*(*ep).msg).inject)(ep, b"x".as_ptr().cast(), 1, peer) }
}

pub(crate) fn recv(ep: *mut FidEp, into: &mut [u8; 8]) {
    let at = into.as_mut_ptr().cast();
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    let code = unsafe { ((*(*ep).msg).recv)(ep, at, 8, null_mut(), FI_ADDR_UNSPEC, null_mut()) };
    assert_eq!(code, 0);
}

/// Another thread locks the endpoint occasionally; events that arrive meanwhile are not missed.
#[test]
fn no_event_is_missed_while_other_calls_are_in_progress() {
    const ROUNDS: usize = 1000;
    let wish = Wish::default();
    let (a, b) = (waitable(&wish), waitable(&wish));
    let (to_b, to_a) = (a.peer(&b), b.peer(&a));
    let done = AtomicBool::new(false);
    let (a_ep, b_ep, b_cq) = (Shared(a.ep), Shared(b.ep), Shared(b.cq));
    let mut there = [0u8; 8];
    recv(b.ep, &mut there);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ep = a_ep.get();
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the handle is live.
                unsafe { ((*(*ep).ops).tx_size_left)(ep) };
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if sread(b_cq.get()).0 == 1 {
                    recv(b_ep.get(), &mut there);
                    assert_eq!(again(|| inject(b_ep.get(), to_a)), 0);
                }
            }
        });
        let fd = descriptor(a.cq.cast());
        let mut here = [0u8; 8];
        let round = || {
            recv(a.ep, &mut here);
            assert_eq!(again(|| inject(a.ep, to_b)), 0);
            while poll(a.cq).is_none() {
                if trywait(a.fabric, a.cq.cast()) == 0 && !readable(fd) {
                    return false;
                }
            }
            true
        };
        let woken = std::iter::repeat_with(round)
            .take(ROUNDS)
            .all(|woken| woken);
        done.store(true, Ordering::Relaxed);
        // SAFETY: the handle is live.
        assert_eq!(unsafe { ((*(*b.cq).ops).signal)(b.cq) }, 0);
        assert!(woken, "a message arrived, but did not wake the thread");
    });
}

/// A call that returned `-FI_EAGAIN` for lack of a connection may be repeated once there is one, and the
/// waiting thread is woken, even if the connection was made before it began to wait.
#[test]
fn a_thread_is_woken_to_repeat_a_call() {
    let wish = Wish::default();
    let (a, b) = (waitable(&wish), Side::open(&wish));
    let peer = a.peer(&b);
    assert_eq!(inject(a.ep, peer), AGAIN);
    // The connection is reported now, and `fi_trywait` does not lose the report.
    assert!(readable(descriptor(a.cq.cast())));
    assert_eq!(trywait(a.fabric, a.cq.cast()), AGAIN as c_int);
    assert_eq!(inject(a.ep, peer), 0);
    assert_eq!(trywait(a.fabric, a.cq.cast()), 0, "reported once");

    let (c, peer) = (waitable(&wish), waitable(&wish));
    let peer = c.peer(&peer);
    assert_eq!(inject(c.ep, peer), AGAIN);
    let (code, took) = sread(c.cq);
    assert_eq!(code, AGAIN);
    assert!(took < 2 * PATIENCE, "the wait timed out");
    assert_eq!(inject(c.ep, peer), 0);
}

/// Several threads got `-FI_EAGAIN`: each is woken once the result is known, even if it begins to wait later.
#[test]
fn every_thread_with_a_call_to_repeat_is_woken() {
    const SLEEP: usize = 4;
    for by_descriptor in [false, true] {
        let a = waitable(&Wish::default());
        let (silent, number, _) = called(&a);
        let (ep, cq, fabric) = (Shared(a.ep), Shared(a.cq), Shared(a.fabric));
        let wait = move || {
            let (cq, fabric) = (cq.get(), fabric.get());
            if !by_descriptor {
                let (code, took) = sread(cq);
                assert_eq!(code, AGAIN);
                return assert!(took < 2 * PATIENCE, "the wait timed out");
            }
            while trywait(fabric, cq.cast()) == 0 {
                assert!(readable(descriptor(cq.cast())), "the thread was not woken");
            }
        };
        let threads = [(); SLEEP].map(|()| AtomicI32::new(0));
        let (decided, told) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let asleep: Vec<_> = threads
                .iter()
                .map(|thread| {
                    scope.spawn(move || {
                        assert_eq!(inject(ep.get(), number), AGAIN);
                        note_thread(thread);
                        wait();
                    })
                })
                .collect();
            // One thread begins to wait after the others were woken.
            let late = scope.spawn(|| {
                assert_eq!(inject(ep.get(), number), AGAIN);
                decided.store(true, Ordering::Release);
                while !told.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                wait();
            });
            threads.iter().for_each(until_asleep);
            until("the last call", || decided.load(Ordering::Acquire));
            drop(silent);
            let woken: Vec<_> = asleep.into_iter().map(|it| it.join().is_ok()).collect();
            told.store(true, Ordering::Release);
            late.join().unwrap();
            assert_eq!(woken, [true; SLEEP]);
        });
    }
}

/// A thread that waits in a call is woken, whatever another thread does with the descriptor.
#[test]
fn fi_cq_signal_wakes_the_thread_that_waits_in_a_call() {
    let a = waitable(&Wish::default());
    let cq = Shared(a.cq);
    for _ in 0..200 {
        let thread = AtomicI32::new(0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                note_thread(&thread);
                sread(cq.get())
            });
            until_asleep(&thread);
            // SAFETY: the handle is live.
            assert_eq!(unsafe { ((*(*cq.get()).ops).signal)(cq.get()) }, 0);
            trywait(a.fabric, a.cq.cast());
            let (code, took) = waits.join().unwrap();
            assert_eq!(code, AGAIN);
            assert!(took < 2 * PATIENCE, "the wait timed out");
        });
    }
    // No thread waits in a call, so the signal is reported here, once.
    // SAFETY: the handle is live.
    assert_eq!(unsafe { ((*(*cq.get()).ops).signal)(cq.get()) }, 0);
    let told = [(); 2].map(|()| trywait(a.fabric, a.cq.cast()));
    assert_eq!(told, [AGAIN as c_int, 0]);
}

/// A counter with a wait object.
fn counter_with(domain: *mut FidDomain, wait_obj: c_int) -> *mut FidCntr {
    let mut counter = null_mut();
    // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
    let code = unsafe {
        let mut attr: CntrAttr = std::mem::zeroed();
        attr.wait_obj = wait_obj;
        ((*(*domain).ops).cntr_open)(domain, &mut attr, &mut counter, null_mut())
    };
    assert_eq!(code, 0);
    counter
}

/// A program waits for peers' writes, which wake no thread, by the descriptor of a counter.
#[test]
fn a_program_can_wait_for_a_counter_by_its_descriptor() {
    let (a, b) = (Side::open(&Wish::default()), Side::open(&Wish::default()));
    let peer = a.peer(&b);
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let counted = counter_with(b.domain, FI_WAIT_FD);
    assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
    let fd = descriptor(counted.cast());
    let wait = || trywait(b.fabric, counted.cast());
    for n in 1..=3 {
        assert_eq!(wait(), 0, "nothing new");
        assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
        let started = Instant::now();
        while count(counted) < n {
            assert!(started.elapsed() < PATIENCE, "{n} was not counted");
            if wait() == 0 {
                assert!(readable(fd), "the descriptor stays unreadable");
            }
        }
        // A value that the program has not read yet must be read first.
        // SAFETY: the handle is live.
        assert_eq!(unsafe { ((*(*counted).ops).adderr)(counted, 1) }, 0);
        assert_eq!(wait(), AGAIN as c_int);
        assert_eq!(wait(), 0);
    }
    assert_eq!((mr.close(), close(counted.cast())), (0, 0));
}

/// The `fi_control` commands of counters in fi_cntr(3).
#[test]
fn counters_support_the_documented_control_commands() {
    let b = Side::open(&Wish::default());
    for (wished, told) in [
        (FI_WAIT_FD, FI_WAIT_FD),
        (FI_WAIT_UNSPEC, FI_WAIT_UNSPEC),
        (FI_WAIT_NONE, FI_WAIT_NONE),
    ] {
        let counter = counter_with(b.domain, wished);
        let (mut object, mut fd, mut flags) = (-1, -1, 7u64);
        let control = |command, arg| control(counter.cast(), command, arg);
        assert_eq!(control(FI_GETWAITOBJ, (&raw mut object).cast()), 0);
        assert_eq!(object, told);
        let code = control(FI_GETWAIT, (&raw mut fd).cast());
        let has_one = told == FI_WAIT_FD;
        assert_eq!(code, if has_one { 0 } else { -libc::ENODATA });
        assert_eq!(fd >= 0, has_one);
        let code = trywait(b.fabric, counter.cast());
        assert_eq!(code, if has_one { 0 } else { -libc::EINVAL });
        assert_eq!(control(FI_GETOPSFLAG, (&raw mut flags).cast()), 0);
        assert_eq!(
            (flags, control(FI_SETOPSFLAG, (&raw mut flags).cast())),
            (0, 0)
        );
        let mut unknown = FI_COMPLETION;
        assert_eq!(control(FI_SETOPSFLAG, (&raw mut unknown).cast()), -260);
        assert_eq!(
            control(FI_GETWAIT, null_mut()),
            if has_one {
                -libc::EINVAL
            } else {
                -libc::ENODATA
            }
        );
        assert_eq!(close(counter.cast()), 0);
    }
    let queue = b.cq.cast();
    let mut fd = -1;
    assert_eq!(
        control(queue, FI_GETWAIT, (&raw mut fd).cast()),
        -libc::ENODATA
    );
}

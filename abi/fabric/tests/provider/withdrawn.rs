//! Deferred work that is canceled while another thread tries to start it.

use crate::deferred::{Work, add, rma};
use crate::harness::*;
use crate::peer::until;
use rkey_fi::sys::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;

/// How many deferred operations one endpoint has at a time.
const WORKS: usize = 8;
const ROUNDS: usize = 25;

/// A handle that another thread also uses.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);
// SAFETY: any thread may use handles, and they are closed when unused.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

/// Ends the other thread, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Queues work that is due and cannot start, because the endpoint's completion queue is full, and cancels it with `end` while
/// another thread polls a queue of the domain repeatedly. `end` returns whether it has closed the endpoint.
fn take_back(end: impl Fn(&Side, &[Work<DeferredRma>], *mut FidCntr) -> bool) {
    let wish = Wish {
        queue: 1,
        ..Wish::default()
    };
    let (there, info) = (Side::open(&wish), wish.info());
    let mut inbox = [0u8; 4];
    let _there = there.reg(&mut inbox, REMOTE, 1, 0).unwrap();
    let (fabric, domain) = open_domain(wish.version, info);
    let other = Shared(open_ep(domain, info).1);
    let mut bytes = [6u8; 4];
    let to = [RmaIov {
        addr: 0,
        len: 4,
        key: 1,
    }];
    for round in 0..ROUNDS {
        let side = Side::waiting((fabric, domain), info);
        assert_eq!(bind(side.ep.cast(), side.av.cast(), 0), 0);
        assert_eq!(side.enable(), 0);
        let peer = side.peer(&there);
        let (at, none) = (bytes.as_ptr().cast(), null_mut());
        // SAFETY: the handle is live; the bytes stay valid.
        let write = || unsafe { ((*(*side.ep).rma).write)(side.ep, at, 4, none, peer, 0, 1, none) };
        assert_eq!(again(write), 0);
        while write() == 0 {}
        let (go, done) = (counter(domain), counter(domain));
        let iov = [iovec(&mut bytes)];
        let works: Vec<_> = (0..WORKS)
            .map(|_| {
                let op = DeferredRma {
                    ep: side.ep,
                    msg: rma(&iov, &to, peer),
                    flags: FI_COMPLETION,
                };
                Work::new(FI_OP_WRITE, op, go, 1, done)
            })
            .collect();
        let (over, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
        let closed = scope(|scope| {
            let (over, looks, other) = (&over, &looks, &other);
            let _over = Over(over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert!(poll(other.0).is_none());
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            for work in &works {
                assert_eq!(work.queue(domain), 0);
            }
            add(go, 1);
            until("20 polls", || looks.load(Ordering::Relaxed) > 20);
            let closed = end(&side, &works, go);
            assert_eq!(
                close(go.cast()),
                0,
                "round {round}: work still waits for it"
            );
            closed
        });
        if !closed {
            assert_eq!(close(side.ep.cast()), 0);
        }
        let rest: [*mut Fid; 3] = [side.cq.cast(), side.av.cast(), done.cast()];
        assert_eq!(rest.map(close), [0; 3]);
    }
}

#[test]
fn due_deferred_work_of_a_closed_endpoint_is_not_started() {
    take_back(|side, _, _| {
        assert_eq!(close(side.ep.cast()), 0);
        true
    });
}

#[test]
fn due_deferred_work_can_be_cancelled_before_it_starts() {
    take_back(|side, works, _| {
        for work in works {
            assert_eq!(work.command(side.domain, FI_CANCEL_WORK), 0);
        }
        false
    });
}

#[test]
fn due_deferred_work_can_be_flushed_before_it_starts() {
    take_back(|side, _, go| {
        assert_eq!(control(side.domain.cast(), FI_FLUSH_WORK, go.cast()), 0);
        false
    });
}

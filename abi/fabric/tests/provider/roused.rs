//! Deferred work that becomes due while a program sleeps: the program is woken to start it, and for no other reason.

use crate::deferred::{Work, add, rma};
use crate::harness::*;
use crate::peer::until;
use crate::waiting::*;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// A requesting side, and a sleeping program that responds with deferred work when a counter reaches its threshold.
struct Both {
    asks: Side,
    answers: Side,
    to_answers: u64,
    to_asks: u64,
    /// The region for the response.
    place: Mr,
    answer: [u8; 4],
}

impl Both {
    fn open(place: &mut [u8; 4], flags: u64, prepare: impl FnOnce(&Side)) -> Self {
        let wish = Wish::default();
        let (asks, answers) = (Side::open(&wish), waitable_with(&wish, flags, prepare));
        let (to_answers, to_asks) = (asks.peer(&answers), answers.peer(&asks));
        let place = asks.reg(place, REMOTE, 2, 0).unwrap();
        Self {
            asks,
            answers,
            to_answers,
            to_asks,
            place,
            answer: [6; 4],
        }
    }

    /// Queues the response: a write that completes in the queue.
    fn answer_when(&mut self, trigger: *mut FidCntr, at: u64) {
        let (iov, to) = (
            [iovec(&mut self.answer)],
            [RmaIov {
                addr: 0,
                len: 4,
                key: 2,
            }],
        );
        let op = DeferredRma {
            ep: self.answers.ep,
            msg: rma(&iov, &to, self.to_asks),
            flags: FI_COMPLETION,
        };
        let work = Work::new(FI_OP_WRITE, op, trigger, at, null_mut());
        assert_eq!(work.queue(self.answers.domain), 0);
    }

    /// Another endpoint there whose queue has no descriptor; `prepare` runs before it is enabled.
    fn other(&self, wish: &Wish, prepare: impl FnOnce(*mut FidEp)) -> Side {
        let of = (self.answers.fabric, self.answers.domain);
        let other = Side::waiting(of, wish.info());
        assert_eq!(bind(other.ep.cast(), other.av.cast(), 0), 0);
        prepare(other.ep);
        assert_eq!(other.enable(), 0);
        other
    }

    /// The thread that sleeps until the response has been sent.
    fn sleeper(&self) -> Sleeper {
        Sleeper {
            fabric: Shared(self.answers.fabric),
            cq: Shared(self.answers.cq),
        }
    }

    fn end(self, place: &[u8; 4]) {
        assert_eq!(*place, self.answer);
        assert_eq!(self.place.close(), 0);
    }
}

/// A thread that waits for a queue.
#[derive(Clone, Copy)]
struct Sleeper {
    fabric: Shared<FidFabric>,
    cq: Shared<FidCq>,
}

impl Sleeper {
    /// Waits for one completion, by descriptor or in a call. `fi_trywait` may require another poll, but not forever.
    fn sleep(&self, by_descriptor: bool) {
        let (fabric, cq) = (self.fabric.get(), self.cq.get());
        if !by_descriptor {
            let (code, took) = sread(cq);
            assert_eq!(code, 1);
            return assert!(took < 2 * PATIENCE, "the wait timed out");
        }
        let mut looks = 0;
        loop {
            if let Some(entry) = poll(cq) {
                assert!(entry.is_ok());
                return;
            }
            looks = match trywait(fabric, cq.cast()) {
                0 => {
                    assert!(readable(descriptor(cq.cast())), "the thread was not woken");
                    0
                }
                code => {
                    assert_eq!(code, AGAIN as c_int);
                    looks + 1
                }
            };
            assert!(looks < 100, "fi_trywait keeps returning FI_EAGAIN");
        }
    }
}

/// Ends the test's other threads, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The device counts a peer's writes: they wake the sleeping thread when there are enough of them, and not before.
#[test]
fn a_peers_write_that_makes_deferred_work_due_wakes_the_program() {
    const WRITES: u64 = 3000;
    for by_descriptor in [false, true] {
        let (mut inbox, mut place) = ([0u8; 4], [0u8; 4]);
        let mut both = Both::open(&mut place, 0, |_| {});
        let there = both.answers.reg(&mut inbox, REMOTE, 1, 0).unwrap();
        let hits = counter(both.answers.domain);
        assert_eq!(there.bind(hits, FI_REMOTE_WRITE), 0);
        // Establishes the connections.
        assert_eq!(both.answers.write(both.to_asks, &[1; 4], 0, 2), 0);
        let write = |both: &Both| both.asks.write(both.to_answers, &[3; 4], 0, 1);
        assert_eq!(write(&both), 0);
        both.answer_when(hits, WRITES);
        let (sleeper, thread) = (both.sleeper(), AtomicI32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                note_thread(&thread);
                sleeper.sleep(by_descriptor);
            });
            until_asleep(&thread);
            let before = sleeps(&thread);
            for _ in 2..WRITES {
                assert_eq!(write(&both), 0);
            }
            // The thread may have slept at a lock before its wait.
            let more = sleeps(&thread) - before;
            assert!(more < WRITES / 100, "woken {more} times");
            assert_eq!(write(&both), 0);
        });
        // The region is bound to the counter.
        assert_eq!([close(hits.cast()), there.close()], [0; 2]);
        both.end(&place);
    }
}

/// Another thread's call takes the message that makes work due, but does not start the work.
#[test]
fn a_message_counted_by_one_thread_wakes_another_waiting_thread() {
    const ROUNDS: u64 = 200;
    let (mut hits, mut place) = (null_mut(), [0u8; 4]);
    let mut both = Both::open(&mut place, FI_SELECTIVE_COMPLETION, |side| {
        hits = counter(side.domain);
        assert_eq!(bind(side.ep.cast(), hits.cast(), FI_RECV), 0);
    });
    let (from, to, ep) = (
        Shared(both.asks.ep),
        both.to_answers,
        Shared(both.answers.ep),
    );
    let (round, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ep = ep.get();
            while !done.load(Ordering::Relaxed) {
                // SAFETY: a live handle, and a message of zeros, which names nothing.
                let code = unsafe {
                    let nothing: MsgTagged = std::mem::zeroed();
                    ((*(*ep).tagged).recvmsg)(ep, &nothing, FI_CLAIM)
                };
                assert_eq!(code, -(libc::EINVAL as isize), "nothing was claimed");
            }
        });
        scope.spawn(|| {
            for sent in 0..ROUNDS {
                while round.load(Ordering::Acquire) <= sent {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::yield_now();
                }
                assert_eq!(again(|| inject(from.get(), to)), 0);
            }
        });
        let _ends = Ends(&done);
        let mut inbox = [0u8; 8];
        let sleeper = both.sleeper();
        for next in 1..=ROUNDS {
            recv(both.answers.ep, &mut inbox);
            both.answer_when(hits, next);
            round.store(next, Ordering::Release);
            sleeper.sleep(true);
        }
    });
    both.end(&place);
}

/// The event that triggers the work happens at an endpoint of another queue, and the work is for that endpoint: no
/// thread polls it, and no descriptor reports it.
#[test]
fn deferred_work_of_an_unpolled_endpoint_is_started() {
    for by_descriptor in [false, true] {
        let mut place = [0u8; 4];
        let mut both = Both::open(&mut place, 0, |_| {});
        let domain = both.answers.domain;
        let [hits, done] = [(); 2].map(|()| counter(domain));
        let other = both.other(&Wish::default(), |ep| {
            assert_eq!(bind(ep.cast(), hits.cast(), FI_RECV), 0);
        });
        let mut inbox = [0u8; 8];
        recv(other.ep, &mut inbox);
        // A write over a connection that does not exist yet, and the response when it completes.
        let mut words = [9u8; 4];
        let (iov, to) = (
            [iovec(&mut words)],
            [RmaIov {
                addr: 0,
                len: 4,
                key: 2,
            }],
        );
        let op = DeferredRma {
            ep: other.ep,
            msg: rma(&iov, &to, other.peer(&both.asks)),
            flags: 0,
        };
        let first = Work::new(FI_OP_WRITE, op, hits, 1, done);
        assert_eq!(first.queue(domain), 0);
        both.answer_when(done, 1);
        let (sleeper, thread) = (both.sleeper(), AtomicI32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                note_thread(&thread);
                sleeper.sleep(by_descriptor);
            });
            until_asleep(&thread);
            let to_other = both.asks.peer(&other);
            assert_eq!(again(|| inject(both.asks.ep, to_other)), 0);
        });
        assert_eq!((count(hits), count(done)), (1, 1));
        both.end(&place);
    }
}

/// Work is due at once, and the queue of its endpoint is full. New room wakes no thread.
#[test]
fn deferred_work_that_finds_its_queue_full_is_retried() {
    let mut place = [0u8; 4];
    let at = &raw const place;
    let both = Both::open(&mut place, 0, |_| {});
    let small = Wish {
        queue: 1,
        ..Wish::default()
    };
    let other = both.other(&small, |_| {});
    let mut words = [[9u8; 4], [8; 4]];
    let iov = words.each_mut().map(|words| [iovec(words)]);
    let to = [RmaIov {
        addr: 0,
        len: 4,
        key: 2,
    }];
    let [first, second] = iov
        .each_ref()
        .map(|iov| rma(iov, &to, other.peer(&both.asks)));
    // SAFETY: a live handle, and memory that stays.
    let write = || unsafe { ((*(*other.ep).rma).writemsg)(other.ep, &first, FI_COMPLETION) };
    assert_eq!(again(write), 0);
    let go = counter(other.domain);
    let op = DeferredRma {
        ep: other.ep,
        msg: second,
        flags: FI_COMPLETION,
    };
    let work = Work::new(FI_OP_WRITE, op, go, 1, null_mut());
    assert_eq!(work.queue(other.domain), 0);
    // A write that finds no room makes progress.
    until("the full queue", || write() == AGAIN);
    add(go, 1);
    let (cq, thread) = (both.sleeper().cq, AtomicI32::new(0));
    std::thread::scope(|scope| {
        let sleeps = scope.spawn(|| {
            note_thread(&thread);
            sread(cq.get()).0
        });
        until_asleep(&thread);
        // SAFETY: a live handle, and room for these entries. Reading existing ones makes no progress.
        let read = unsafe {
            let mut room: [CqTaggedEntry; 1024] = std::mem::zeroed();
            ((*(*other.cq).ops).read)(other.cq, room.as_mut_ptr().cast(), room.len())
        };
        assert!((1..1024).contains(&read));
        // SAFETY: our own memory that the device writes.
        until("the write", || unsafe { at.read_volatile() } == [8; 4]);
        // SAFETY: the handle is live.
        assert_eq!(unsafe { ((*(*cq.get()).ops).signal)(cq.get()) }, 0);
        assert_eq!(sleeps.join().unwrap(), AGAIN);
    });
    assert_eq!(both.place.close(), 0);
}

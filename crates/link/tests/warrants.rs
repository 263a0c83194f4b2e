//! Warrants: a requester writes to the responder's memory itself, until the responder revokes the warrant.
// UNSAFETY: tries whether the kernel permits copies.
#![allow(missing_docs, unsafe_code)]

mod common;

use common::{LONG, pair, pair_with};
use rkey_base::memory::ArenaMemory;
use rkey_base::process::cma_read;
use rkey_link::observed::{Direction, Observer};
use rkey_link::peer::{OwnWarrant, PeerWarrant, WARRANT_WRITE_MAX};
use rkey_link::shm::{LinkConfig, ShmLink};
use rkey_link::{AnyLink, Header, Link as _, PullError, Ticket};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The requester's memory: the bytes 1, 2, 3 and so on, at a made-up address.
fn source(len: usize) -> ArenaMemory {
    let memory = ArenaMemory::new(0x1000, len);
    let bytes: Vec<u8> = (1..=u8::MAX).cycle().take(len).collect();
    memory.write(0x1000, &bytes);
    memory
}

/// Whether the kernel permits copies to a process, here to our own. If not, says that the test is skipped.
fn is_permitted() -> bool {
    let (mut to, from) = (0u8, 7u8);
    // SAFETY: both bytes are our own.
    let read = unsafe { cma_read(std::process::id(), &raw mut to, &raw const from as u64, 1) };
    if read.is_err() {
        eprintln!("SKIP: the kernel does not permit process_vm_readv here");
    }
    read.is_ok()
}

fn issue(responder: &ShmLink, requester: &ShmLink) -> (OwnWarrant, PeerWarrant) {
    let issuer = responder.peer().unwrap();
    let own = issuer.warrant_issuer().unwrap().issue().unwrap();
    let fd = own.fd().try_clone_to_owned().unwrap();
    let taker = requester.peer().unwrap();
    let taken = taker
        .warrant_taker()
        .unwrap()
        .take(own.number(), own.canary(), fd);
    (own, taken.unwrap())
}

/// Memory of the responder.
fn target(len: usize) -> (Vec<AtomicU8>, u64) {
    let target: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0)).collect();
    let address = target.as_ptr().expose_provenance() as u64;
    (target, address)
}

fn bytes(target: &[AtomicU8]) -> Vec<u8> {
    target.iter().map(|b| b.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_requester_writes_until_the_warrant_is_revoked() {
    if !is_permitted() {
        return;
    }
    let (requester, responder) = pair();
    let (own, warrant) = issue(&responder, &requester);
    let (other, other_warrant) = issue(&responder, &requester);
    assert_ne!(own.number(), other.number());
    let (target, to) = target(WARRANT_WRITE_MAX);
    let memory = source(WARRANT_WRITE_MAX);
    for (at, len) in [(0, 1), (7, 2), (60, 300), (0, WARRANT_WRITE_MAX)] {
        warrant.write(&memory, to + at as u64, 0x1000, len).unwrap();
        assert_eq!(
            bytes(&target[at..][..len]),
            (1..=u8::MAX).cycle().take(len).collect::<Vec<_>>()
        );
    }
    own.revoke();
    assert!(own.is_idle() && own.is_at_rest(Instant::now() + LONG));
    let refused = warrant.write_bytes(to, &[77; 8]);
    assert_eq!(refused, Err(PullError::Gone));
    assert_eq!(target[0].load(Ordering::Relaxed), 1);
    // Another warrant of the link is not affected.
    other_warrant.write_bytes(to, &[77]).unwrap();
    assert_eq!(target[0].load(Ordering::Relaxed), 77);
}

/// 64 warrants later, another one has the same bit: then only the permit prevents a copy.
#[test]
fn a_revoked_warrant_stays_revoked_when_its_bit_is_reused() {
    if !is_permitted() {
        return;
    }
    let (requester, responder) = pair();
    let (own, warrant) = issue(&responder, &requester);
    own.revoke();
    let later: Vec<_> = (0..64).map(|_| issue(&responder, &requester)).collect();
    let (target, to) = target(8);
    assert_eq!(warrant.write_bytes(to, &[7; 8]), Err(PullError::Gone));
    assert_eq!(bytes(&target), [0; 8]);
    for (_own, warrant) in &later {
        warrant.write_bytes(to, &[7; 8]).unwrap();
    }
    drop(own);
    later[63].1.write_bytes(to, &[8; 8]).unwrap();
}

#[test]
fn errors_say_which_side_is_at_fault() {
    if !is_permitted() {
        return;
    }
    let (requester, responder) = pair();
    let (_own, warrant) = issue(&responder, &requester);
    let (target, to) = target(64);
    let memory = source(64);
    let local = warrant.write(&memory, to, 0x1000, 65);
    assert!(matches!(local, Err(PullError::Local(_))), "{local:?}");
    let remote = warrant.write(&memory, 8, 0x1000, 64);
    assert_eq!(remote, Err(PullError::Remote(8)));
    let wraps = warrant.write(&memory, u64::MAX - 8, 0x1000, 64);
    assert_eq!(wraps, Err(PullError::Remote(u64::MAX - 8)));
    let long = warrant.write(&memory, to, 0x1000, WARRANT_WRITE_MAX + 1);
    assert_eq!(long, Err(PullError::Refused));
    assert_eq!(bytes(&target), [0; 64]);
}

#[test]
fn nothing_else_is_taken_for_a_warrant() {
    if !is_permitted() {
        return;
    }
    let (requester, responder) = pair();
    let (own, _warrant) = issue(&responder, &requester);
    let peer = requester.peer().unwrap();
    let taker = peer.warrant_taker().unwrap();
    let fd = own.fd().try_clone_to_owned().unwrap();
    assert!(taker.take(0, own.canary(), fd).is_err());
    let file = OwnedFd::from(File::open("/dev/zero").unwrap());
    assert!(taker.take(1, own.canary(), file).is_err());
    let fd = own.fd().try_clone_to_owned().unwrap();
    let without_canary = taker.take(own.number(), 8, fd).unwrap();
    let (target, to) = target(8);
    let refused = without_canary.write_bytes(to, &[1; 8]);
    assert_eq!(refused, Err(PullError::Remote(to)));
    assert_eq!(bytes(&target), [0; 8]);
    assert!(peer.warrant_issuer().is_none());
    assert!(responder.peer().unwrap().warrant_taker().is_none());
}

#[test]
fn a_side_can_turn_warrants_off() {
    let on = LinkConfig::default();
    let no_copies = LinkConfig {
        remote_iovec: false,
        ..on
    };
    let (requester, responder) = pair_with(on, no_copies);
    assert!(responder.peer().unwrap().warrant_issuer().is_none());
    assert!(requester.peer().unwrap().warrant_taker().is_none());
    let no_warrants = LinkConfig {
        warrants: false,
        ..on
    };
    let (_requester, responder) = pair_with(on, no_warrants);
    assert!(responder.peer().unwrap().warrant_issuer().is_none());
    for off in [no_copies, no_warrants] {
        let (requester, _responder) = pair_with(off, on);
        assert!(requester.peer().unwrap().warrant_taker().is_none());
    }
}

/// The observer would not see the writes.
#[test]
fn links_with_an_observer_have_no_warrants() {
    #[derive(Debug)]
    struct Blind;
    impl Observer for Blind {
        fn fragment(&mut self, _: Direction, _: &Header, _: &[u8]) {}
        fn acknowledged(&mut self, _: Direction, _: Ticket) {}
    }
    if !is_permitted() {
        return;
    }
    let (requester, responder) = pair();
    assert!(requester.peer().unwrap().warrant_taker().is_some());
    assert!(responder.peer().unwrap().warrant_issuer().is_some());
    for link in [requester, responder] {
        let observed = AnyLink::from(link).observed(Box::new(Blind));
        assert!(observed.peer().unwrap().warrants.is_none());
    }
}

/// A program that the responder's process executes has the same PID, and closes the link's socket.
#[test]
fn a_warrant_ends_with_its_link() {
    if !is_permitted() {
        return;
    }
    let (requester, responder) = pair();
    let (own, warrant) = issue(&responder, &requester);
    let (target, to) = target(8);
    drop(responder);
    assert_eq!(warrant.write_bytes(to, &[1; 8]), Err(PullError::Gone));
    assert_eq!(bytes(&target), [0; 8]);
    own.revoke();
    assert!(own.is_idle(), "usable without the link");
    let (requester2, responder) = pair();
    let (own, warrant) = issue(&responder, &requester2);
    warrant.write_bytes(to, &[1; 8]).unwrap();
    drop(own);
    assert_eq!(warrant.write_bytes(to, &[2; 8]), Err(PullError::Gone));
    assert_eq!(bytes(&target), [1; 8]);
}

/// A requester that never rests: once a revoked warrant is at rest, no byte changes.
#[test]
fn no_byte_changes_once_a_revoked_warrant_is_at_rest() {
    const LEN: usize = 64 << 10;
    if !is_permitted() {
        return;
    }
    let (target, to) = target(LEN);
    let memory = source(LEN);
    let (requester, responder) = pair();
    for round in 0..60 {
        let (own, warrant) = issue(&responder, &requester);
        let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Short writes spend most of their time outside the kernel.
            let len = if round % 2 == 0 { LEN } else { 8 };
            let (written, stop, memory) = (&written, &stop, &memory);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if warrant.write(memory, to, 0x1000, len).is_ok() {
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            while written.load(Ordering::Relaxed) < 10 {
                std::thread::yield_now();
            }
            own.revoke();
            let deadline = Instant::now() + LONG;
            while !own.is_at_rest(deadline) {
                assert!(Instant::now() < deadline, "the requester is never at rest");
                std::thread::yield_now();
            }
            target[..len]
                .iter()
                .for_each(|b| b.store(0, Ordering::Relaxed));
            std::thread::sleep(Duration::from_micros(200));
            let changed = bytes(&target[..len]).iter().any(|b| *b != 0);
            stop.store(true, Ordering::Relaxed);
            assert!(!changed, "round {round}: a byte changed after the end");
        });
    }
}

/// The owner replaces the warrant that was not used for the longest time.
#[test]
fn the_owner_knows_when_a_warrant_was_used_and_that_it_is_given_back() {
    /// The clock is accurate to 10 ms on the slowest kernel.
    const STEP: Duration = Duration::from_millis(20);
    if !is_permitted() {
        return;
    }
    let (requester, responder) = pair();
    let (own, warrant) = issue(&responder, &requester);
    let (other, other_warrant) = issue(&responder, &requester);
    let (_target, to) = target(8);
    let idle = Duration::from_millis(200);
    std::thread::sleep(idle);
    assert!(own.unused_for() + STEP >= idle, "{:?}", own.unused_for());
    let begin = Instant::now();
    warrant.write_bytes(to, &[1; 8]).unwrap();
    let unused = own.unused_for();
    assert!(unused <= begin.elapsed() + STEP, "{unused:?}");
    assert!(other.unused_for() + STEP >= idle);
    assert!(
        warrant
            .take_stall()
            .is_none_or(|it| it.took <= begin.elapsed() + Duration::from_millis(10))
    );
    // A write that copies nothing is no use.
    let failed = other_warrant.write_bytes(8, &[1; 8]);
    assert_eq!(failed, Err(PullError::Remote(8)));
    assert!(other.unused_for() + STEP >= idle);
    drop(warrant);
    assert_eq!(own.unused_for(), Duration::MAX);
    assert!(other.unused_for() < Duration::MAX);
    other.revoke();
    assert!(other_warrant.is_revoked());
}

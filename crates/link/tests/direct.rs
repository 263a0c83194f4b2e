//! Direct leases between two sides in one process: copies, bounds, and revoking leases while
//! another thread copies as fast as it can.

mod common;

use common::{LONG, pair, revoke};
use rkey_base::fault::Fault;
use rkey_base::memory::{ArenaMemory, Memory};
use rkey_base::segment::{Arena, Sharing};
use rkey_base::shared::{OwnBytes, PeerBytes};
use rkey_link::direct::{DirectError, DirectMap, LeaseBoard, LeaseClient, LeaseOffer};
use rkey_link::shm::ShmLink;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Setup {
    requester: ShmLink,
    responder: ShmLink,
    board: LeaseBoard,
    client: LeaseClient,
    arena: Arena,
}

fn setup(len: usize, sharing: Sharing) -> Setup {
    let (requester, responder) = pair();
    let board = responder.lease_board().unwrap();
    let client = requester.lease_client().unwrap();
    assert!(requester.lease_board().is_none() && responder.lease_client().is_none());
    let arena = Arena::create("rkey-test", len, sharing).unwrap();
    Setup {
        requester,
        responder,
        board,
        client,
        arena,
    }
}

impl Setup {
    fn open(&self, grant: &LeaseOffer) -> Result<DirectMap, DirectError> {
        self.client.open(grant, self.arena.duplicate_fd().unwrap())
    }

    fn lease(&self, offset: u64, len: u64, writable: bool) -> (LeaseOffer, DirectMap) {
        let grant = self.board.grant(offset, len, writable).unwrap();
        let map = self
            .open(&LeaseOffer::from_bytes(&grant.to_bytes()).unwrap())
            .unwrap();
        (grant, map)
    }

    /// The current value of a byte of the owner's memory.
    fn byte(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.read(offset, &mut byte);
        byte[0]
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        // A second lease, through which the owner reads its memory, because the tests have no unsafe code.
        let (grant, mut map) = self.lease(offset as u64, into.len() as u64, false);
        map.read(0, into).unwrap();
        drop(map);
        revoke(&self.board, &[grant.id], LONG).unwrap();
    }
}

#[test]
fn copies_through_a_lease_go_to_their_offsets() {
    let s = setup(1 << 20, Sharing::ReadWrite);
    let (_, mut map) = s.lease(5000, 700_000, true);
    let bytes: Vec<u8> = (0..600_000u32).map(|i| (i / 3) as u8).collect();
    map.write(3, &bytes).unwrap();
    map.write(700_000 - 1, &[77]).unwrap();
    let mut seen = vec![0; bytes.len()];
    map.read(3, &mut seen).unwrap();
    assert_eq!(seen, bytes);
    s.read(5003, &mut seen);
    assert_eq!(seen, bytes);
    assert_eq!(s.byte(5000 + 700_000 - 1), 77);
    assert_eq!((s.byte(5002), s.byte(705_000)), (0, 0));

    let memory = ArenaMemory::new(0x1000, 1 << 20);
    memory.write(0x1000, &bytes);
    map.write_from(&memory, 100, 0x1000, bytes.len() as u64)
        .unwrap();
    map.read_to(&memory, 100, 0x1000 + 300_000, bytes.len() as u64)
        .unwrap();
    assert_eq!(memory.read(0x1000 + 300_000, bytes.len()), bytes);
    assert!(matches!(
        map.write_from(&memory, 0, 0, 8),
        Err(DirectError::Fault(_))
    ));
}

#[test]
fn atomics_return_the_old_value_and_check_their_range() {
    let s = setup(4096, Sharing::ReadWrite);
    let (_, mut map) = s.lease(0, 4096, true);
    assert_eq!(map.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(map.fetch_add(8, u64::MAX).unwrap(), 5);
    assert_eq!(map.compare_swap(8, 3, 9).unwrap(), 4);
    assert_eq!(map.compare_swap(8, 4, 9).unwrap(), 4);
    assert_eq!(s.byte(8), 9);
    assert!(matches!(
        map.fetch_add(12, 1),
        Err(DirectError::Misaligned { offset: 12, address }) if address % 8 == 4
    ));
    assert!(matches!(
        map.fetch_add(4096, 1),
        Err(DirectError::OutOfRange { .. })
    ));
}

/// In a lease that does not begin at a multiple of 8, a multiple of 8 is not a valid offset for an atomic.
#[test]
fn an_atomic_in_an_unaligned_lease_is_checked_by_its_address() {
    let s = setup(4096, Sharing::ReadWrite);
    let (_, mut map) = s.lease(4, 64, true);
    assert_eq!(map.fetch_add(4, 5).unwrap(), 0);
    assert_eq!(s.byte(8), 5);
    let refused = map.fetch_add(8, 1).unwrap_err();
    let DirectError::Misaligned { offset: 8, address } = refused else {
        panic!("{refused}");
    };
    assert_eq!(address % 8, 4);
    let sentence =
        format!("atomics need an address that is a multiple of 8, but offset 8 is at {address:#x}");
    assert_eq!(refused.to_string(), sentence);
}

#[test]
fn a_lease_enforces_its_bounds_and_rights() {
    let s = setup(8192, Sharing::ReadWrite);
    let (_, mut map) = s.lease(100, 200, true);
    assert_eq!((map.len(), map.is_writable()), (200, true));
    for (offset, len) in [(0, 201), (200, 1), (u64::MAX, 1), (199, 2), (1, 200)] {
        let bytes = vec![1; len];
        assert!(matches!(
            map.write(offset, &bytes),
            Err(DirectError::OutOfRange { .. })
        ));
    }
    map.write(200, &[]).unwrap();
    let (_, mut readable) = s.lease(0, 8192, false);
    assert!(matches!(
        readable.write(0, &[1]),
        Err(DirectError::ReadOnly)
    ));
    assert!(matches!(
        readable.fetch_add(0, 1),
        Err(DirectError::ReadOnly)
    ));

    let sealed = setup(4096, Sharing::ReadOnly);
    let (_, mut map) = sealed.lease(0, 4096, false);
    map.read(0, &mut [0; 64]).unwrap();
    let grant = sealed.board.grant(0, 4096, true).unwrap();
    assert!(
        matches!(sealed.open(&grant), Err(DirectError::Open(_))),
        "sealed against writing"
    );
    // Past the end.
    let grant = sealed.board.grant(0, 1 << 30, false).unwrap();
    assert!(matches!(sealed.open(&grant), Err(DirectError::Open(_))));
    assert!(sealed.board.grant(0, 0, false).is_none());
    assert!(sealed.board.grant(u64::MAX, 2, false).is_none());
}

#[test]
fn a_revoked_lease_stays_revoked() {
    let s = setup(4096, Sharing::ReadWrite);
    let (grant, mut map) = s.lease(0, 4096, true);
    assert!(map.is_live());
    revoke(&s.board, &[grant.id], LONG).unwrap();
    revoke(&s.board, &[grant.id], LONG).unwrap();
    assert!(matches!(map.write(0, &[1]), Err(DirectError::Revoked)));
    assert!(matches!(map.fetch_add(0, 1), Err(DirectError::Revoked)));
    assert!(!map.is_live());
    assert_eq!(s.byte(0), 0);
    assert_eq!(s.board.out(), 0);
}

#[test]
fn the_number_of_leases_is_limited_and_their_indexes_are_reused() {
    let s = setup(4096, Sharing::ReadWrite);
    let grants: Vec<LeaseOffer> = (0..256)
        .map(|_| s.board.grant(0, 8, true).unwrap())
        .collect();
    assert!(s.board.grant(0, 8, true).is_none());
    let mut old = s.open(&grants[0]).unwrap();
    revoke(&s.board, &[grants[0].id], LONG).unwrap();
    let again = s.board.grant(0, 8, true).unwrap();
    assert_eq!(again.id.index(), grants[0].id.index());
    // The old map could still clear the word that the new one would use.
    assert!(
        matches!(s.open(&again), Err(DirectError::Open(e)) if e.kind() == ErrorKind::ResourceBusy)
    );
    assert!(matches!(old.write(0, &[1]), Err(DirectError::Revoked)));
    let mut new = s.open(&again).unwrap();
    drop(old);
    new.write(0, &[2]).unwrap();
    assert!(
        matches!(s.open(&again), Err(DirectError::Open(_))),
        "opened once"
    );
}

/// Memory in which a read takes as long as the test wants.
struct Slow {
    memory: ArenaMemory,
    entered: AtomicBool,
    go_on: AtomicBool,
}

impl Memory for Slow {
    fn load(&self, dst: OwnBytes<'_>, src: u64) -> Result<(), Fault> {
        self.entered.store(true, Ordering::Release);
        while !self.go_on.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        self.memory.load(dst, src)
    }
    fn store(&self, dst: u64, src: PeerBytes<'_>) -> Result<(), Fault> {
        self.memory.store(dst, src)
    }
    fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        self.memory.store_bytes(dst, src)
    }
    fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        self.memory.load_bytes(dst, src)
    }
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        self.memory.copy(dst, src, len)
    }
    fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.memory.compare_swap(va, compare, swap)
    }
    fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault> {
        self.memory.fetch_add(va, add)
    }
}

/// A copy that does not end: the owner reads its position, detaches those pages, and abandons the lease. Another lease
/// reuses its words only after the copy has ended.
#[test]
fn a_lease_can_be_abandoned_in_the_middle_of_a_copy() {
    let s = setup(1 << 20, Sharing::ReadWrite);
    let (grant, mut map) = s.lease(4096, (1 << 20) - 4096, true);
    assert_eq!(s.board.under_way(grant.id), None);
    let slow = Slow {
        memory: ArenaMemory::new(0x1000, 4096),
        entered: AtomicBool::new(false),
        go_on: AtomicBool::new(false),
    };
    slow.memory.write(0x1000, &[7; 4096]);
    let at = 700_000;
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| map.write_from(&slow, at, 0x1000, 4096));
        while !slow.entered.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let short = Duration::from_millis(5);
        assert!(revoke(&s.board, &[grant.id], short).is_err());
        let touched = s.board.under_way(grant.id).unwrap();
        assert!(touched.start <= at && at + 4096 <= touched.end);
        assert!(touched.end - touched.start <= 512 << 10);
        let pages = (4096 + touched.start as usize)..(1 << 20);
        s.arena.detach(pages.start, pages.len()).unwrap();
        s.board.abandon(grant.id);
        assert_eq!(s.board.out(), 0);
        let others: Vec<LeaseOffer> = std::iter::from_fn(|| s.board.grant(0, 8, true)).collect();
        assert_eq!(others.len(), 255);
        assert!(others.iter().all(|o| o.id.index() != grant.id.index()));
        slow.go_on.store(true, Ordering::Release);
        // The copy ends normally, in pages that no longer belong to the owner.
        copy.join().unwrap().unwrap();
    });
    assert!(matches!(map.write(0, &[1]), Err(DirectError::Revoked)));
    drop(map);
    let again = s.board.grant(0, 8, true).unwrap();
    assert_eq!(again.id.index(), grant.id.index());
    s.open(&again).unwrap().write(0, &[5]).unwrap();
    assert_eq!(s.board.out(), 256);
    #[expect(unsafe_code, reason = "the owner's view of its memory")]
    // SAFETY: the byte is inside the arena, which is alive.
    let ours = unsafe { s.arena.as_ptr().add(4096 + at as usize).read_volatile() };
    assert_eq!(ours, 0, "written after the lease was given up");
}

#[test]
fn a_lease_ends_when_either_side_ends() {
    let s = setup(4096, Sharing::ReadWrite);
    let (_, mut map) = s.lease(0, 4096, true);
    drop(s.responder);
    assert!(matches!(map.write(0, &[1]), Err(DirectError::Revoked)));

    let s = setup(4096, Sharing::ReadWrite);
    let (grant, mut map) = s.lease(0, 4096, true);
    drop(s.requester);
    assert!(matches!(map.write(0, &[1]), Err(DirectError::Gone)));
    revoke(&s.board, &[grant.id], LONG).unwrap();
}

/// Nothing is written after `revoke` has returned, however busy the writer is.
#[test]
fn nothing_is_written_after_a_revocation() {
    const ROUNDS: usize = 300;
    for size in [8, 64 << 10] {
        let s = setup(64 << 10, Sharing::ReadWrite);
        let wrote = AtomicBool::new(false);
        for round in 0..ROUNDS {
            let (grant, mut map) = s.lease(0, 64 << 10, true);
            let bytes = vec![round as u8 | 1; size];
            wrote.store(false, Ordering::Relaxed);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    loop {
                        match map.write(0, &bytes) {
                            Ok(()) => wrote.store(true, Ordering::Relaxed),
                            Err(DirectError::Revoked) => break,
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
                while !wrote.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                revoke(&s.board, &[grant.id], LONG).unwrap();
                // The memory is ours again: clear it, wait briefly, and check it.
                let (mine, mut map) = s.lease(0, 64 << 10, true);
                map.write(0, &vec![0; size]).unwrap();
                for _ in 0..100 {
                    std::hint::spin_loop();
                }
                let mut seen = vec![0; size];
                map.read(0, &mut seen).unwrap();
                assert!(
                    seen.iter().all(|&byte| byte == 0),
                    "a late write in round {round}"
                );
                drop(map);
                revoke(&s.board, &[mine.id], LONG).unwrap();
                writer.join().unwrap();
            });
        }
    }
}

//! Registered memory whose pages are unmapped, become read-only or lose their file during transfers.
#![allow(unsafe_code)] // UNSAFETY: registers memory that is not mapped.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::memory::{Mapped, PAGE, file};
use common::side::{Side, seed_of};
use common::{LONG, pattern};
use rkey_core::{Access, RKey, Region, RegionSpec};
use rkey_device::{AsyncEvent, Config, Cq, Qp};
use rkey_engine::{
    Completion, CompletionOp, QpState, RecvRequest, SendRequest, Sge, Status, Target, Work,
};

const LEN: usize = 64 * PAGE;
/// The part whose pages a test removes: the middle, so that a transfer has begun when it gets there.
const HOLE: usize = 32 * PAGE;
const HOLE_LEN: usize = 16 * PAGE;

/// The fault of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The memory was never mapped, or no longer is.
    Unmapped,
    /// The memory is read-only.
    ReadOnly,
    /// The file of the memory has been truncated.
    Cut,
}

/// Memory with a fault in the middle.
struct Bad {
    memory: Mapped,
    file: std::os::fd::OwnedFd,
    trouble: Trouble,
}

impl Bad {
    fn new(trouble: Trouble) -> Self {
        let file = file(LEN);
        let memory = match trouble {
            Trouble::Cut => Mapped::new(LEN, Some(&file)),
            _ => Mapped::new(LEN, None),
        };
        memory.fill(0, LEN / 8, |word| pattern(1, word));
        Self {
            memory,
            file,
            trouble,
        }
    }

    fn spoil(&self) {
        match self.trouble {
            // The addresses stay reserved, so that no other thread of the test gets them.
            Trouble::Unmapped => self.memory.forbid(HOLE, HOLE_LEN),
            Trouble::ReadOnly => self.memory.protect(HOLE, HOLE_LEN, libc::PROT_READ),
            Trouble::Cut => rustix::fs::ftruncate(&self.file, HOLE as u64).unwrap(),
        }
    }

    fn mend(&self) {
        match self.trouble {
            Trouble::Unmapped => self.memory.map_again(HOLE, HOLE_LEN),
            Trouble::ReadOnly => self.memory.allow(HOLE, HOLE_LEN),
            Trouble::Cut => rustix::fs::ftruncate(&self.file, LEN as u64).unwrap(),
        }
    }
}

/// Two devices of this process, connected by any number of queue pairs; each end has its own queues.
struct Pair {
    near: Side,
    far: Side,
    listener: rkey_device::Listener,
}

struct Ends {
    near: Qp,
    far: Qp,
    near_cq: Cq,
    far_cq: Cq,
}

impl Pair {
    fn new(direct: &str) -> Self {
        let mut config = Config::default();
        config.set("RKEY_DIRECT_COPY", direct).unwrap();
        let near = Side::with(config.clone(), seed_of(20));
        let far = Side::with(config, seed_of(21));
        let listener = far.listen();
        Self {
            near,
            far,
            listener,
        }
    }

    fn connect(&self) -> Ends {
        let near_cq = self.near.device.create_cq(64, None).unwrap();
        let far_cq = self.far.device.create_cq(64, None).unwrap();
        let ends = Ends {
            near: self.near.qp_on(&near_cq),
            far: self.far.qp_on(&far_cq),
            near_cq,
            far_cq,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let incoming = self.listener.accept(Some(LONG)).unwrap();
                incoming.accept(&[&ends.far], &[]).unwrap();
            });
            let address = self.listener.local_address();
            self.near
                .device
                .connect(address, &[&ends.near], &[], LONG)
                .unwrap();
        });
        ends
    }
}

fn register(side: &Side, memory: &Mapped) -> Region {
    let ranges = [memory.range()];
    let rights = Access::REMOTE | Access::LOCAL_READ | Access::LOCAL_WRITE;
    let spec = RegionSpec::new(side.domain, &ranges, rights);
    // SAFETY: accessed through atomics only, and deregistered before it is finally unmapped.
    unsafe { side.device.register(&spec) }.unwrap()
}

fn target(memory: &Mapped, region: &Region, at: usize) -> Target {
    Target {
        addr: memory.base() + at as u64,
        key: RKey::Device(region.key),
    }
}

fn sge(memory: &Mapped, region: &Region, at: usize, len: usize) -> Sge {
    Sge {
        addr: memory.base() + at as u64,
        len: len as u32,
        key: region.local_key,
    }
}

fn next(cq: &Cq) -> Completion {
    let until = Instant::now() + LONG;
    let mut one = [Completion::default()];
    while Instant::now() < until {
        if cq.poll(&mut one).unwrap() == 1 {
            return one[0];
        }
    }
    panic!("no completion");
}

/// An event about a queue pair, except for its establishment and the loss of its peer.
fn event_of(side: &Side, qp: &Qp) -> Option<AsyncEvent> {
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        match side
            .device
            .next_event(Some(Duration::from_millis(100)))
            .unwrap()
        {
            Some(
                event @ (AsyncEvent::AccessError { qpn, .. }
                | AsyncEvent::RequestError { qpn, .. }
                | AsyncEvent::QpFatal { qpn, .. }),
            ) if qpn == qp.qpn() => return Some(event),
            _ => {}
        }
    }
    None
}

/// Ranges that hit the fault: small, medium and large, the last two beginning in good memory.
const SIZES: [(usize, usize); 3] = [(HOLE + 64, 64), (HOLE - 512, 4096), (0, LEN)];

fn reads(trouble: Trouble) -> bool {
    trouble != Trouble::ReadOnly
}

/// Faults in the target's memory: writes to it, reads from it, and atomics on it.
fn remote_trouble(pair: &Pair, trouble: Trouble) {
    for (at, len) in SIZES {
        for opcode in [
            CompletionOp::Write,
            CompletionOp::Read,
            CompletionOp::FetchAdd,
            CompletionOp::CompareSwap,
        ] {
            if opcode == CompletionOp::Read && !reads(trouble) {
                continue;
            }
            let what = format!("{trouble:?}: {opcode:?} of {len} B");
            let ends = pair.connect();
            let bystander = pair.connect();
            let bad = Bad::new(trouble);
            let region = register(&pair.far, &bad.memory);
            let good = Mapped::new(LEN, None);
            good.fill(0, LEN / 8, |word| pattern(2, word));
            let local = register(&pair.near, &good);
            let remote = target(&bad.memory, &region, at);
            let hole = target(&bad.memory, &region, HOLE + 64);
            let (work, len) = match opcode {
                CompletionOp::Write => (Work::Write { remote, imm: None }, len),
                CompletionOp::Read => (Work::Read { remote }, len),
                CompletionOp::FetchAdd => (
                    Work::FetchAdd {
                        remote: hole,
                        add: 1,
                    },
                    8,
                ),
                _ => {
                    let work = Work::CompareSwap {
                        remote: hole,
                        compare: pattern(1, (HOLE + 64) / 8),
                        swap: 1,
                    };
                    (work, 8)
                }
            };
            bad.spoil();
            let from = if opcode == CompletionOp::Write { at } else { 0 };
            let sges = [sge(&good, &local, from, len)];
            ends.near
                .post_send(&SendRequest::new(1, work, &sges))
                .unwrap();
            ends.near
                .post_send(&SendRequest::new(2, work, &sges))
                .unwrap();
            let done = next(&ends.near_cq);
            assert_eq!(
                (done.id, done.status),
                (1, Status::RemoteOperation),
                "{what}"
            );
            let done = next(&ends.near_cq);
            assert_eq!((done.id, done.status), (2, Status::Flushed), "{what}");
            // The other side also gets an event, and its report has the address.
            assert_eq!(ends.far.query().unwrap().state, QpState::Error, "{what}");
            assert!(event_of(&pair.far, &ends.far).is_some(), "{what}: no event");
            let report = pair.far.device.denials().pop().expect("no report");
            let text = report.denial.to_string();
            assert!(text.contains("0x"), "{what}: {text}");
            // Other queue pairs are unaffected.
            assert_unaffected(pair, &bystander, &bad, &region, &good, &local);
            bad.mend();
            works_again(pair, (&bad, &region), (&good, &local), &what);
            pair.far.device.deregister(region).unwrap();
            pair.near.device.deregister(local).unwrap();
        }
    }
}

/// Checks another queue pair between the same devices, and the good part of the same region.
fn assert_unaffected(
    pair: &Pair,
    other: &Ends,
    bad: &Bad,
    region: &Region,
    good: &Mapped,
    local: &Region,
) {
    let write = Work::Write {
        remote: target(&bad.memory, region, PAGE),
        imm: None,
    };
    let done = pair
        .near
        .finish(&other.near, write, &[sge(good, local, PAGE, PAGE)]);
    assert_eq!(done.status, Status::Success);
    let first = PAGE / 8;
    assert_eq!(bad.memory.word(first), good.word(first));
}

/// Once there are pages again, and a new connection, the same key works over the whole length.
fn works_again(pair: &Pair, bad: (&Bad, &Region), good: (&Mapped, &Region), what: &str) {
    let ends = pair.connect();
    let all = |word: usize| pattern(2, word);
    good.0.fill(0, LEN / 8, all);
    let write = Work::Write {
        remote: target(&bad.0.memory, bad.1, 0),
        imm: None,
    };
    let sges = [sge(good.0, good.1, 0, LEN)];
    let done = pair.near.finish(&ends.near, write, &sges);
    assert_eq!(done.status, Status::Success, "{what}: after restoring");
    let other = bad
        .0
        .memory
        .first_other(0, LEN / 8, |word, value| value == all(word));
    assert_eq!(other, None, "{what}: after restoring");
}

/// Inaccessible memory of the target causes an error on both sides, whatever the operation, its size and the copy
/// mechanism. No process gets a signal, other queue pairs continue, and restored memory works.
///
/// Proves: FI-031
#[test]
fn faults_in_the_targets_memory_are_errors_at_both_sides() {
    for direct in ["auto", "off"] {
        let pair = Pair::new(direct);
        for trouble in [Trouble::Unmapped, Trouble::ReadOnly, Trouble::Cut] {
            remote_trouble(&pair, trouble);
        }
    }
}

/// Faults in the initiator's memory: in sources of writes and sends, and destinations of reads.
#[test]
fn faults_in_the_initiators_memory_fail_the_request() {
    for direct in ["auto", "off"] {
        let pair = Pair::new(direct);
        for trouble in [Trouble::Unmapped, Trouble::ReadOnly, Trouble::Cut] {
            for (at, len) in SIZES {
                for opcode in [CompletionOp::Write, CompletionOp::Send, CompletionOp::Read] {
                    if opcode != CompletionOp::Read && !reads(trouble) {
                        continue;
                    }
                    local_trouble(&pair, trouble, at, len, opcode);
                }
            }
        }
    }
}

fn local_trouble(pair: &Pair, trouble: Trouble, at: usize, len: usize, opcode: CompletionOp) {
    let what = format!("{trouble:?}: {opcode:?} of {len} B");
    let ends = pair.connect();
    let bad = Bad::new(trouble);
    let local = register(&pair.near, &bad.memory);
    let good = Mapped::new(LEN, None);
    good.fill(0, LEN / 8, |word| pattern(2, word));
    let region = register(&pair.far, &good);
    let receive = [sge(&good, &region, 0, LEN)];
    for id in 10..12 {
        let request = RecvRequest { id, sges: &receive };
        ends.far.post_recv(&request).unwrap();
    }
    let remote = target(&good, &region, 0);
    let work = match opcode {
        CompletionOp::Write => Work::Write { remote, imm: None },
        CompletionOp::Read => Work::Read { remote },
        _ => Work::Send {
            imm: None,
            invalidate: None,
        },
    };
    bad.spoil();
    let sges = [sge(&bad.memory, &local, at, len)];
    ends.near
        .post_send(&SendRequest::new(1, work, &sges))
        .unwrap();
    let done = next(&ends.near_cq);
    assert_eq!(
        (done.id, done.status),
        (1, Status::LocalProtection),
        "{what}"
    );
    assert_eq!(ends.near.query().unwrap().state, QpState::Error, "{what}");
    let report = pair.near.device.denial(done.vendor).expect("no report");
    assert!(report.denial.to_string().contains("0x"), "{what}");
    // A message that arrived in part does not keep its receive waiting.
    let mut one = [Completion::default()];
    std::thread::sleep(Duration::from_millis(2));
    if ends.far_cq.poll(&mut one).unwrap() == 1 {
        assert_eq!(one[0].id, 10, "{what}");
        assert!(!one[0].status.is_success(), "{what}: {:?}", one[0]);
    }
    bad.mend();
    bad.memory.fill(0, LEN / 8, |word| pattern(3, word));
    let again = pair.connect();
    let write = Work::Write { remote, imm: None };
    let sges = [sge(&bad.memory, &local, 0, LEN)];
    let done = pair.near.finish(&again.near, write, &sges);
    assert_eq!(done.status, Status::Success, "{what}: after restoring");
    let other = good.first_other(0, LEN / 8, |word, value| value == pattern(3, word));
    assert_eq!(other, None, "{what}: after restoring");
    drop((ends, again));
    pair.near.device.deregister(local).unwrap();
    pair.far.device.deregister(region).unwrap();
}

/// Receive buffers that cannot be written cause an error at the receiver and the sender.
#[test]
fn faults_in_receive_buffers_are_errors_at_both_sides() {
    for direct in ["auto", "off"] {
        let pair = Pair::new(direct);
        for trouble in [Trouble::Unmapped, Trouble::ReadOnly, Trouble::Cut] {
            for (at, len) in SIZES {
                let what = format!("{trouble:?}: a message of {len} B");
                let ends = pair.connect();
                let bad = Bad::new(trouble);
                let region = register(&pair.far, &bad.memory);
                let good = Mapped::new(LEN, None);
                let local = register(&pair.near, &good);
                let receive = [sge(&bad.memory, &region, at, len)];
                for id in 10..12 {
                    let request = RecvRequest { id, sges: &receive };
                    ends.far.post_recv(&request).unwrap();
                }
                bad.spoil();
                let send = Work::Send {
                    imm: None,
                    invalidate: None,
                };
                let done = pair
                    .near
                    .finish(&ends.near, send, &[sge(&good, &local, 0, len)]);
                assert_eq!(done.status, Status::RemoteOperation, "{what}");
                let done = next(&ends.far_cq);
                assert_eq!(
                    (done.id, done.status),
                    (10, Status::LocalProtection),
                    "{what}"
                );
                let done = next(&ends.far_cq);
                assert_eq!((done.id, done.status), (11, Status::Flushed), "{what}");
                drop(ends);
                pair.far.device.deregister(region).unwrap();
                pair.near.device.deregister(local).unwrap();
            }
        }
    }
}

/// Registering unmapped addresses is allowed, and an access fails. Once pages are mapped, the same key reaches them,
/// and later other pages at the same addresses, without a call to the device.
///
/// Proves: FI-064
#[test]
fn a_region_reaches_pages_that_are_mapped_later_at_its_addresses() {
    for direct in ["auto", "off"] {
        let pair = Pair::new(direct);
        let memory = Mapped::reserved(LEN);
        let region = register(&pair.far, &memory);
        let good = Mapped::new(LEN, None);
        let local = register(&pair.near, &good);
        for (at, len) in [(0, 64), (0, LEN)] {
            let ends = pair.connect();
            let write = Work::Write {
                remote: target(&memory, &region, at),
                imm: None,
            };
            let done = pair
                .near
                .finish(&ends.near, write, &[sge(&good, &local, 0, len)]);
            assert_eq!(done.status, Status::RemoteOperation);
        }
        let ends = pair.connect();
        for round in 0..5 {
            // Map new pages, without the earlier contents.
            memory.unmap(0, LEN);
            memory.map_again(0, LEN);
            assert_eq!(memory.first_other(0, LEN / 8, |_, value| value == 0), None);
            good.fill(0, LEN / 8, |word| pattern(round, word));
            let write = Work::Write {
                remote: target(&memory, &region, 0),
                imm: None,
            };
            let done = pair
                .near
                .finish(&ends.near, write, &[sge(&good, &local, 0, LEN)]);
            assert_eq!(done.status, Status::Success);
            let other = memory.first_other(0, LEN / 8, |word, value| value == pattern(round, word));
            assert_eq!(other, None, "round {round}");
        }
        drop(ends);
        pair.far.device.deregister(region).unwrap();
        pair.near.device.deregister(local).unwrap();
    }
}

/// Sets the flag on drop, also after a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pages vanish and return during large writes and reads: each transfer succeeds or fails, none hangs, no process
/// gets a signal, and memory next to the region is unchanged.
#[test]
fn transfers_succeed_or_fail_while_pages_vanish_and_return() {
    for direct in ["auto", "off"] {
        let pair = Pair::new(direct);
        let memory = Mapped::new(LEN + 2 * PAGE, None);
        let canary = 0x1234_5678_9abc_def0;
        memory.fill(0, LEN / 8 + 2 * PAGE / 8, |_| canary);
        let range = memory.range().slice(PAGE as u64, LEN as u64).unwrap();
        let ranges = [range];
        let spec = RegionSpec::new(
            pair.far.domain,
            &ranges,
            Access::REMOTE | Access::LOCAL_WRITE,
        );
        // SAFETY: accessed through atomics only, and deregistered before it is finally unmapped.
        let region = unsafe { pair.far.device.register(&spec) }.unwrap();
        let good = Mapped::new(LEN, None);
        let local = register(&pair.near, &good);
        let over = AtomicBool::new(false);
        let deadline = Instant::now() + LONG;
        let (mut failed, mut succeeded, mut wrong) = (0u32, 0u32, None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut turn = 0usize;
                while !over.load(Ordering::Relaxed) {
                    turn += 1;
                    let at = PAGE + turn * 7 % 56 * PAGE;
                    let protection = [libc::PROT_NONE, libc::PROT_READ][turn % 2];
                    memory.protect(at, 8 * PAGE, protection);
                    std::thread::sleep(Duration::from_micros(100));
                    memory.allow(at, 8 * PAGE);
                    std::thread::sleep(Duration::from_micros(400));
                }
            });
            let _stop = Stop(&over);
            let mut ends = pair.connect();
            while wrong.is_none() && (failed < 100 || succeeded < 100) && Instant::now() < deadline
            {
                let remote = target(&memory, &region, PAGE);
                let work = match (failed + succeeded) % 2 {
                    0 => Work::Write { remote, imm: None },
                    _ => Work::Read { remote },
                };
                let sges = [sge(&good, &local, 0, LEN)];
                match pair.near.finish(&ends.near, work, &sges).status {
                    Status::Success => succeeded += 1,
                    Status::RemoteOperation => {
                        failed += 1;
                        ends = pair.connect();
                    }
                    other => wrong = Some(other),
                }
            }
        });
        eprintln!("direct {direct}: {succeeded} succeeded, {failed} failed");
        assert_eq!(wrong, None, "only the target's pages changed");
        assert!(succeeded > 0 && failed > 0);
        for (start, words) in [(0, PAGE / 8), ((PAGE + LEN) / 8, PAGE / 8)] {
            let other = memory.first_other(start, words, |_, value| value == canary);
            assert_eq!(other, None, "memory outside the region was changed");
        }
        pair.far.device.deregister(region).unwrap();
        pair.near.device.deregister(local).unwrap();
    }
}

//! What ends a warrant, while the peer writes under it as fast as it can. Both devices are in this process, so a test can keep the target's
//! engine from running, and see what both engines know. `tests/warrants/` has the tests with two processes.
// UNSAFETY: registers memory that is accessed only through atomics.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rkey_base::process::cma_read;
use rkey_core::{Access, Change, DomainId, RKey, Region, RegionSpec};
use rkey_engine::{Completion, QpAttributes, QpState, SendRequest, Sge, Status};
use rkey_engine::{Target, Work};
use rkey_link::LinkRole;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::*;
use crate::{Config, Cq, Device, Listener, Qp, QpOptions};

mod ends;
mod limits;
mod order;
mod stalls;

/// Only a hang lasts longer.
const LONG: Duration = Duration::from_secs(60);
/// As much as the longest push writes.
const WORDS: usize = (256 << 10) / 8;

/// A device with some memory.
struct Side {
    region: Mutex<Region>,
    memory: &'static [AtomicU64],
    cq: Cq,
    domain: DomainId,
    device: Device,
}

impl Side {
    fn open() -> Self {
        let device = Device::open(Config::default()).unwrap();
        let domain = device.create_domain().unwrap();
        let cq = device.create_cq(64, None).unwrap();
        let memory: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let memory: &'static [AtomicU64] = memory.leak();
        let region = Mutex::new(register(&device, domain, memory));
        Self {
            region,
            memory,
            cq,
            domain,
            device,
        }
    }

    fn qp(&self) -> Qp {
        let options = QpOptions::new(self.domain, &self.cq);
        self.device.create_qp(&options).unwrap()
    }

    fn address_of(&self, word: usize) -> u64 {
        &raw const self.memory[word] as u64
    }

    fn word(&self, word: usize) -> u64 {
        self.memory[word].load(Ordering::Acquire)
    }

    fn sge(&self, word: usize, len: usize) -> Sge {
        Sge {
            addr: self.address_of(word),
            len: len as u32,
            key: self.region.lock().local_key,
        }
    }

    fn driver(&self) -> &EngineDriver {
        &self.device.shared().driver
    }

    fn at(&self, word: usize) -> Target {
        Target {
            addr: self.address_of(word),
            key: RKey::Device(self.region.lock().key),
        }
    }

    fn poll(&self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.cq.poll(&mut one).unwrap() == 1).then(|| one[0])
    }

    fn next(&self) -> Completion {
        self.next_within(LONG).expect("no completion came")
    }

    fn next_within(&self, time: Duration) -> Option<Completion> {
        let deadline = Instant::now() + time;
        loop {
            match self.poll() {
                None if Instant::now() < deadline => {}
                completion => return completion,
            }
        }
    }

    /// The number of warrants that peers have.
    fn issued(&self) -> u32 {
        let links = self.device.inspect().unwrap().links;
        links.iter().map(|link| link.warrants).sum()
    }

    /// The link over which the peer writes.
    fn inbound_link(&self) -> LinkId {
        let engine = self.driver().lock();
        let mut links = engine.links();
        let inbound =
            links.find(|(_, link)| link.role() == LinkRole::Responder && link.peer().is_some());
        inbound.unwrap().0
    }
}

fn register(device: &Device, domain: DomainId, memory: &'static [AtomicU64]) -> Region {
    let ranges = [VaRange::new(memory.as_ptr() as u64, memory.len() as u64 * 8).unwrap()];
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE;
    let spec = RegionSpec::new(domain, &ranges, access);
    // SAFETY: the memory is accessed only through atomics, and is never freed.
    unsafe { device.register(&spec) }.unwrap()
}

/// Set when it is dropped, so that the other threads of a test that fails end, too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// An initiator and its target, connected.
struct Pair {
    qps: Vec<Qp>,
    initiator: Side,
    theirs: Mutex<Vec<Qp>>,
    target: Side,
    _listener: Listener,
}

fn write_to(remote: Target) -> Work {
    Work::Write { remote, imm: None }
}

impl Pair {
    /// `None` if the kernel does not permit copies, which it says.
    fn connect() -> Option<Self> {
        Self::with_qps(1)
    }

    fn with_qps(count: usize) -> Option<Self> {
        let (mut to, from) = (0u8, 7u8);
        // SAFETY: both bytes are our own.
        let read = unsafe { cma_read(std::process::id(), &raw mut to, &raw const from as u64, 1) };
        if read.is_err() || !rkey_link::peer::PeerWarrant::fits(8) {
            eprintln!("SKIP: no writes under warrants here");
            return None;
        }
        let (initiator, target) = (Side::open(), Side::open());
        let listener = target
            .device
            .listen("127.0.0.1:0".parse().unwrap())
            .unwrap();
        let of = |side: &Side| (0..count).map(|_| side.qp()).collect::<Vec<Qp>>();
        let (qps, theirs) = (of(&initiator), of(&target));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let qps: Vec<&Qp> = theirs.iter().collect();
                let incoming = listener.accept(Some(LONG)).unwrap();
                incoming.accept(&qps, &[]).unwrap();
            });
            let qps: Vec<&Qp> = qps.iter().collect();
            let address = listener.local_address();
            initiator.device.connect(address, &qps, &[], LONG).unwrap();
        });
        Some(Self {
            qps,
            initiator,
            theirs: Mutex::new(theirs),
            target,
            _listener: listener,
        })
    }

    /// Connects, and gets a warrant for the target's memory.
    fn with_warrant() -> Option<Self> {
        let pair = Self::connect()?;
        pair.get_warrant(&pair.qps[0]);
        Some(pair)
    }

    fn pushed(&self) -> u64 {
        let links = self.initiator.device.inspect().unwrap().links;
        links.iter().map(|link| link.pushed).sum()
    }

    fn post(&self, qp: &Qp, to: Target, len: usize) {
        let sges = [self.initiator.sge(0, len)];
        let request = SendRequest::new(1, write_to(to), &sges);
        qp.post_send(&request).unwrap();
    }

    fn write(&self, qp: &Qp) {
        self.post(qp, self.target.at(0), 8);
        assert_eq!(self.initiator.next().status, Status::Success);
    }

    /// Writes while the target's engine cannot run. A write that is not pushed is slow.
    fn write_slowly(&self, qp: &Qp) {
        let engine = self.target.driver().lock();
        self.post(qp, self.target.at(0), 8);
        let early = self.initiator.next_within(Duration::from_millis(1));
        drop(engine);
        let completion = early.unwrap_or_else(|| self.initiator.next());
        assert_eq!(completion.status, Status::Success);
    }

    /// Makes slow writes until one is pushed.
    fn get_warrant(&self, qp: &Qp) {
        let deadline = Instant::now() + LONG;
        self.write(qp);
        let before = self.pushed();
        for _ in 0..4 {
            self.write_slowly(qp);
        }
        while self.pushed() == before {
            assert!(Instant::now() < deadline, "no write was pushed");
            std::thread::sleep(Duration::from_micros(200));
            self.write(qp);
        }
    }

    /// Writes `len` bytes again and again, each time other ones, until a write fails or `stop` is set. Counts the writes that
    /// have succeeded.
    fn write_until(&self, len: usize, stop: &AtomicBool, done: &AtomicU64) {
        let qp = &self.qps[0];
        let to = self.target.at(0);
        for round in 1.. {
            let words = &self.initiator.memory[..len.div_ceil(8)];
            words
                .iter()
                .for_each(|word| word.store(round, Ordering::Relaxed));
            self.post(qp, to, len);
            let completion = loop {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Some(completion) = self.initiator.poll() {
                    break completion;
                }
            };
            if completion.status != Status::Success {
                return;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs `end` in the middle of a push of all of the memory. Once it has returned, nothing writes to the memory.
    ///
    /// A push is one system call. Two threads that share a processor with each other, because others keep the rest busy, rarely see
    /// one in progress.
    fn end_during_a_push(&self, end: impl FnOnce(&Self)) {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let memory = self.target.memory;
        let usable = sched_getaffinity(None).unwrap();
        let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&it| usable.is_set(it))
            .collect();
        let go_to = |processor: Option<&usize>| {
            let mut one = CpuSet::new();
            processor.into_iter().for_each(|&it| one.set(it));
            sched_setaffinity(None, &one).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                go_to(processors.last());
                self.write_until(8 * WORDS, &stop, &done);
            });
            go_to(processors.first());
            let _stop = Stop(&stop);
            let deadline = Instant::now() + LONG;
            // The first word is new, the last one old: a copy is in progress.
            let word = |index: usize| memory[index].load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < 3 || word(0) <= word(WORDS - 1) {
                assert!(
                    Instant::now() < deadline,
                    "no push was seen in progress: {done:?} writes, {} pushes, first and last word {} and {}",
                    self.pushed(),
                    word(0),
                    word(WORDS - 1),
                );
                std::hint::spin_loop();
            }
            sched_setaffinity(None, &usable).unwrap();
            end(self);
            let changed = first_change(memory);
            assert_eq!(changed, None, "a word changed after the end");
        });
    }
}

/// Clears the memory, and looks for a word that changes. The last word is cleared first, because copies are in ascending order.
fn first_change(memory: &[AtomicU64]) -> Option<usize> {
    let words = memory.iter().rev();
    words.for_each(|word| word.store(0, Ordering::Relaxed));
    let end = Instant::now() + Duration::from_millis(3);
    let mut changed = None;
    while changed.is_none() && Instant::now() < end {
        let mut words = memory.iter();
        changed = words.position(|word| word.load(Ordering::Relaxed) != 0);
    }
    changed
}

/// How often a push is interrupted in each way.
const ROUNDS: usize = 24;

/// Interrupts pushes with the end of a right. New devices for each.
fn pushes_end(end: impl Fn(&Pair)) {
    for _ in 0..ROUNDS {
        let Some(pair) = Pair::with_warrant() else {
            return;
        };
        pair.end_during_a_push(&end);
    }
}

#[test]
fn pushes_end_before_a_region_is_deregistered() {
    pushes_end(|pair| {
        let region = *pair.target.region.lock();
        pair.target.device.deregister(region).unwrap();
    });
    pushes_end(|pair| {
        let region = *pair.target.region.lock();
        pair.target.device.revoke_and_deregister(region).unwrap();
    });
}

#[test]
fn pushes_end_before_a_region_has_changed() {
    let change = Change {
        access: Some(Access::LOCAL_WRITE | Access::REMOTE_READ),
        ..Change::default()
    };
    pushes_end(|pair| {
        let region = *pair.target.region.lock();
        // SAFETY: the same memory, with fewer rights.
        unsafe { pair.target.device.change_region(region, &change) }.unwrap();
    });
    pushes_end(|pair| {
        let region = *pair.target.region.lock();
        // SAFETY: as above.
        unsafe { pair.target.device.reregister(region, &change) }.unwrap();
    });
}

#[test]
fn pushes_end_before_a_queue_pair_is_destroyed() {
    pushes_end(|pair| pair.theirs.lock().clear());
}

#[test]
fn pushes_end_before_a_queue_pair_leaves_its_state_or_loses_its_rights() {
    for state in [QpState::Error, QpState::Reset] {
        pushes_end(|pair| {
            let qps = pair.theirs.lock();
            qps[0].modify(&QpAttributes::to(state)).unwrap();
        });
    }
    pushes_end(|pair| {
        let mut attributes = QpAttributes::to(QpState::Rts);
        attributes.access = Some(Access::REMOTE_READ);
        pair.theirs.lock()[0].modify(&attributes).unwrap();
    });
}

/// The link ends first. The region, which has no warrant any more, waits for the copy all the same.
#[test]
fn pushes_over_a_lost_link_end_before_a_region_is_deregistered() {
    pushes_end(|pair| {
        let shared = pair.target.device.shared();
        let link = pair.target.inbound_link();
        let closed = rkey_link::DownReason::Closed;
        let detached = shared.driver.command(|engine| engine.detach(link, closed));
        assert!(detached.is_some());
        let region = *pair.target.region.lock();
        pair.target.device.deregister(region).unwrap();
    });
}

/// While memory is replaced, peers do not push to it. Then the initiator may get a new warrant.
#[test]
fn nothing_is_pushed_during_a_pause() {
    for _ in 0..ROUNDS {
        let Some(pair) = Pair::with_warrant() else {
            return;
        };
        pair.end_during_a_push(|pair| {
            let shared = pair.target.device.shared();
            let memory = pair.target.memory;
            let pause = |act: &mut dyn FnMut()| {
                shared.reclaim.remote_copies.pause(&shared.driver, act);
            };
            let mut changed = None;
            pause(&mut || changed = first_change(memory));
            assert_eq!(changed, None, "a word changed during the pause");
            assert_eq!(pair.target.issued(), 0);
            let _ = pair.target.inbound_link();
            let region = *pair.target.region.lock();
            pair.target.device.deregister(region).unwrap();
        });
    }
    let Some(pair) = Pair::with_warrant() else {
        return;
    };
    let shared = pair.target.device.shared();
    shared.reclaim.remote_copies.pause(&shared.driver, || {});
    pair.get_warrant(&pair.qps[0]);
}

/// Each write is either pushed before a counter is bound, or counted.
#[test]
fn a_counter_counts_every_write_that_is_not_pushed() {
    const COUNTER: u32 = 7;
    // A trial in the ring before the counter is bound would not be counted. The first one comes after 1024 pushes.
    const FEW: u64 = 1000;
    let mut rounds = 0;
    for _ in 0..ROUNDS {
        let Some(pair) = Pair::with_warrant() else {
            return;
        };
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let before = pair.pushed();
        let is_exact = std::thread::scope(|scope| {
            scope.spawn(|| pair.write_until(8, &stop, &done));
            let _stop = Stop(&stop);
            let writes = || done.load(Ordering::Acquire);
            let wait = |count| {
                let deadline = Instant::now() + LONG;
                while writes() < count {
                    assert!(Instant::now() < deadline, "the writes have stopped");
                    std::thread::yield_now();
                }
            };
            wait(100);
            let region = *pair.target.region.lock();
            let device = &pair.target.device;
            device.bind_counter(region.id, COUNTER).unwrap();
            let pushed = pair.pushed();
            wait(writes() + 200);
            assert_eq!(pair.pushed(), pushed, "a region with a counter");
            pushed - before < FEW
        });
        if !is_exact {
            continue;
        }
        rounds += 1;
        // The writer may have stopped before the completion of its last write.
        while pair
            .initiator
            .next_within(Duration::from_millis(5))
            .is_some()
        {}
        let writes = pair.target.word(0);
        let counted = pair.target.device.counter(COUNTER).writes;
        assert_eq!(counted, writes - (pair.pushed() - before));
    }
    assert!(rounds > 0, "this machine is too slow");
}

/// The target's engine is quick again: then the ring is better, and the initiator finds out.
#[test]
fn pushes_end_once_the_target_polls() {
    let Some(pair) = Pair::with_warrant() else {
        return;
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(pair.target.poll().is_none());
            }
        });
        let _stop = Stop(&stop);
        let deadline = Instant::now() + LONG;
        let mut last = 0;
        loop {
            pair.write(&pair.qps[0]);
            let now = pair.pushed();
            if now == last {
                break;
            }
            last = now;
            assert!(Instant::now() < deadline, "all writes are pushed");
        }
    });
}

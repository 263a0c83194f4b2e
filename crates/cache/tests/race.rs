//! One thread unmaps an address and another gets it at once: tests the gap between a change and its event.
//!
//! A test sends a number from a buffer through a registrar that pins; another number arrives if the entry is stale.
//! `RKEY_TEST_CACHE_RACES` sets the number of attempts (20,000 if unset).

mod common;

use common::memory::{Arena, stamp};
use common::ring::Ring;
use common::{RACES, SEND, Tally, races};
use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Entries, Kind, Monitor, Options, Reader, Refusal, Sees, TooManyCaches, Userfaultfd,
    Verdict, Why,
};
use rustix::event::Timespec;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A monitor that can leave out steps of the validation.
struct LeavesOut {
    monitor: Userfaultfd,
    steps: Steps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steps {
    /// All steps.
    Full,
    /// The kernel is not asked; what has been read is applied.
    NoQuestion,
    /// None: only events end entries, as in well-known caches.
    Events,
}

impl Monitor for LeavesOut {
    fn name(&self) -> &'static str {
        self.monitor.name()
    }
    fn sees(&self) -> Sees {
        self.monitor.sees()
    }
    fn attach(&self, entries: &Arc<Entries>) -> Result<(), TooManyCaches> {
        self.monitor.attach(entries)
    }
    fn detach(&self, entries: &Arc<Entries>) {
        self.monitor.detach(entries);
    }
    fn watch(&self, range: VaRange) -> Result<(), Refusal> {
        self.monitor.watch(range)
    }
    fn confirm(&self, range: VaRange) -> Verdict {
        self.monitor.confirm(range)
    }
    fn check(&self, range: VaRange) -> Verdict {
        self.monitor.check(range)
    }
    fn validate(&self, range: VaRange) -> Verdict {
        match self.steps {
            Steps::Full => self.monitor.validate(range),
            Steps::NoQuestion => {
                self.monitor.wait_until_applied();
                Verdict::Fresh
            }
            Steps::Events => Verdict::Fresh,
        }
    }
}

fn cache(steps: Steps) -> Option<(Cache<Ring>, Reader)> {
    let (monitor, reader) = match Userfaultfd::open() {
        Ok(both) => both,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let monitor = Arc::new(LeavesOut { monitor, steps });
    Some((
        Cache::new(Ring::new()?, monitor, Options::default()).unwrap(),
        reader,
    ))
}

/// How long the attempts may take, unless their number was requested: while other programs spin, each may cost several time
/// slices.
fn time_for_races() -> Duration {
    match std::env::var_os(RACES) {
        Some(_) => Duration::MAX,
        None => Duration::from_secs(30),
    }
}

/// Sends a number from a buffer. `None` if another one arrived.
fn send(cache: &Cache<Ring>, buffer: &VaRange, number: u64) -> Option<Why> {
    stamp(buffer, number);
    let guard = cache.get(*buffer, SEND, Kind::HOST).unwrap();
    let arrived = cache.registrar().send(&guard, buffer.start());
    (arrived == number).then(|| guard.why())
}

/// When events are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// At once, by a thread.
    AtOnce,
    /// After the new owner of the address has sent from it: the longest delay that matters.
    AfterTheSend,
}

/// One thread unmaps a page. Another gets the address as soon as it is free, and sends from it.
fn reuse(steps: Steps, reading: Reading, tries: u64) -> Option<Tally> {
    // Declared before the reader, so dropped after it: otherwise unmapping would wait for the reader to read the
    // event.
    let arena = Arena::new(4);
    let page = arena.pages(1, 1);
    arena.unmap(&page);
    let (cache, mut reader) = cache(steps)?;
    // How many sends are complete.
    let sent = AtomicU64::new(0);
    // The number of the send after which the page was last unmapped. Locked while events are read.
    let unmapping = Mutex::new(0);
    let done = AtomicBool::new(false);
    // Whether all sends are done.
    let over = AtomicBool::new(false);
    let (begun, time) = (Instant::now(), time_for_races());
    let mut tally = Tally::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            let now = Timespec::default();
            let soon = Timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            };
            while !done.load(Ordering::SeqCst) {
                if reading == Reading::AtOnce {
                    reader.step(Some(&soon));
                    continue;
                }
                let unmapping = unmapping.lock().unwrap();
                if sent.load(Ordering::SeqCst) > *unmapping {
                    reader.step(Some(&now));
                }
                drop(unmapping);
                thread::yield_now();
            }
        });
        let unmapper = scope.spawn(|| {
            for number in 1..tries {
                while sent.load(Ordering::SeqCst) < number {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    thread::yield_now();
                }
                *unmapping.lock().unwrap() = number;
                arena.unmap(&page);
            }
        });
        for number in 1..=tries {
            while !arena.claim(&page) {
                thread::yield_now();
            }
            tally.count(send(&cache, &page, number));
            // By the second send the memory is watched, so this is a hit if there is an entry.
            if reading == Reading::AtOnce {
                tally.count(send(&cache, &page, number + (1 << 32)));
            }
            sent.store(number, Ordering::SeqCst);
            if begun.elapsed() > time {
                break;
            }
        }
        over.store(true, Ordering::SeqCst);
        unmapper.join().unwrap();
        done.store(true, Ordering::SeqCst);
    });
    println!("{steps:?}, {reading:?}: {tally:?} of {tries}");
    Some(tally)
}

/// Proves partly: FI-243 (the cache as a library)
#[test]
fn an_address_that_is_reused_at_once_is_never_stale() {
    if let Some(tally) = reuse(Steps::Full, Reading::AtOnce, races()) {
        assert_eq!(tally.stale, 0);
        assert!(tally.hits > 0);
    }
}

/// The event of each change is still unread when the new owner sends.
/// Proves partly: FI-243 (the cache as a library)
#[test]
fn an_unread_event_leaves_no_stale_entry() {
    if let Some(tally) = reuse(Steps::Full, Reading::AfterTheSend, 200) {
        assert_eq!(tally.stale, 0);
        assert!(tally.busy > 0);
    }
}

/// Shows that the harness can find stale entries: it does if a step of the validation is left out.
#[test]
fn the_race_test_detects_a_validation_that_skips_a_step() {
    for steps in [Steps::Events, Steps::NoQuestion] {
        if let Some(tally) = reuse(steps, Reading::AfterTheSend, 200) {
            assert!(tally.stale > 0, "{steps:?}");
        }
    }
}

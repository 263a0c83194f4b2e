//! What a lookup costs: `cargo bench -p rkey-cache`. Each line is the best of several runs, in nanoseconds per lookup.
//!
//! At the end, rkey's cache and UCX's take turns. Each of those figures is the median of the rounds, and the ratio is the
//! median of the ratios.
//!
//! Compare a miss with the registration alone, which costs almost nothing here: the difference is the cost of the
//! cache.

mod peer;

use peer::Peer;
use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Follows, Imported, Kind, Memhooks, Monitor, Options, Registrar, Request, Rights, Timing,
    Userfaultfd,
};
use rustix::event::{EventfdFlags, eventfd};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const RIGHTS: Rights = Rights(3);
const RUNS: usize = 9;

/// A registrar that registers nothing.
struct Nothing(Follows);

impl Registrar for Nothing {
    type Registration = u64;
    type Error = Infallible;

    fn follows(&self) -> Follows {
        self.0
    }
    fn register(&self, request: &Request) -> Result<u64, Infallible> {
        Ok(request.range.start())
    }
    fn deregister(&self, _: u64) {}
}

/// Mapped memory.
struct Memory(Vec<u8>);

impl Memory {
    fn new(pages: usize) -> Self {
        Self(vec![1; (pages + 1) * 4096])
    }

    fn page(&self, number: usize) -> VaRange {
        let start = (self.0.as_ptr().addr() as u64).next_multiple_of(4096);
        VaRange::new(start + 4096 * number as u64, 4096).expect("memory that exists")
    }
}

fn cache(follows: Follows, monitor: Arc<dyn Monitor>) -> Cache<Nothing> {
    let mut options = Options::default();
    options.accept_partial = true;
    Cache::new(Nothing(follows), monitor, options).expect("the options fit the registrar")
}

fn lookup(cache: &Cache<Nothing>, range: VaRange) -> bool {
    let guard = cache.get(range, RIGHTS, Kind::HOST);
    let guard = guard.unwrap_or_else(|never| match never {});
    black_box(*guard.registration());
    guard.why().is_hit()
}

/// The time of one round in nanoseconds: the average over `count` rounds, in the best of several runs.
fn best(count: usize, mut round: impl FnMut(usize)) -> f64 {
    let run = |_| {
        let begin = Instant::now();
        for number in 0..count {
            round(number);
        }
        begin.elapsed().as_nanos() as f64 / count as f64
    };
    (0..RUNS).map(run).fold(f64::INFINITY, f64::min)
}

fn report(what: &str, ns: f64) {
    println!("{what:<64} {ns:>8.1} ns");
}

fn hits(what: &str, cache: &Cache<Nothing>, memory: &Memory) {
    for number in 0..1000 {
        lookup(cache, memory.page(number));
    }
    let one = memory.page(7);
    report(
        &format!("{what}: hit, one buffer"),
        best(100_000, |_| assert!(lookup(cache, one))),
    );
    report(
        &format!("{what}: hit, 1000 buffers in turn"),
        best(100_000, |number| {
            assert!(lookup(cache, memory.page(number * 37 % 1000)));
        }),
    );
    let both = std::thread::scope(|scope| {
        let times: Vec<_> = [7, 800]
            .map(|number| {
                let own = memory.page(number);
                scope.spawn(move || best(100_000, |_| assert!(lookup(cache, own))))
            })
            .into_iter()
            .map(|thread| thread.join().expect("lookups do not panic"))
            .collect();
        times.into_iter().fold(0.0, f64::max)
    });
    report(&format!("{what}: hit, two threads, a buffer each"), both);
}

fn misses(what: &str, cache: &Cache<Nothing>, memory: &Memory) {
    report(
        &format!("{what}: miss and eviction of another entry"),
        best(20_000, |number| {
            assert!(!lookup(cache, memory.page((number + 1000) % 4000)));
        }),
    );
}

/// The nanoseconds of one lookup: the average of the best of five runs, as the peer does it.
fn once(mut round: impl FnMut(usize)) -> f64 {
    const COUNT: usize = 4000;
    let run = |_| {
        let begin = Instant::now();
        for number in 0..COUNT {
            round(number);
        }
        begin.elapsed().as_nanos() as f64 / COUNT as f64
    };
    (0..5).map(run).fold(f64::INFINITY, f64::min)
}

/// Lookups of the kind that [`Peer::measure`] names.
fn measure(cache: &Cache<Nothing>, memory: &Memory, what: &str) -> f64 {
    let hits = |number| {
        let page = memory.page(number);
        lookup(cache, page);
        once(|_| assert!(lookup(cache, page)))
    };
    match what {
        "hit" => hits(7),
        "threads" => std::thread::scope(|scope| {
            let threads = [7, 800].map(|number| scope.spawn(move || hits(number)));
            let times = threads.map(|thread| thread.join().expect("lookups do not panic"));
            times.into_iter().fold(0.0, f64::max)
        }),
        _ => {
            let page = memory.page(0);
            cache.invalidate(page);
            once(|_| {
                assert!(!lookup(cache, page));
                cache.invalidate(page);
            })
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Compares rkey's cache with UCX's: they take turns.
fn compare(name: &str, cache: &Cache<Nothing>, memory: &Memory, peer: &mut Peer) {
    const ROUNDS: usize = 31;
    for what in ["hit", "threads", "miss"] {
        let rounds = (0..ROUNDS).map(|_| (measure(cache, memory, what), peer.measure(what)));
        let (ours, theirs): (Vec<f64>, Vec<f64>) = rounds.unzip();
        let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours);
        println!(
            "{name}, {what}: {:.0} ns; UCX: {:.0} ns; UCX takes {:.2} times as long",
            median(ours.clone()),
            median(theirs.clone()),
            median(ratios.collect()),
        );
    }
}

/// The cost that no lookup can avoid: one atomic addition to begin the use of an entry, and one to end it. And the costs of the
/// cheapest system call, and of an `ioctl` that is refused, which `userfaultfd` cannot avoid.
fn floor() {
    let word = AtomicU64::new(0);
    report(
        "floor: two atomic additions",
        best(100_000, |_| {
            black_box(&word).fetch_add(1, Ordering::AcqRel);
            black_box(&word).fetch_sub(1, Ordering::AcqRel);
        }),
    );
    report(
        "floor: a system call (getppid)",
        best(100_000, |_| {
            black_box(rustix::process::getppid());
        }),
    );
    let descriptor = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor is available");
    report(
        "floor: an ioctl that is refused",
        best(100_000, |_| {
            let _ = black_box(rustix::io::ioctl_fionread(&descriptor));
        }),
    );
}

fn main() {
    floor();
    let memory = Memory::new(4000);
    let told = Arc::new(Imported::new((), Timing::Around));
    let mut caches = vec![("by address", cache(Follows::Addresses, told))];
    match Memhooks::install() {
        Ok(monitor) => {
            let pinning = cache(Follows::Pages, Arc::new(monitor));
            caches.push(("pinning, memhooks", pinning));
        }
        Err(error) => println!("cannot use memhooks: {error}"),
    }
    match Userfaultfd::open() {
        Ok((monitor, reader)) => {
            std::thread::spawn(move || reader.run());
            let pinning = cache(Follows::Pages, Arc::new(monitor));
            caches.push(("pinning, userfaultfd", pinning));
        }
        Err(error) => println!("cannot use userfaultfd: {error}"),
    }
    for (what, cache) in &caches {
        hits(what, cache, &memory);
        misses(what, cache, &memory);
    }
    match Peer::start() {
        Ok(mut peer) => {
            for (what, cache) in &caches {
                compare(what, cache, &memory, &mut peer);
            }
        }
        Err(error) => println!("cannot compare with UCX: {error}"),
    }
}

//! Limits, eviction, and when the cache is off.

mod common;

use common::{BOTH, Fake, GPU, SEND, World, range};
use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Disabled, Follows, Imported, Kind, Monitor, Off, Options, Registrar, Request, Rounding,
    Timing, Unneeded, Why,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn options() -> Options {
    let mut options = Options::default();
    options.rounding = Rounding::Exact;
    options
}

fn cache_of(fake: Fake, options: Options) -> Cache<Fake> {
    let monitor = Arc::new(Imported::new((), Timing::Around));
    Cache::new(fake, monitor, options).unwrap()
}

fn cache(options: Options) -> Cache<Fake> {
    cache_of(Fake::new(&World::new(4096), Follows::Addresses), options)
}

fn buffer(number: u64) -> VaRange {
    range(0x100 * number, 0x100)
}

fn get(cache: &Cache<Fake>, range: VaRange) -> Why {
    cache.get(range, SEND, Kind::HOST).unwrap().why()
}

/// Proves partly: FI-231 (the cache as a library)
#[test]
fn the_second_lookup_registers_nothing() {
    let cache = cache(options());
    assert_eq!(get(&cache, buffer(1)), Why::Absent);
    for _ in 0..10 {
        assert_eq!(get(&cache, buffer(1)), Why::Hit);
        assert_eq!(get(&cache, range(0x110, 8)), Why::Hit);
    }
    assert_eq!(cache.registrar().made(), 1);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (20, 1));
    assert_eq!((stats.entries, stats.bytes), (1, 0x100));
}

/// Proves partly: FI-234, FI-235, FI-236 (the cache as a library)
#[test]
fn idle_bytes_never_exceed_the_limit_but_used_bytes_may() {
    let mut limited = options();
    limited.max_size = Some(0x400);
    let cache = cache(limited);
    for number in 0..100 {
        assert_eq!(get(&cache, buffer(number)), Why::Absent);
        assert!(cache.stats().bytes <= 0x400);
    }
    assert_eq!(cache.stats().evictions, 96);
    let guards: Vec<_> = (200..210)
        .map(|number| cache.get(buffer(number), SEND, Kind::HOST).unwrap())
        .collect();
    assert_eq!(cache.stats().bytes, 0xA00);
    for (number, guard) in (200..).zip(guards) {
        assert_eq!(get(&cache, buffer(number)), Why::Hit);
        drop(guard);
        let in_use = 0x100 * (209 - number);
        assert!(cache.stats().bytes <= in_use.max(0x400));
    }
    // An entry above the limit works, and is evicted after its use.
    assert_eq!(get(&cache, range(0, 0x1000)), Why::Absent);
    assert!(cache.stats().bytes <= 0x400);

    let unlimited = self::cache(options());
    for number in 0..1000 {
        get(&unlimited, buffer(number));
    }
    let stats = unlimited.stats();
    assert_eq!((stats.evictions, stats.bytes), (0, 1000 * 0x100));
}

/// Proves partly: FI-237 (the cache as a library)
#[test]
fn entries_never_exceed_their_limit() {
    let mut limited = options();
    limited.max_count = 10;
    let small = cache(limited);
    for number in 0..100 {
        get(&small, buffer(number));
        assert!(small.stats().entries <= 10);
        assert!(small.registrar().live() <= 10);
    }
    // All entries are in use, so other lookups make their own registrations.
    let _guards: Vec<_> = (0..10)
        .map(|number| small.get(buffer(number), SEND, Kind::HOST).unwrap())
        .collect();
    assert_eq!(get(&small, buffer(50)), Why::Full);
    assert_eq!(get(&small, buffer(5)), Why::Hit);
    assert_eq!(small.registrar().live(), 10);
}

/// 1024 entries of any total size. Libfabric's own limit of bytes, if none is set, is below the host's memory.
/// Proves partly: FI-235, FI-I46 (the cache as a library)
#[test]
fn the_default_limits_match_the_manual_page() {
    const ENTRY: u64 = 1 << 36;
    let monitor = Arc::new(Imported::new((), Timing::Around));
    let cache = Cache::new(Nothing, monitor, Options::default()).unwrap();
    let buffer = |number: u64| range(number * ENTRY, ENTRY);
    let hit = |number| {
        let guard = cache.get(buffer(number), SEND, Kind::HOST).unwrap();
        guard.why().is_hit()
    };
    assert!((0..1024).all(|number| !hit(number)));
    let full = cache.stats();
    assert_eq!((full.entries, full.bytes), (1024, 1024 * ENTRY));
    assert_eq!(full.evictions, 0);
    assert!((0..1024).all(hit));
    for number in 1024..2000 {
        assert!(!hit(number));
        assert_eq!(cache.stats().entries, 1024);
    }
    assert_eq!(cache.stats().evictions, 2000 - 1024);
}

/// Registers nothing.
struct Nothing;

impl Registrar for Nothing {
    type Registration = ();
    type Error = std::convert::Infallible;

    fn follows(&self) -> Follows {
        Follows::Addresses
    }
    fn register(&self, _: &Request) -> Result<(), Self::Error> {
        Ok(())
    }
    fn deregister(&self, (): ()) {}
}

#[test]
fn the_least_recently_used_entry_is_evicted() {
    let mut limited = options();
    limited.max_count = 4;
    let cache = cache(limited);
    for number in 0..4 {
        get(&cache, buffer(number));
    }
    for (oldest, new) in (0..3).zip(4..) {
        for number in oldest + 1..new {
            assert_eq!(get(&cache, buffer(number)), Why::Hit);
        }
        assert_eq!(get(&cache, buffer(new)), Why::Absent);
        let expected: Vec<u64> = (oldest + 1..=new).collect();
        assert_eq!(present(&cache, &(0..=new).collect::<Vec<_>>()), expected);
    }
}

/// Evictions follow the order of use exactly, even if more entries are idle than one search collects.
#[test]
fn evictions_follow_the_order_of_use() {
    const COUNT: u64 = 100;
    let mut limited = options();
    limited.max_count = COUNT as usize;
    let cache = cache(limited);
    for number in 0..COUNT {
        get(&cache, buffer(number));
    }
    // Use the entries in another order, with a miss between two uses. The first miss evicts entry 0. The entry of each miss
    // is invalidated before the next miss, which therefore evicts nothing.
    let order: Vec<u64> = (0..COUNT).map(|number| number * 37 % COUNT).collect();
    let stamp = |step: u64| buffer(1000 + step);
    get(&cache, stamp(0));
    for &number in order.iter().filter(|&&number| number != 0) {
        assert_eq!(get(&cache, buffer(number)), Why::Hit);
        cache.invalidate(range(1000 * 0x100, 0x100 * COUNT));
        assert!(!get(&cache, stamp(number)).is_hit());
    }
    cache.invalidate(range(1000 * 0x100, 0x100 * COUNT));
    // From the second on, each new entry evicts the next entry in that order.
    get(&cache, buffer(2000));
    for (step, &number) in (2001..).zip(order.iter().filter(|&&number| number != 0).take(50)) {
        let entry = cache.get(buffer(step), SEND, Kind::HOST).unwrap();
        drop(entry);
        let still: Vec<u64> = present(&cache, &order);
        assert!(
            !still.contains(&number),
            "{number} should have been evicted"
        );
        assert_eq!(still.len() as u64, 2099 - step);
    }
}

/// Which of these buffers have entries. Checks the registrar, because a lookup would change the order of use.
fn present(cache: &Cache<Fake>, numbers: &[u64]) -> Vec<u64> {
    let live = cache.registrar().ranges();
    let has = |number: &u64| live.contains(&buffer(*number));
    numbers.iter().copied().filter(has).collect()
}

/// Proves partly: FI-238 (the cache as a library)
#[test]
fn a_limit_of_no_entries_turns_the_cache_off() {
    let mut limited = options();
    limited.max_count = 0;
    let cache = cache(limited);
    assert_eq!(cache.off(), Some(Off::NoEntries));
    for made in 1..5 {
        assert_eq!(get(&cache, buffer(1)), Why::Off(Off::NoEntries));
        assert_eq!(cache.registrar().made(), made);
        assert_eq!(cache.registrar().live(), 0);
    }
    assert_eq!(cache.stats().uncached, 4);
}

/// Proves partly: FI-240 (the cache as a library)
#[test]
fn the_disabled_monitor_turns_the_cache_off_for_every_registrar() {
    for follows in [Follows::Addresses, Follows::Object, Follows::Pages] {
        let fake = Fake::new(&World::new(64), follows);
        let Ok(cache) = Cache::new(fake, Arc::new(Disabled), options()) else {
            println!("skipped {follows:?}: the kernel has no PROCMAP_QUERY");
            continue;
        };
        assert_eq!(cache.monitor().name(), "disabled");
        assert_eq!(get(&cache, buffer(1)), Why::Off(Off::Disabled));
        assert_eq!(get(&cache, buffer(1)), Why::Off(Off::Disabled));
        assert_eq!(cache.registrar().made(), 2);
    }
}

#[test]
fn a_pinning_registrar_is_not_cached_if_the_monitor_misses_changes() {
    let monitor: Arc<dyn Monitor> = Arc::new(Imported::new((), Timing::Loose));
    let fake = || Fake::new(&World::new(64), Follows::Pages);
    let cache = Cache::new(fake(), monitor.clone(), options()).unwrap();
    assert_eq!(get(&cache, buffer(1)), Why::Off(Off::Partial));
    let mut accepting = options();
    accepting.accept_partial = true;
    let cache = Cache::new(fake(), monitor, accepting).unwrap();
    assert_eq!(get(&cache, buffer(1)), Why::Absent);
}

/// Proves partly: FI-232 (the cache as a library)
#[test]
fn without_unified_addresses_device_memory_is_not_cached() {
    let mut one_each = options();
    one_each.unified_addresses = false;
    let cache = cache(one_each);
    for _ in 0..2 {
        let guard = cache.get(buffer(1), SEND, GPU).unwrap();
        assert_eq!(guard.why(), Why::OtherKind);
    }
    assert_eq!(get(&cache, buffer(1)), Why::Absent);
    assert_eq!(cache.stats().entries, 1);
}

/// An address that was freed and allocated again is not the same memory.
/// Proves partly: FI-232, FI-243, FI-244, FI-245, FI-246 (the cache as a library)
#[test]
fn an_allocation_that_was_replaced_is_registered_again() {
    let world = World::new(16);
    let fake = Fake::new(&world, Follows::Allocation);
    let cache = Cache::new(fake, Arc::new(Unneeded), options()).unwrap();
    let get = |range| cache.get(range, SEND, GPU).unwrap().why();
    assert_eq!(get(range(0x1000, 0x2000)), Why::Absent);
    assert_eq!(get(range(0x1100, 0x10)), Why::Hit);
    world.change(&range(0x2000, 1));
    // The other page of the entry is unchanged.
    assert_eq!(get(range(0x1100, 0x10)), Why::Hit);
    assert_eq!(
        get(range(0x2100, 0x10)),
        Why::Ended(rkey_cache::Cause::Replaced)
    );
    assert_eq!(get(range(0x2100, 0x10)), Why::Hit);
    cache.reap();
    assert_eq!(cache.registrar().live(), 1);
}

#[test]
fn a_registration_for_one_call_is_not_an_entry() {
    let cache = cache(options());
    assert_eq!(get(&cache, buffer(1)), Why::Absent);
    for _ in 0..2 {
        let own = cache.register_once(buffer(1), SEND, Kind::HOST).unwrap();
        assert_eq!(own.why(), Why::Once);
        assert_eq!(cache.registrar().live(), 2);
    }
    assert_eq!(cache.registrar().live(), 1);
    assert_eq!((cache.stats().uncached, cache.stats().entries), (2, 1));
}

#[test]
fn a_miss_reports_the_rights_or_range_of_the_entry() {
    let cache = cache(options());
    assert_eq!(get(&cache, buffer(1)), Why::Absent);
    let both = cache.get(buffer(1), BOTH, Kind::HOST).unwrap();
    assert_eq!(both.why(), Why::OtherRights(SEND));
    assert_eq!(
        both.why().to_string(),
        "miss: the range's entry has other rights: 0x1"
    );
    let part = cache.get(range(0x180, 0x100), SEND, Kind::HOST).unwrap();
    assert_eq!(part.why(), Why::Partly(range(0x180, 0x80)));
}

#[test]
fn the_trace_holds_the_last_lookups() {
    let mut traced = options();
    traced.trace = 2;
    let cache = cache(traced);
    get(&cache, buffer(1));
    get(&cache, buffer(1));
    cache.invalidate(buffer(1));
    get(&cache, buffer(1));
    let lines: Vec<String> = cache.trace().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "0x100..0x200, rights 0x1, host: hit",
            "0x100..0x200, rights 0x1, host: miss: the entry ended because the program or an imported monitor announced a change",
        ]
    );
}

#[test]
fn idle_registrations_are_evicted_when_the_registrar_is_exhausted() {
    let cache = cache_of(Fake::limited(&World::new(4096), 8), options());
    for number in 0..50 {
        assert_eq!(get(&cache, buffer(number)), Why::Absent);
    }
    let _guards: Vec<_> = (0..8)
        .map(|number| cache.get(buffer(number), SEND, Kind::HOST).unwrap())
        .collect();
    let error = cache.get(buffer(60), SEND, Kind::HOST).unwrap_err();
    assert_eq!(error, common::Exhausted);
    assert_eq!(get(&cache, buffer(7)), Why::Hit);
}

/// Has room for one registration, and does not deregister it before another thread has tried several times to register.
struct Slow {
    fake: Fake,
    attempts: AtomicU64,
}

impl Registrar for Slow {
    type Registration = common::Pinned;
    type Error = common::Exhausted;

    fn follows(&self) -> Follows {
        Follows::Addresses
    }

    fn register(&self, request: &Request) -> Result<common::Pinned, Self::Error> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        self.fake.register(request)
    }

    fn deregister(&self, registration: common::Pinned) {
        while self.attempts.load(Ordering::SeqCst) < 5 {
            std::thread::yield_now();
        }
        self.fake.deregister(registration);
    }

    fn is_exhausted(&self, error: &Self::Error) -> bool {
        self.fake.is_exhausted(error)
    }
}

#[test]
fn an_exhausted_registrar_waits_for_evictions_by_other_threads() {
    let slow = Slow {
        fake: Fake::limited(&World::new(64), 1),
        attempts: AtomicU64::new(0),
    };
    let monitor = Arc::new(Imported::new((), Timing::Around));
    let cache = Cache::new(slow, monitor, options()).unwrap();
    drop(cache.get(buffer(1), SEND, Kind::HOST).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| cache.flush());
        // The entry has left the table, but still occupies the registrar.
        while cache.stats().entries > 0 {
            std::thread::yield_now();
        }
        let second = cache.get(buffer(2), SEND, Kind::HOST);
        // The other thread must not wait forever if this fails.
        cache.registrar().attempts.store(5, Ordering::SeqCst);
        assert_eq!(second.unwrap().why(), Why::Absent);
    });
}

#[test]
fn a_cache_with_the_largest_limits_works() {
    let mut absurd = options();
    absurd.max_count = usize::MAX;
    absurd.max_size = Some(u64::MAX);
    let cache = cache(absurd);
    assert_eq!(get(&cache, buffer(1)), Why::Absent);
    assert_eq!(get(&cache, buffer(1)), Why::Hit);
    let empty = cache.get(range(0x100, 0), SEND, Kind::HOST).unwrap();
    assert_eq!(empty.why(), Why::Empty);
}

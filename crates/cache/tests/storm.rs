//! 40,000 buffers that are mapped, cached and unmapped.

mod common;

use common::memory::Arena;
use common::ring::Ring;
use common::{SEND, userfaultfd};
use rkey_cache::{Cache, Kind, Options, Registrar};

const BUFFERS: u64 = 40_000;

fn resident() -> u64 {
    rkey_base::process::resident().unwrap()
}

/// Maps, caches and unmaps buffers, `at_once` at a time.
fn storm<R: Registrar<Error: std::fmt::Debug>>(cache: &Cache<R>, arena: &Arena, at_once: u64) {
    for _ in 0..BUFFERS / at_once {
        for number in 0..at_once {
            let buffer = arena.pages(2 * number, 1);
            arena.map(&buffer);
            drop(cache.get(buffer, SEND, Kind::HOST).unwrap());
        }
        for number in 0..at_once {
            arena.unmap(&arena.pages(2 * number, 1));
        }
    }
}

/// Invalidations do not accumulate, neither while buffers are mapped and unmapped nor afterwards, when the program makes
/// no lookups.
#[test]
fn forty_thousand_unmapped_buffers_leave_nothing_behind() {
    let Some(monitor) = userfaultfd() else {
        return;
    };
    let Some(ring) = Ring::new() else {
        return;
    };
    let arena = Arena::new(128);
    let cache = Cache::new(ring, monitor, Options::default()).unwrap();
    storm(&cache, &arena, 50);
    let before = resident();
    for at_once in [1, 50] {
        storm(&cache, &arena, at_once);
        let stats = cache.stats();
        assert!(stats.entries < 100, "{stats:?}");
        assert_eq!(stats.evictions, 0);
        let growth = resident().saturating_sub(before);
        assert!(growth < 512 << 10, "grew by {growth} B");
        println!(
            "{at_once} at a time: {} entries left, grew by {growth} B",
            stats.entries
        );
    }
    // The kernel lets `munmap` return when the reader has read its event, before the reader ends the entry.
    while cache.stats().entries > 0 {
        std::thread::yield_now();
        cache.reap();
    }
}

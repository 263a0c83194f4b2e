//! Borrowed memory in the registration cache of a scope.

// UNSAFETY: maps memory over other memory.
#![allow(unsafe_code)]

mod common;

use common::{ALL, Pair, device, pattern};
use rkey::{Access, Error};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::process::Command;

/// Writes a cached region to an offset of the owner's memory.
fn write(pair: &Pair, local: &rkey::CachedRegion<'_>, key: &rkey::RemoteKey, place: u64) {
    let pending = pair.outer.write(local, local.range(), key, place).unwrap();
    pending.wait().unwrap();
}

/// Proves partly: FI-231 (through the Rust API)
#[test]
fn the_second_transfer_from_a_buffer_registers_nothing() {
    let pair = Pair::new();
    let (region, key) = pair.region(10_000, ALL);
    let bytes = pattern(1, 5000);
    let regions = || pair.visitor.device().inspect().unwrap().regions;
    let before = regions();
    pair.visitor.scope(|scope| {
        let whole = scope.cached(&bytes).unwrap();
        assert!(!whole.is_hit());
        assert_eq!(whole.why(), "miss: no entry overlaps the range");
        write(&pair, &whole, &key, 0);
        drop(whole);
        assert_eq!(regions(), before + 1);
        for start in [0, 1, 999, 4999] {
            let part = scope.cached(&bytes[start..]).unwrap();
            assert!(part.is_hit());
            assert_eq!(part.range(), start as u64..5000);
            write(&pair, &part, &key, 5000);
            let len = 5000 - start as u64;
            let arrived = region.read_vec(5000..5000 + len).unwrap();
            assert_eq!(arrived, &bytes[start..]);
        }
        assert_eq!(regions(), before + 1);
        let stats = scope.cache_stats();
        assert_eq!((stats.misses, stats.hits, stats.entries), (1, 4, 1));
        assert_eq!(region.read_vec(..5000).unwrap(), bytes);
    });
    assert_eq!(regions(), before);
}

/// The device reads what is at the addresses at the time of the transfer, so an entry cannot be stale.
/// Proves partly: FI-243 (through the Rust API, with a device that follows addresses)
#[test]
fn new_data_is_sent_after_memory_was_remapped() {
    const LEN: usize = 8192;
    let pair = Pair::new();
    let (region, key) = pair.region(LEN, ALL);
    let map = |at: *mut std::ffi::c_void, flags| {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, or over memory of this test to which no reference is used any more.
        unsafe { mmap_anonymous(at, LEN, rights, MapFlags::PRIVATE | flags) }.unwrap()
    };
    let start = map(std::ptr::null_mut(), MapFlags::empty());
    pair.visitor.scope(|scope| {
        for (round, number) in [3_u8, 4, 5].into_iter().enumerate() {
            map(start, MapFlags::FIXED);
            // SAFETY: the memory was just mapped, and nothing else refers to it.
            let bytes = unsafe {
                std::ptr::write_bytes(start.cast::<u8>(), number, LEN);
                std::slice::from_raw_parts(start.cast::<u8>(), LEN)
            };
            let local = scope.cached(bytes).unwrap();
            assert_eq!(local.is_hit(), round > 0);
            write(&pair, &local, &key, 0);
            assert_eq!(region.read_vec(..).unwrap(), vec![number; LEN]);
        }
    });
}

/// Even if the program forgets a cached region, it ends with the scope, after which its memory may be freed.
#[test]
fn a_cache_ends_with_its_scope() {
    let pair = Pair::new();
    let bytes = pattern(1, 100);
    let regions = || pair.visitor.device().inspect().unwrap().regions;
    let before = regions();
    pair.visitor.scope(|scope| {
        drop(scope.cached(&bytes[..50]).unwrap());
        std::mem::forget(scope.cached(&bytes[50..]).unwrap());
        assert_eq!(regions(), before + 2);
    });
    assert_eq!(regions(), before);
}

/// A cached region can only be the source of our own operations.
#[test]
fn cached_memory_can_only_be_the_source_of_its_owners_operations() {
    let pair = Pair::new();
    let (_region, key) = pair.region(100, ALL);
    let bytes = pattern(1, 100);
    pair.visitor.scope(|scope| {
        let local = scope.cached(&bytes).unwrap();
        assert_eq!(local.access() & Access::REMOTE, Access::empty());
        assert!(matches!(local.key(..), Err(Error::Rights(_))));
        assert!(matches!(local.write(0, b"x"), Err(Error::Rights(_))));
        // Cached memory cannot be the destination of a read.
        let read = pair.outer.read(&local, .., &key, 0).unwrap().wait();
        assert!(matches!(read, Err(Error::Denied(_))), "{read:?}");
        assert!(scope.cached(&[]).is_err());
    });
    assert_eq!(bytes, pattern(1, 100));
}

/// The device shows the cache while its scope runs.
#[test]
fn an_inspection_shows_the_cache() {
    let device = device();
    let domain = device.domain().unwrap();
    let bytes = pattern(1, 300);
    domain.scope(|scope| {
        assert_eq!(device.inspect().unwrap().caches, []);
        for part in bytes.chunks(100) {
            drop(scope.cached(part).unwrap());
        }
        drop(scope.cached(&bytes[10..20]).unwrap());
        let caches = device.inspect().unwrap().caches;
        let [cache] = &caches[..] else {
            panic!("{caches:?}");
        };
        assert_eq!((cache.entries, cache.bytes), (3, 300));
        assert_eq!((cache.misses, cache.hits), (3, 1));
        assert_eq!(cache.off, None);
        assert_eq!(cache.monitor, "none");
        assert_eq!(
            cache.monitor_reason.as_deref(),
            Some("not needed, because the device follows addresses")
        );
    });
    assert_eq!(device.inspect().unwrap().caches, []);
}

/// Runs the next test in a process with these variables of `fi_mr(3)`. Returns what it prints about the cache.
fn with(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_with_cache_variables", "--nocapture"]);
    for variable in ["MAX_COUNT", "MAX_SIZE", "MONITOR"] {
        command.env_remove(format!("FI_MR_CACHE_{variable}"));
    }
    command.env(STARTED, "1").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{out}");
    let line = out.lines().find_map(|line| line.split_once("cache: "));
    line.map(|(_, rest)| rest.to_owned()).expect("it prints")
}

/// Set in the process that `with` starts.
const STARTED: &str = "RKEY_TEST_CACHED";

#[test]
fn child_with_cache_variables() {
    if std::env::var_os(STARTED).is_none() {
        return;
    }
    let device = device();
    let bytes = pattern(1, 300);
    device.domain().unwrap().scope(|scope| {
        for part in bytes.chunks(100).chain(bytes.chunks(100)) {
            drop(scope.cached(part).unwrap());
        }
        let view = &device.inspect().unwrap().caches[0];
        println!(
            "cache: {} hits, {} misses, {} not cached, {} entries, {} B; {}; off: {:?}",
            view.hits, view.misses, view.uncached, view.entries, view.bytes, view.monitor, view.off
        );
        // Without a cache, only the guard has the registration.
        std::mem::forget(scope.cached(&bytes).unwrap());
        assert!(device.inspect().unwrap().regions > 0);
    });
    assert_eq!(device.inspect().unwrap().regions, 0);
}

/// Proves partly: FI-234, FI-235, FI-237, FI-238, FI-239, FI-240, FI-I47 (through the Rust API)
#[test]
fn the_cache_obeys_the_variables_of_the_manual_page() {
    let unset = "3 hits, 3 misses, 0 not cached, 3 entries, 300 B; none; off: None";
    assert_eq!(with(&[]), unset);
    assert_eq!(with(&[("FI_MR_CACHE_MONITOR", "kdreg3")]), unset);
    assert_eq!(with(&[("FI_MR_CACHE_MAX_SIZE", "lots")]), unset);
    assert_eq!(
        with(&[("FI_MR_CACHE_MAX_COUNT", "2")]),
        "0 hits, 6 misses, 0 not cached, 2 entries, 200 B; none; off: None"
    );
    assert_eq!(
        with(&[("FI_MR_CACHE_MAX_SIZE", "150")]),
        "0 hits, 6 misses, 0 not cached, 1 entries, 100 B; none; off: None"
    );
    assert_eq!(
        with(&[("FI_MR_CACHE_MAX_COUNT", "0")]),
        "0 hits, 0 misses, 6 not cached, 0 entries, 0 B; none; \
         off: Some(\"the limit of entries is 0\")"
    );
    assert_eq!(
        with(&[("FI_MR_CACHE_MONITOR", "disabled")]),
        "0 hits, 0 misses, 6 not cached, 0 entries, 0 B; disabled; \
         off: Some(\"the monitor is disabled\")"
    );
    assert_eq!(with(&[("FI_MR_CACHE_MONITOR", "memhooks")]), unset);
}

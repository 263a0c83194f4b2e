//! A random program: threads map, change, unmap, allocate and free memory in few places, so that addresses are reused at once, and
//! send from it through a registrar that pins.
//!
//! `RKEY_TEST_CACHE_RACES` sets its length, and `RKEY_TEST_CACHE_SEED` repeats a run.

// UNSAFETY: forks; calls the allocator.
#![allow(unsafe_code)]

mod common;

use common::memory::{Arena, PAGE, advise, remap, stamp};
use common::ring::Ring;
use common::{Tally, from_environment, races, userfaultfd};
use rkey_base::range::VaRange;
use rkey_cache::{Cache, Kind, Memhooks, Monitor, Options, Rights, Why};
use std::ffi::c_void;
use std::sync::{Arc, RwLock};
use std::thread;

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (it ^ (it >> 31)) % limit
    }
}

const PAGES: u64 = 12;

/// A thread that changes memory and uses the cache, while others do the same.
struct Meddler<'a> {
    cache: &'a Cache<Ring>,
    arena: &'a Arena,
    /// Locked exclusively by a thread that moves memory: if the kernel refuses a move, it may have unmapped the destination, which no other
    /// thread must claim then.
    moving: &'a RwLock<()>,
    random: Random,
    /// The number that the thread sent last. No other thread sends this number.
    number: u64,
    tally: Tally,
}

impl Meddler<'_> {
    /// Sends a new number from the start of a buffer, with random rights.
    fn send(&mut self, buffer: &VaRange, write: impl FnOnce(u64)) {
        self.number += 1;
        write(self.number);
        let rights = Rights(1 + self.random.below(3) as u32);
        let guard = self.cache.get(*buffer, rights, Kind::HOST).unwrap();
        assert!(guard.rights.contains(rights), "{guard:?} widens {rights}");
        assert!(guard.range().contains(buffer));
        let arrived = self.cache.registrar().send(&guard, buffer.start());
        let sent: Option<Why> = (arrived == self.number).then(|| guard.why());
        self.tally.count(sent);
    }

    fn place(&mut self) -> VaRange {
        let len = 1 + self.random.below(3);
        self.arena.pages(self.random.below(PAGES - len), len)
    }

    fn claim(&self, range: &VaRange) -> bool {
        let _none_moves = self.moving.read().unwrap();
        self.arena.claim(range)
    }

    /// Moves a buffer to another place, if that is free. Returns where it is then.
    fn moved(&mut self, buffer: VaRange) -> VaRange {
        let to = self.place();
        if to.len() != buffer.len() {
            return buffer;
        }
        let _alone = self.moving.write().unwrap();
        if !self.arena.claim(&to) {
            return buffer;
        }
        // The move fails if watching a neighbour has split the mapping.
        match remap(&buffer, &to, libc::MREMAP_FIXED) {
            Ok(()) => to,
            Err(_) => {
                self.arena.unmap(&to);
                buffer
            }
        }
    }

    /// Maps a buffer, changes its mapping and sends from it.
    fn mapping(&mut self) {
        let mut buffer = self.place();
        if !self.claim(&buffer) {
            return;
        }
        for _ in 0..self.random.below(12) {
            match self.random.below(10) {
                0 => self.arena.map(&buffer),
                1 => {
                    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
                    self.arena.map_by(&buffer, flags, -1, 0);
                }
                2 => {
                    // The kernel may refuse this, for locked pages for example; either outcome is fine.
                    let _ = advise(&buffer, libc::MADV_DONTNEED);
                }
                3 => {
                    let _ = advise(&buffer, libc::MADV_FREE);
                }
                4 => buffer = self.moved(buffer),
                5 if self.random.below(20) == 0 => fork(),
                _ => {
                    let first = self.random.below(buffer.len() / PAGE);
                    let rest = buffer.len() / PAGE - first;
                    let len = (1 + self.random.below(rest)) * PAGE;
                    let part = buffer.slice(first * PAGE, len).unwrap();
                    self.send(&part, |number| stamp(&part, number));
                }
            }
        }
        self.arena.unmap(&buffer);
    }

    /// Allocates a buffer, sends from it, resizes and frees it. The allocator grows and shrinks its heap with `brk`, and maps large
    /// buffers.
    fn allocation(&mut self) {
        let size = |random: &mut Random| match random.below(3) {
            0 => 64 + random.below(2000),
            1 => 4096 + random.below(20_000),
            _ => 150_000 + random.below(100_000),
        };
        let len = size(&mut self.random) as usize;
        // SAFETY: allocates.
        let mut at = unsafe { libc::malloc(len) };
        let mut len = len;
        for _ in 0..1 + self.random.below(3) {
            assert!(!at.is_null());
            let start = at.expose_provenance() as u64;
            // Not all of the allocation, so that neighbours share pages.
            let buffer = VaRange::new(start, 8 + self.random.below(len as u64 - 8)).unwrap();
            let word: *mut u64 = at.cast();
            // SAFETY: the allocation has more than 8 bytes, which are aligned.
            self.send(&buffer, |number| unsafe { word.write_volatile(number) });
            if self.random.below(3) == 0 {
                len = size(&mut self.random) as usize;
                // SAFETY: the allocation is live, and its old address is not used again.
                at = unsafe { libc::realloc(at, len) };
            }
        }
        // SAFETY: the allocation is live.
        unsafe { libc::free(at) };
        if self.random.below(10) == 0 {
            // SAFETY: changes no allocation.
            unsafe { libc::malloc_trim(0) };
        }
    }
}

/// Forks a child that ends at once.
fn fork() {
    // SAFETY: the child calls only `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child without running any of the parent's code.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for that child, without a status.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// All threads allocate in the heap that `brk` moves, which ends soon after the last allocation in it.
fn one_heap() {
    // SAFETY: sets parameters of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

fn run(monitor: Arc<dyn Monitor>, arena: &Arena) {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).unwrap();
    let seed = from_environment("RKEY_TEST_CACHE_SEED", u64::from_ne_bytes(seed) >> 1);
    println!("RKEY_TEST_CACHE_SEED={seed}");
    one_heap();
    let Some(ring) = Ring::new() else { return };
    let mut options = Options::default();
    // All of this program's changes are calls that `memhooks` sees.
    options.accept_partial = true;
    let cache = &Cache::new(ring, monitor, options).unwrap();
    let moving = &RwLock::new(());
    let heap_before: *mut c_void = heap_end();
    thread::scope(|scope| {
        let threads = (1..4).map(|thread| {
            scope.spawn(move || {
                let mut meddler = Meddler {
                    cache,
                    arena,
                    moving,
                    random: Random(seed ^ thread),
                    number: thread << 48,
                    tally: Tally::default(),
                };
                for _ in 0..races() / 10 {
                    match meddler.random.below(3) {
                        0 => meddler.allocation(),
                        _ => meddler.mapping(),
                    }
                }
                meddler.tally
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            let tally = thread.join().unwrap();
            println!("{tally:?}");
            assert_eq!(tally.stale, 0);
            assert!(tally.hits > 0);
        }
    });
    println!(
        "{:?}, heap {:?} to {:?}",
        cache.stats(),
        heap_before,
        heap_end()
    );
}

/// The end of the heap that `brk` moves.
fn heap_end() -> *mut c_void {
    // SAFETY: moves nothing.
    unsafe { libc::sbrk(0) }
}

/// Proves partly: FI-241, FI-243 (the cache as a library)
#[test]
fn random_changes_leave_no_stale_entry() {
    // Dropped after the monitor.
    let arena = Arena::new(PAGES);
    arena.unmap(&arena.pages(0, PAGES));
    if let Some(monitor) = userfaultfd() {
        run(monitor, &arena);
    }
}

/// Proves partly: FI-242, FI-243 (the cache as a library)
#[test]
fn random_c_library_calls_leave_no_stale_entry() {
    let arena = Arena::new(PAGES);
    arena.unmap(&arena.pages(0, PAGES));
    match Memhooks::install() {
        Ok(monitor) => run(Arc::new(monitor), &arena),
        Err(error) => println!("skipped: {error}"),
    }
}

//! What each memory call does to entries under the monitor `memhooks`: the table in
//! `docs/registration-cache.md`.

// UNSAFETY: the tests unmap and replace memory.
#![allow(unsafe_code)]

mod common;

use common::memory::{
    Arena, GUARD_INSTALL, PAGE, advise, file, protect, punch, remap, stamp, truncate,
    unmap_by_dlsym, unmap_by_system_call,
};
use common::ring::Ring;
use common::{Fake, SEND, World, enter, get, in_a_child, range};
use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Follows, Kind, Memhooks, Monitor, Off, Options, Path, Registrar, Request, Rounding,
    Sees, Why,
};
use std::convert::Infallible;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A registrar that registers nothing, and follows addresses.
struct Nothing;

impl Registrar for Nothing {
    type Registration = ();
    type Error = Infallible;

    fn follows(&self) -> Follows {
        Follows::Addresses
    }
    fn register(&self, _: &Request) -> Result<(), Infallible> {
        Ok(())
    }
    fn deregister(&self, (): ()) {}
}

fn cache() -> (Cache<Nothing>, Arc<Memhooks>) {
    let monitor = Arc::new(Memhooks::install().unwrap());
    // Entries of whole pages would end when other threads free their own chunks in the same pages.
    let mut options = Options::default();
    options.rounding = Rounding::Exact;
    let cache = Cache::new(Nothing, monitor.clone(), options).unwrap();
    (cache, monitor)
}

/// The whole process has one set of hooks, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

type Call = fn(&Arena, &VaRange);

/// Attaches a new page of System V memory, over `over` if that is given. The memory ends when it is detached.
fn attach(over: Option<&VaRange>) -> VaRange {
    let (at, flags) = match over {
        Some(page) => (page.start(), libc::SHM_REMAP),
        None => (0, 0),
    };
    // SAFETY: replaces at most memory of an arena, to which nothing refers.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, PAGE as usize, 0o600);
        assert!(id >= 0, "shmget: {}", std::io::Error::last_os_error());
        let at = libc::shmat(id, std::ptr::with_exposed_provenance(at as usize), flags);
        let error = std::io::Error::last_os_error();
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        assert_ne!(at.addr(), usize::MAX, "shmat: {error}");
        range(at.expose_provenance() as u64, PAGE)
    }
}

/// Calls on the second page of a buffer of two pages, and whether a hook sees them.
const CALLS: &[(&str, bool, Call)] = &[
    ("munmap", true, |arena, page| arena.unmap(page)),
    ("mmap over it", true, |arena, page| arena.map(page)),
    ("mremap away", true, |arena, page| {
        remap(page, &arena.pages(10, 1), libc::MREMAP_FIXED).unwrap();
    }),
    ("mremap onto it", true, |arena, page| {
        arena.map(&arena.pages(12, 1));
        remap(&arena.pages(12, 1), page, libc::MREMAP_FIXED).unwrap();
    }),
    ("MADV_DONTNEED", true, |_, page| {
        advise(page, libc::MADV_DONTNEED).unwrap();
    }),
    ("MADV_FREE", true, |_, page| {
        advise(page, libc::MADV_FREE).unwrap()
    }),
    // A kernel that does not know one of these refuses it; the hook sees the call in any case.
    ("MADV_DONTNEED_LOCKED", true, |_, page| {
        let _ = advise(page, libc::MADV_DONTNEED_LOCKED);
    }),
    ("MADV_GUARD_INSTALL", true, |_, page| {
        let _ = advise(page, GUARD_INSTALL);
    }),
    ("mremap to a smaller size", true, |_, page| {
        let whole = range(page.start() - PAGE, 2 * PAGE);
        remap(&whole, &range(whole.start(), PAGE), 0).unwrap();
    }),
    ("MREMAP_DONTUNMAP", true, |arena, page| {
        let flags = libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        remap(page, &arena.pages(10, 1), flags).unwrap();
    }),
    ("shmat over it", true, |_, page| {
        attach(Some(page));
    }),
    ("MADV_COLD", false, |_, page| {
        advise(page, libc::MADV_COLD).unwrap()
    }),
    ("MADV_PAGEOUT", false, |_, page| {
        advise(page, libc::MADV_PAGEOUT).unwrap();
    }),
    ("mprotect", false, |_, page| protect(page).unwrap()),
    ("a write", false, |_, page| stamp(page, 1)),
    ("munmap by the system call itself", false, |_, page| {
        unmap_by_system_call(page);
    }),
];

type SharedCall = fn(&VaRange, &OwnedFd);

/// Calls on shared memory, and whether a hook sees them.
const SHARED: &[(&str, bool, SharedCall)] = &[
    ("MADV_REMOVE", true, |page, _| {
        advise(page, libc::MADV_REMOVE).unwrap();
    }),
    ("MADV_REMOVE by a child", false, |page, _| {
        let removed = in_a_child(|| i32::from(advise(page, libc::MADV_REMOVE).is_err()));
        assert_eq!(removed, 0, "the child could not remove the pages");
    }),
    ("ftruncate", false, |_, file| truncate(file)),
    ("punching a hole", false, |_, file| punch(file)),
];

/// Proves partly: FI-242 (the cache as a library)
#[test]
fn each_call_of_the_c_library_ends_the_entries_whose_pages_it_takes() {
    let _alone = alone();
    let (cache, _) = cache();
    for (name, seen, call) in CALLS {
        let arena = Arena::new(16);
        let buffer = arena.pages(2, 2);
        arena.map(&buffer);
        assert_eq!(get(&cache, buffer), Why::Absent, "{name}");
        assert_eq!(get(&cache, buffer), Why::Hit, "{name}");
        call(&arena, &arena.pages(3, 1));
        assert_eq!(!get(&cache, buffer).is_hit(), *seen, "{name}");
    }
}

/// What happens through a descriptor or in another process is not seen: a registrar that follows pages must not use this monitor
/// for shared memory that others change.
/// Proves partly: FI-242 (the cache as a library)
#[test]
fn removing_pages_of_shared_memory_is_seen_only_in_the_process_itself() {
    let _alone = alone();
    let (cache, _) = cache();
    for (name, seen, call) in SHARED {
        let arena = Arena::new(4);
        let (buffer, file) = (arena.pages(0, 2), file());
        arena.map_by(&buffer, libc::MAP_SHARED, file.as_raw_fd(), 0);
        stamp(&buffer, 5);
        assert_eq!(get(&cache, buffer), Why::Absent, "{name}");
        assert_eq!(get(&cache, buffer), Why::Hit, "{name}");
        call(&buffer, &file);
        assert_eq!(!get(&cache, buffer).is_hit(), *seen, "{name}");
    }
}

/// A program that is not position-independent gets its own code from `dlsym`, which calls through a slot.
#[test]
fn a_call_through_dlsym_is_not_seen_in_a_position_independent_program() {
    let _alone = alone();
    let (cache, _) = cache();
    let arena = Arena::new(4);
    let page = arena.pages(0, 1);
    arena.map(&page);
    enter(&cache, page);
    unmap_by_dlsym(&page);
    assert_eq!(get(&cache, page).is_hit(), !has_fixed_addresses());
}

#[test]
fn a_fork_ends_the_cache_in_the_child_only() {
    let _alone = alone();
    let (cache, _) = cache();
    let arena = Arena::new(4);
    let page = arena.pages(0, 1);
    arena.map(&page);
    enter(&cache, page);
    let status = in_a_child(|| {
        let off = cache.off() == Some(Off::Forked);
        // The hook runs in the child, too.
        arena.unmap(&page);
        if off { 7 } else { 8 }
    });
    assert_eq!(status, 7);
    assert_eq!(get(&cache, page), Why::Hit);
}

/// Proves partly: FI-242 (the cache as a library)
#[test]
fn an_entry_ends_when_its_segment_is_detached_or_its_library_is_closed() {
    let _alone = alone();
    let (cache, _) = cache();
    let segment = attach(None);
    enter(&cache, segment);
    // SAFETY: nothing refers to the segment.
    assert_eq!(0, unsafe {
        libc::shmdt(std::ptr::with_exposed_provenance(segment.start() as usize))
    });
    assert!(!get(&cache, segment).is_hit(), "shmdt");
    // A library that this program does not use.
    // SAFETY: the library's initialisation does nothing.
    let library = unsafe { libc::dlopen(c"libresolv.so.2".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: a live handle and a C string.
    let symbol = unsafe { libc::dlsym(library, c"ns_get16".as_ptr()) };
    assert!(!symbol.is_null());
    let code = range(symbol.addr() as u64, 8);
    enter(&cache, code);
    // SAFETY: nothing refers to the library.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    assert!(!get(&cache, code).is_hit(), "dlclose");
}

/// The entry ends before the allocator gets the memory back, regardless of what the allocator does with the memory.
/// Proves partly: FI-242 (the cache as a library)
#[test]
fn an_entry_ends_when_its_buffer_is_freed_or_grows() {
    let _alone = alone();
    // In the heap, and in a separate mapping, which `free` unmaps inside the C library.
    for len in [100_usize, 20_000, 1 << 22] {
        // A cache for each buffer: the last lookup makes an entry for memory that the allocator may give out again.
        let (cache, _) = cache();
        let buffer = vec![1_u8; len];
        let memory = range(buffer.as_ptr().addr() as u64, len as u64);
        assert!(!get(&cache, memory).is_hit());
        assert_eq!(get(&cache, memory), Why::Hit);
        drop(buffer);
        assert!(!get(&cache, memory).is_hit(), "freed {len}");
    }
    let (cache, _) = cache();
    let mut buffer = vec![1_u8; 1 << 22];
    let memory = range(buffer.as_ptr().addr() as u64, 1 << 22);
    enter(&cache, memory);
    buffer.reserve_exact(1 << 23);
    assert!(!get(&cache, memory).is_hit());
}

/// The program's own pointer to a function. If the program is not position-independent, it points to code in the program,
/// which calls the function through a slot.
#[test]
fn a_call_through_the_programs_own_pointer_is_intercepted() {
    type Munmap = unsafe extern "C" fn(*mut libc::c_void, usize) -> i32;
    let _alone = alone();
    let (cache, monitor) = cache();
    let arena = Arena::new(4);
    let page = arena.pages(1, 1);
    arena.map(&page);
    enter(&cache, page);
    let pointer = std::hint::black_box(libc::munmap as Munmap);
    let calls = monitor.calls();
    // SAFETY: memory of the arena, to which nothing refers.
    let result = unsafe {
        pointer(
            std::ptr::with_exposed_provenance_mut(page.start() as usize),
            PAGE as usize,
        )
    };
    assert_eq!(result, 0);
    assert!(monitor.calls() > calls);
    assert!(!get(&cache, page).is_hit());
}

/// Whether this program is not position-independent (`e_type` is `ET_EXEC`). In such a program, `dlsym` may return code of the
/// program that calls the function through a slot.
fn has_fixed_addresses() -> bool {
    std::fs::read("/proc/self/exe").unwrap()[16] == 2
}

/// `sees_paths` agrees with the documentation about which changes are seen and which are not.
#[test]
fn the_monitor_reports_which_changes_it_sees() {
    let _alone = alone();
    let monitor = Memhooks::install().unwrap();
    assert_eq!(monitor.sees(), Sees::Some);
    // Another thread's call may count, too, but not every time.
    let mut always = Path::ALL.to_vec();
    for _ in 0..100 {
        for (path, seen) in monitor.sees_paths() {
            if !seen {
                always.retain(|other| *other != path);
            }
        }
    }
    let mut expected = Path::ALL.to_vec();
    let unseen = |path: &Path| match path {
        Path::Dlsym => !has_fixed_addresses(),
        path => *path == Path::SystemCall,
    };
    expected.retain(|path| !unseen(path));
    assert_eq!(always, expected);
}

#[test]
fn a_pinning_registrar_must_accept_a_monitor_that_misses_changes() {
    let _alone = alone();
    let monitor = Arc::new(Memhooks::install().unwrap());
    let fake = Fake::new(&World::new(1), Follows::Pages);
    let cache = Cache::new(fake, monitor, Options::default()).unwrap();
    assert_eq!(cache.off(), Some(Off::Partial));
}

/// One thread unmaps a page through the C library. Another gets the address at once, and sends from it.
/// Proves partly: FI-243 (the cache as a library)
#[test]
fn an_address_that_is_reused_at_once_is_never_stale() {
    const TRIES: u64 = 5000;
    /// While other programs spin, each attempt may cost several time slices.
    const TIME: Duration = Duration::from_secs(30);
    let _alone = alone();
    let Some(ring) = Ring::new() else {
        return;
    };
    let mut options = Options::default();
    options.accept_partial = true;
    options.rounding = Rounding::Pages;
    let monitor = Arc::new(Memhooks::install().unwrap());
    let cache = Cache::new(ring, monitor, options).unwrap();
    let arena = Arena::new(4);
    let page = arena.pages(1, 1);
    arena.unmap(&page);
    let sent = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let mut hits = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..TRIES {
                while sent.load(Ordering::SeqCst) < number {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    thread::yield_now();
                }
                arena.unmap(&page);
            }
        });
        for number in 1..=TRIES {
            while !arena.claim(&page) {
                thread::yield_now();
            }
            for part in [2 * number, 2 * number + 1] {
                stamp(&page, part);
                let guard = cache.get(page, SEND, Kind::HOST).unwrap();
                assert_eq!(cache.registrar().send(&guard, page.start()), part, "stale");
                hits += u64::from(guard.why().is_hit());
            }
            sent.store(number, Ordering::SeqCst);
            if begun.elapsed() > TIME {
                break;
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    assert!(hits > 0);
    println!("{hits} hits of {}", 2 * TRIES);
}

/// Hooks run inside the allocator's callers, on many threads at once, while caches are created and dropped.
#[test]
fn threads_that_allocate_and_free_do_not_wait_for_the_cache() {
    const ROUNDS: usize = 200;
    let _alone = alone();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..10 * ROUNDS {
                    let buffers: Vec<Vec<u8>> = (1..50).map(|len| vec![0; 100 * len]).collect();
                    drop(buffers);
                }
            });
        }
        for _ in 0..ROUNDS {
            let (cache, _) = cache();
            let buffer = vec![0_u8; 5000];
            let memory = range(buffer.as_ptr().addr() as u64, 5000);
            // The memory is not cached while another thread is in a hook, but soon the lookup hits.
            while !get(&cache, memory).is_hit() {}
        }
    });
    assert!(cache().1.calls() > 0);
}

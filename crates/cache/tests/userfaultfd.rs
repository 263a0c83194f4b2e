//! What each memory call does to entries under the monitor `userfaultfd`: the table in `docs/registration-cache.md`.

// UNSAFETY: the tests unmap and replace memory.
#![allow(unsafe_code)]

mod common;

use common::memory::{
    Arena, GUARD_INSTALL, PAGE, advise, protect, remap, stamp, unmap_by_dlsym, unmap_by_system_call,
};
use common::memory::{file, punch, truncate};
use common::ring::Ring;
use common::{SEND, in_a_child, range, userfaultfd};
use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Kind, Monitor, Off, OpenMethod, Options, Refusal, Rounding, Unavailable, Userfaultfd,
    Verdict, Why,
};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;

fn cache() -> Option<(Cache<Ring>, Arc<Userfaultfd>)> {
    let monitor = userfaultfd()?;
    let cache = Cache::new(Ring::new()?, monitor.clone(), Options::default()).unwrap();
    Some((cache, monitor))
}

fn get(cache: &Cache<Ring>, range: VaRange) -> Why {
    cache.get(range, SEND, Kind::HOST).unwrap().why()
}

/// Sends the first word of a buffer.
fn send(cache: &Cache<Ring>, range: VaRange) -> u64 {
    let guard = cache.get(range, SEND, Kind::HOST).unwrap();
    cache.registrar().send(&guard, range.start())
}

/// What a call does to an entry of two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The entry ends: the pages at its addresses were replaced or will be.
    Ends,
    /// The entry remains valid: the pages are the same.
    Stays,
    /// The entry remains, although the pages were replaced: the kernel reports nothing.
    Unseen,
}
use Effect::{Ends, Stays, Unseen};

/// A call on the second page of a buffer of two pages.
type Call = fn(&Arena, &VaRange) -> std::io::Result<()>;

const CALLS: &[(&str, Effect, Call)] = &[
    ("munmap", Ends, |arena, page| {
        arena.unmap(page);
        Ok(())
    }),
    ("munmap and mmap", Ends, |arena, page| {
        arena.unmap(page);
        arena.map(page);
        Ok(())
    }),
    ("mmap over it", Ends, |arena, page| {
        arena.map(page);
        Ok(())
    }),
    ("mremap away", Ends, |arena, page| {
        remap(page, &arena.pages(10, 1), libc::MREMAP_FIXED)
    }),
    ("mremap onto it", Ends, |arena, page| {
        arena.map(&arena.pages(12, 1));
        remap(&arena.pages(12, 1), page, libc::MREMAP_FIXED)
    }),
    ("mremap away, leaving it empty", Ends, |arena, page| {
        remap(
            page,
            &arena.pages(10, 1),
            libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP,
        )
    }),
    ("mremap shorter", Ends, |arena, page| {
        let whole = VaRange::new(page.start() - PAGE, 2 * PAGE).unwrap();
        remap(&whole, &VaRange::new(whole.start(), PAGE).unwrap(), 0).inspect(|()| {
            let _ = arena;
        })
    }),
    ("MADV_DONTNEED", Ends, |_, page| {
        advise(page, libc::MADV_DONTNEED)
    }),
    ("MADV_DONTNEED_LOCKED", Ends, |_, page| {
        advise(page, libc::MADV_DONTNEED_LOCKED)
    }),
    ("MADV_FREE", Ends, |_, page| advise(page, libc::MADV_FREE)),
    ("MADV_COLD", Stays, |_, page| advise(page, libc::MADV_COLD)),
    ("MADV_PAGEOUT", Stays, |_, page| {
        advise(page, libc::MADV_PAGEOUT)
    }),
    ("MADV_GUARD_INSTALL", Unseen, |_, page| {
        advise(page, GUARD_INSTALL)
    }),
    ("mprotect", Stays, |_, page| protect(page)),
    ("a write", Stays, |_, page| {
        stamp(page, 1);
        Ok(())
    }),
    ("munmap by the system call itself", Ends, |_, page| {
        unmap_by_system_call(page);
        Ok(())
    }),
    ("munmap through dlsym", Ends, |_, page| {
        unmap_by_dlsym(page);
        Ok(())
    }),
    ("fork", Stays, |_, _| {
        in_a_child(|| 0);
        Ok(())
    }),
];

/// Each call itself ends the entry, before anything else happens to the memory. If memory is then mapped at the same
/// address, a send from the changed page carries the new contents.
/// Proves partly: FI-241, FI-243 (the cache as a library)
#[test]
fn each_call_ends_the_entries_whose_pages_it_takes() {
    let Some((cache, monitor)) = cache() else {
        return;
    };
    for (name, effect, call) in CALLS {
        let arena = Arena::new(16);
        let buffer = arena.pages(2, 2);
        arena.map(&buffer);
        stamp(&buffer, 7);
        // An earlier call may have used the same addresses.
        assert!(!get(&cache, buffer).is_hit(), "{name}");
        assert_eq!(get(&cache, buffer), Why::Hit, "{name}");
        let (events, ended) = (monitor.events(), cache.stats().invalidations);
        let page = arena.pages(3, 1);
        match call(&arena, &page) {
            Ok(()) => {}
            Err(error) => {
                println!("{name}: skipped ({error})");
                continue;
            }
        }
        monitor.wait_until_applied();
        let events = monitor.events() - events;
        if *effect != Ends {
            assert_eq!(events, 0, "{name}");
            assert_eq!(get(&cache, buffer), Why::Hit, "{name}");
            continue;
        }
        assert!(events > 0, "{name}: no event");
        assert_eq!(cache.stats().invalidations, ended + 1, "{name}");
        // Claiming the page replaces no mapping, so it ends no entry: it only fills the hole that some calls leave.
        let hole = arena.claim(&page);
        stamp(&buffer, 8);
        let guard = cache.get(buffer, SEND, Kind::HOST).unwrap();
        assert!(matches!(guard.why(), Why::Ended(_)), "{name}: {guard:?}");
        let sent = cache.registrar().send(&guard, page.start());
        assert_eq!(sent, 8, "{name}: the send had old data");
        println!("{name}: {events} events, hole: {hole}");
    }
}

/// A program that maps other memory at the address of a cached buffer sends the new data.
/// Proves partly: FI-243 (the cache as a library)
#[test]
fn new_data_is_sent_after_memory_was_remapped() {
    let Some((cache, _)) = cache() else {
        return;
    };
    let arena = Arena::new(4);
    let buffer = arena.pages(0, 1);
    for number in 1..200 {
        arena.map(&buffer);
        stamp(&buffer, number);
        assert_eq!(send(&cache, buffer), number);
        assert_eq!(get(&cache, buffer), Why::Hit);
        arena.unmap(&buffer);
    }
}

#[test]
fn the_test_registrar_really_pins_pages() {
    let Some(ring) = Ring::new() else {
        return;
    };
    let arena = Arena::new(4);
    let buffer = arena.pages(0, 1);
    arena.map(&buffer);
    stamp(&buffer, 3);
    let request = rkey_cache::Request {
        range: buffer,
        rights: SEND,
        kind: Kind::HOST,
        backing: None,
    };
    let fixed = rkey_cache::Registrar::register(&ring, &request).unwrap();
    arena.unmap(&buffer);
    arena.map(&buffer);
    stamp(&buffer, 4);
    assert_eq!(
        ring.send(&fixed, buffer.start()),
        3,
        "the pinned page has the old data"
    );
}

fn unwatched(cache: &Cache<Ring>, range: VaRange) -> Refusal {
    match get(cache, range) {
        Why::Unwatched(refusal) => refusal,
        why => panic!("{why:?}"),
    }
}

/// Memory that can be unmapped without an event is registered for each use.
#[test]
fn memory_that_can_be_unmapped_without_an_event_is_not_cached() {
    let Some((cache, _)) = cache() else {
        return;
    };
    let arena = Arena::new(16);
    let buffer = arena.pages(0, 2);
    let file = file();
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        arena.map_by(&buffer, flags, file.as_raw_fd(), 0);
        stamp(&buffer, 5);
        assert_eq!(unwatched(&cache, buffer), Refusal::File);
        assert_eq!(send(&cache, buffer), 5);
    }
    // SAFETY: a new System V segment, mapped over memory of the arena, and marked for removal when it is detached.
    unsafe {
        let id = libc::shmget(
            libc::IPC_PRIVATE,
            2 * PAGE as usize,
            0o600 | libc::IPC_CREAT,
        );
        assert!(id >= 0);
        let at = std::ptr::with_exposed_provenance(buffer.start() as usize);
        let mapped = libc::shmat(id, at, libc::SHM_REMAP);
        assert_eq!(mapped.addr() as u64, buffer.start());
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
    }
    stamp(&buffer, 6);
    assert_eq!(unwatched(&cache, buffer), Refusal::SystemV);
    // A hole.
    arena.map(&arena.pages(4, 4));
    arena.unmap(&arena.pages(5, 1));
    let holed = arena.pages(4, 4);
    match cache.get(holed, SEND, Kind::HOST) {
        Ok(guard) => panic!("{guard:?}"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EFAULT)),
    }
    // Shared memory without a name.
    arena.map_by(&buffer, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0);
    assert_eq!(unwatched(&cache, buffer), Refusal::Shared);
}

/// The pages of shared memory can be removed by a child, by the process itself and through a descriptor. The monitor sees none
/// of this.
#[test]
fn shared_memory_whose_pages_were_removed_is_not_stale() {
    type Remove = fn(&VaRange, &std::os::fd::OwnedFd);
    let ways: [(&str, Remove); 4] = [
        ("MADV_REMOVE by a child", |buffer, _| {
            let removed = in_a_child(|| i32::from(advise(buffer, libc::MADV_REMOVE).is_err()));
            assert_eq!(removed, 0, "the child could not remove the pages");
        }),
        ("MADV_REMOVE", |buffer, _| {
            advise(buffer, libc::MADV_REMOVE).unwrap();
        }),
        ("ftruncate", |_, file| truncate(file)),
        ("punching a hole", |_, file| punch(file)),
    ];
    let Some((cache, monitor)) = cache() else {
        return;
    };
    let arena = Arena::new(4);
    let buffer = arena.pages(0, 2);
    let file = file();
    for (name, remove) in ways {
        arena.map_by(&buffer, libc::MAP_SHARED, file.as_raw_fd(), 0);
        stamp(&buffer, 5);
        assert_eq!(send(&cache, buffer), 5, "{name}");
        let events = monitor.events();
        remove(&buffer, &file);
        stamp(&buffer, 6);
        assert_eq!(send(&cache, buffer), 6, "{name}: the send had old data");
        assert_eq!(monitor.events(), events, "{name}");
    }
}

/// Attaching System V memory over a part of a buffer causes no event.
#[test]
fn system_v_memory_over_part_of_a_large_buffer_is_detected() {
    let Some((cache, monitor)) = cache() else {
        return;
    };
    let arena = Arena::new(260);
    let buffer = arena.pages(0, 256);
    arena.map(&buffer);
    stamp(&buffer, 5);
    assert_eq!(get(&cache, buffer), Why::Absent);
    assert_eq!(get(&cache, buffer), Why::Hit);
    let (events, over) = (monitor.events(), arena.pages(100, 2));
    // SAFETY: a new segment, over memory of the arena, to which nothing refers; it is removed when it is detached.
    unsafe {
        let id = libc::shmget(
            libc::IPC_PRIVATE,
            2 * PAGE as usize,
            0o600 | libc::IPC_CREAT,
        );
        assert!(id >= 0);
        let at = std::ptr::with_exposed_provenance(over.start() as usize);
        let mapped = libc::shmat(id, at, libc::SHM_REMAP);
        assert_eq!(mapped.addr() as u64, over.start());
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
    }
    stamp(&buffer, 6);
    let guard = cache.get(buffer, SEND, Kind::HOST).unwrap();
    assert_eq!(cache.registrar().send(&guard, over.start()), 6, "stale");
    assert_eq!(monitor.events(), events);
}

/// Memory that another descriptor watches is refused, so it is not cached.
#[test]
fn memory_that_another_library_watches_is_not_cached() {
    let (Some((cache, _)), Some(other)) = (cache(), userfaultfd()) else {
        return;
    };
    let arena = Arena::new(4);
    arena.map(&arena.pages(0, 1));
    assert_eq!(other.watch(arena.pages(0, 1)), Ok(()));
    assert_eq!(unwatched(&cache, arena.pages(0, 1)), Refusal::Foreign);
    assert_eq!(other.validate(arena.pages(0, 1)), Verdict::Fresh);
}

/// The monitor's thread may exit at any time: no thread waits for it, and nothing is cached afterwards.
#[test]
fn a_reader_that_exits_blocks_no_thread() {
    let Ok((monitor, mut reader)) = Userfaultfd::open() else {
        println!("skipped: no userfaultfd");
        return;
    };
    let Some(ring) = Ring::new() else {
        return;
    };
    let monitor = Arc::new(monitor);
    let cache = Cache::new(ring, monitor.clone(), Options::default()).unwrap();
    let arena = Arena::new(4);
    let (first, second) = (arena.pages(0, 1), arena.pages(2, 1));
    arena.map(&first);
    arena.map(&second);
    get(&cache, first);
    get(&cache, second);
    assert_eq!(get(&cache, first), Why::Hit);
    thread::scope(|scope| {
        // The thread waits until its event is read, or the reader is dropped, as below.
        let blocked = scope.spawn(|| arena.unmap(&first));
        while monitor.validate(second) != Verdict::Busy {
            thread::yield_now();
        }
        assert!(!blocked.is_finished());
        assert_eq!(get(&cache, second), Why::Busy);
        drop(reader);
    });
    // A change that no monitor sees.
    arena.map(&second);
    stamp(&second, 9);
    assert_eq!(send(&cache, second), 9);
    assert_eq!(unwatched(&cache, second), Refusal::Stopped);
    // A program can also call the reader's steps itself.
    let (monitor, again) = Userfaultfd::open().unwrap();
    reader = again;
    let soon = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 1,
    };
    assert_eq!(reader.step(Some(&soon)), rkey_cache::Step::Nothing);
    drop(monitor);
    assert_eq!(reader.step(None), rkey_cache::Step::End);
}

/// Threads that unmap watched memory continue when the reader exits, regardless of what it has read by then.
#[test]
fn no_thread_sleeps_after_the_end_of_the_reader() {
    const ROUNDS: u64 = 100;
    if userfaultfd().is_none() {
        return;
    }
    let arena = Arena::new(64);
    for round in 0..ROUNDS {
        let (monitor, mut reader) = Userfaultfd::open().unwrap();
        thread::scope(|scope| {
            for number in 0..2 {
                let (monitor, arena) = (&monitor, &arena);
                scope.spawn(move || {
                    let page = arena.pages(8 * number, 1);
                    let away = arena.pages(8 * number + 4, 1);
                    // Until the reader has ended.
                    loop {
                        arena.map(&page);
                        let watched = monitor.watch(page);
                        // Moves the page to an address that the reader may have passed already.
                        if round % 2 == 0 {
                            remap(&page, &away, libc::MREMAP_FIXED).unwrap();
                            arena.unmap(&away);
                        }
                        arena.unmap(&page);
                        if watched == Err(Refusal::Stopped) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..round % 8 {
                let soon = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 1_000_000,
                };
                reader.step(Some(&soon));
            }
            drop(reader);
        });
    }
}

/// When a child drops its copies of the monitor and the cache, the parent's continue to work.
#[test]
fn a_monitor_dropped_in_a_child_keeps_working_in_the_parent() {
    let Some((cache, monitor)) = cache() else {
        return;
    };
    let arena = Arena::new(4);
    let buffer = arena.pages(0, 1);
    arena.map(&buffer);
    get(&cache, buffer);
    assert_eq!(get(&cache, buffer), Why::Hit);
    let mut parents = Some((cache, monitor));
    let dropped = in_a_child(|| {
        // SAFETY: sets a timer, so that a child that waits ends.
        unsafe { libc::alarm(60) };
        drop(parents.take());
        7
    });
    assert_eq!(dropped, 7);
    let (cache, monitor) = parents.unwrap();
    assert_eq!(get(&cache, buffer), Why::Hit);
    // The unmapping waits until the reader has read the event, or has ended.
    let events = monitor.events();
    arena.unmap(&buffer);
    monitor.wait_until_applied();
    assert_eq!(monitor.events(), events + 1);
    arena.map(&buffer);
    assert!(matches!(get(&cache, buffer), Why::Ended(_)));
    assert_eq!(get(&cache, buffer), Why::Hit);
}

#[test]
fn a_forked_child_gets_no_entry_of_its_parent() {
    let Some((cache, _)) = cache() else {
        return;
    };
    let arena = Arena::new(4);
    let buffer = arena.pages(0, 1);
    arena.map(&buffer);
    get(&cache, buffer);
    assert_eq!(get(&cache, buffer), Why::Hit);
    let status = in_a_child(|| {
        let off = cache.off() == Some(Off::Forked);
        // No thread reads events for the child, so this must not wait.
        arena.unmap(&buffer);
        if off { 7 } else { 8 }
    });
    assert_eq!(status, 7);
    assert_eq!(get(&cache, buffer), Why::Hit);
}

/// Entries in the allocator's memory end when their pages are unmapped.
#[test]
fn free_and_malloc_leave_no_stale_entry() {
    let Some((cache, _)) = cache() else {
        return;
    };
    for number in 1..50_u64 {
        // Large enough for its own mapping, which `free` unmaps.
        let mut buffer = vec![0_u64; 1 << 16];
        buffer[0] = number;
        let address = buffer.as_ptr().expose_provenance() as u64;
        let range = range(address, 8);
        assert_eq!(send(&cache, range), number);
        assert_eq!(get(&cache, range), Why::Hit);
        drop(buffer);
    }
}

#[test]
fn each_way_to_open_a_userfaultfd_works_or_explains_why_not() {
    for way in OpenMethod::ALL {
        match Userfaultfd::open_by(&[way]) {
            Ok((monitor, _)) => assert_eq!(monitor.method(), way),
            Err(Unavailable::Refused(refused)) => {
                assert_eq!(refused[0].0, way);
                println!("{way}: {}", refused[0].1);
            }
            Err(error) => println!("{error}"),
        }
    }
    let none = Userfaultfd::open_by(&[]).map(|_| ()).unwrap_err();
    assert!(matches!(none, Unavailable::Refused(refused) if refused.is_empty()));
}

/// For a large buffer the kernel is asked about only one page of each mapping; events report changes of the others.
#[test]
fn a_change_in_the_middle_of_a_large_buffer_is_detected() {
    let Some((cache, _)) = cache() else {
        return;
    };
    let arena = Arena::new(260);
    let buffer = arena.pages(0, 256);
    arena.map(&buffer);
    assert_eq!(get(&cache, buffer), Why::Absent);
    assert_eq!(get(&cache, buffer), Why::Hit);
    arena.unmap(&arena.pages(100, 1));
    arena.map(&arena.pages(100, 1));
    stamp(&buffer, 11);
    assert!(matches!(get(&cache, buffer), Why::Ended(_)));
    let guard = cache.get(buffer, SEND, Kind::HOST).unwrap();
    assert_eq!(
        cache.registrar().send(&guard, arena.pages(100, 1).start()),
        11
    );
}

#[test]
fn entries_are_whole_pages_and_serve_their_parts() {
    let Some((cache, _)) = cache() else {
        return;
    };
    assert_eq!(Options::default().rounding, Rounding::Pages);
    let arena = Arena::new(4);
    let page = arena.pages(0, 1);
    arena.map(&page);
    stamp(&page, 12);
    assert_eq!(get(&cache, page.slice(100, 8).unwrap()), Why::Absent);
    assert_eq!(get(&cache, page.slice(4000, 8).unwrap()), Why::Hit);
    assert_eq!(send(&cache, page.slice(0, 8).unwrap()), 12);
}

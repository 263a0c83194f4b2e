//! What the seals prevent, and which descriptors are refused.

use super::*;
use crate::fault::Fault;
use crate::memory::{Memory, ProcessMemory};
use crate::process::{CmaError, cma_read_with, page_size};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

fn map_writable(fd: impl AsFd) -> Result<(), Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice; it is never used.
    #[expect(unsafe_code, reason = "to show that it fails")]
    unsafe {
        mmap(
            std::ptr::null_mut(),
            page_size(),
            protection,
            MapFlags::SHARED,
            fd,
            0,
        )
        .map(|_| ())
    }
}

fn memory() -> ProcessMemory {
    #[expect(unsafe_code, reason = "tests write to mappings of their own")]
    // SAFETY: the tests here give it addresses of segments that they made.
    unsafe {
        ProcessMemory::new()
    }
}

fn bare(size: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn a_peer_sees_writes_to_a_segment_but_cannot_change_it() {
    let mut own = OwnSegment::create("rkey-test", 5000).unwrap();
    assert_eq!(own.len(), 2 * page_size());
    let fd = own.fd().try_clone_to_owned().unwrap();
    let peer = PeerSegment::map(fd, 1, 1 << 20).unwrap();
    assert_eq!(peer.len(), own.len());
    own.place(100, 5).unwrap().put(0, b"hello");
    own.word_u32(128).store(7, Ordering::Release);
    own.word_u64(136).store(8, Ordering::Release);
    assert_eq!(peer.load_u32(128), 7);
    assert_eq!(peer.load_u64(136), 8);
    assert_eq!(peer.foreign(100, 5).unwrap().to_vec(), b"hello");
    assert!(own.place(peer.len() - 4, 5).is_none());
    assert!(peer.foreign(usize::MAX, 2).is_none());
    assert!(peer.foreign(peer.len(), 0).is_some());

    // The descriptor allows only reading, even though its mode says read-write.
    let fd = own.fd();
    assert_eq!(map_writable(fd), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, 1 << 20), Err(Errno::PERM));
    assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(fd, punch, 0, 4096), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    let reopened = std::fs::OpenOptions::new()
        .write(true)
        .read(true)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    assert_eq!(map_writable(reopened.unwrap()), Err(Errno::PERM));
    // The mapping cannot be written either: a store faults.
    let at = peer.as_ptr().expose_provenance() as u64;
    assert_eq!(memory().store_bytes(at, b"x"), Err(Fault::at(at)));
}

#[test]
fn a_segment_outlives_its_descriptor_and_creator() {
    let own = OwnSegment::create("rkey-test", 1).unwrap();
    own.word_u32(0).store(9, Ordering::Release);
    let fd = own.fd().try_clone_to_owned().unwrap();
    let peer = PeerSegment::map(fd, 0, usize::MAX).unwrap();
    drop(own);
    assert_eq!(peer.load_u32(0), 9);
}

#[test]
fn segments_that_could_harm_the_receiver_are_refused() {
    let refused = |fd: OwnedFd| {
        let error = PeerSegment::map(fd, 4096, 8192).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        error.to_string()
    };
    assert!(refused(bare(4096, SealFlags::GROW)).contains("shrinking"));
    assert!(refused(bare(4095, SealFlags::SHRINK)).contains("4095 bytes"));
    assert!(refused(bare(8193, SealFlags::SHRINK)).contains("8193 bytes"));
    assert!(refused(bare(0, SealFlags::SHRINK)).contains("0 bytes"));
    assert!(refused(std::fs::File::open("/proc/self/exe").unwrap().into()).contains("not a memfd"));
    assert!(refused(std::io::pipe().unwrap().0.into()).contains("not a memfd"));
    assert!(PeerSegment::map(bare(0, SealFlags::SHRINK), 0, 10).is_err());
    assert!(PeerSegment::map(bare(4096, SealFlags::SHRINK), 4096, 8192).is_ok());
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    match memfd_create("test", flags) {
        Ok(huge) => {
            ftruncate(&huge, 2 << 20).unwrap();
            fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
            let error = PeerSegment::map(huge, 1, 1 << 30).unwrap_err();
            assert!(error.to_string().contains("ordinary pages"), "{error}");
        }
        Err(error) => eprintln!("SKIP: no huge pages here ({error})"),
    }
}

#[test]
#[should_panic(expected = "no aligned word")]
fn a_word_must_be_aligned() {
    let _ = OwnSegment::create("rkey-test", 1).unwrap().word_u64(4);
}

#[test]
#[should_panic(expected = "no aligned word")]
fn a_word_must_lie_inside_its_segment() {
    let own = OwnSegment::create("rkey-test", 1).unwrap();
    let _ = own.word_u32(own.len());
}

#[test]
fn an_arena_and_its_mapping_in_a_peer_share_memory() {
    let page = page_size();
    let arena = Arena::create("rkey-test", 3 * page, Sharing::ReadWrite).unwrap();
    assert_eq!(arena.sharing(), None);
    assert_eq!(
        arena.fix_sharing(Sharing::ReadWrite).unwrap(),
        Sharing::ReadWrite
    );
    // Once fixed, the sharing cannot be changed.
    assert_eq!(
        arena.fix_sharing(Sharing::ReadOnly).unwrap(),
        Sharing::ReadWrite
    );
    let peer = PeerArena::map(
        arena.duplicate_fd().unwrap(),
        page as u64,
        page as u64,
        Sharing::ReadWrite,
    )
    .unwrap();
    assert_eq!((arena.len(), peer.len()), (3 * page, page));
    let memory = memory();
    let address = |p: *mut u8| p.expose_provenance() as u64;
    memory
        .store_bytes(address(peer.as_ptr()) + 8, b"from afar")
        .unwrap();
    let mut seen = [0; 9];
    memory
        .load_bytes(&mut seen, address(arena.as_ptr()) + page as u64 + 8)
        .unwrap();
    assert_eq!(&seen, b"from afar");
    assert_eq!(ftruncate(arena.fd(), 0), Err(Errno::PERM));
    assert_eq!(
        fcntl_add_seals(arena.fd(), SealFlags::FUTURE_WRITE),
        Err(Errno::PERM)
    );
}

#[test]
fn peers_cannot_write_a_read_only_arena() {
    let page = page_size() as u64;
    let arena = Arena::create("rkey-test", 1, Sharing::ReadOnly).unwrap();
    assert_eq!(arena.sharing(), Some(Sharing::ReadOnly));
    let fd = || arena.duplicate_fd().unwrap();
    let error = PeerArena::map(fd(), 0, page, Sharing::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let peer = PeerArena::map(fd(), 0, page, Sharing::ReadOnly).unwrap();
    let memory = memory();
    let at = |p: *mut u8| p.expose_provenance() as u64;
    assert!(memory.store_bytes(at(peer.as_ptr()), b"x").is_err());
    memory.store_bytes(at(arena.as_ptr()), b"xy").unwrap();
    let mut seen = [0; 2];
    memory.load_bytes(&mut seen, at(peer.as_ptr())).unwrap();
    assert_eq!(&seen, b"xy");
}

/// A peer of the same user that got the descriptor for reading tries every way to write, even if the arena allowed
/// writing until its sharing was fixed.
#[test]
fn a_hostile_reader_of_the_same_user_cannot_write() {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let page = page_size();
    let arena = Arena::create("rkey-test", 2 * page, Sharing::ReadWrite).unwrap();
    let memory = memory();
    let ours = arena.as_ptr().expose_provenance() as u64;
    memory.store_bytes(ours, b"before").unwrap();
    assert_eq!(
        arena.fix_sharing(Sharing::ReadOnly).unwrap(),
        Sharing::ReadOnly
    );
    let fd = arena.duplicate_fd().unwrap();

    assert_eq!(map_writable(&fd), Err(Errno::PERM));
    let peer = PeerArena::map(fd.try_clone().unwrap(), 0, page as u64, Sharing::ReadOnly).unwrap();
    let protection = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
    // SAFETY: the mapping is this test's own, and nothing else uses it.
    #[expect(unsafe_code, reason = "to show that it fails")]
    let changed = unsafe { rustix::mm::mprotect(peer.as_ptr().cast(), page, protection) };
    assert_eq!(changed, Err(Errno::ACCESS));
    let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    for mode in [0o666, 0o600] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let again = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        assert_eq!(map_writable(&again), Err(Errno::PERM));
        assert!(again.write_at(b"hostile", 0).is_err_and(denied));
        assert!(again.set_len(0).is_err_and(denied));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&again, hole, 0, page as u64), Err(Errno::PERM));
        assert!(
            std::fs::File::options()
                .write(true)
                .truncate(true)
                .open(&path)
                .is_err_and(denied)
        );
    }
    let mut seen = [0; 6];
    memory.load_bytes(&mut seen, ours).unwrap();
    assert_eq!(&seen, b"before");
    // The owner continues to write, and the reader sees it.
    memory.store_bytes(ours, b"behind").unwrap();
    let theirs = peer.as_ptr().expose_provenance() as u64;
    memory.load_bytes(&mut seen, theirs).unwrap();
    assert_eq!(&seen, b"behind");
}

#[test]
fn a_peer_no_longer_shares_detached_pages() {
    let page = page_size();
    for sharing in [Sharing::ReadWrite, Sharing::ReadOnly] {
        let arena = Arena::create("rkey-test", 4 * page, sharing).unwrap();
        let fd = arena.duplicate_fd().unwrap();
        let peer = PeerArena::map(fd, 0, 4 * page as u64, sharing).unwrap();
        let memory = memory();
        let ours = arena.as_ptr().expose_provenance() as u64;
        let theirs = peer.as_ptr().expose_provenance() as u64;
        let word = |base: u64, index: usize| {
            let mut word = [0; 8];
            memory
                .load_bytes(&mut word, base + (index * page) as u64)
                .unwrap();
            u64::from_le_bytes(word)
        };
        let set = |base: u64, index: usize, value: u64| {
            memory.store_bytes(base + (index * page) as u64, &value.to_le_bytes())
        };
        for index in 0..4 {
            set(ours, index, 10 + index as u64).unwrap();
        }
        arena.detach(page, 2 * page).unwrap();
        // Our bytes are unchanged, and neither side sees what the other writes.
        for index in 0..4 {
            assert_eq!(word(ours, index), 10 + index as u64);
            let written = set(theirs, index, 20 + index as u64);
            assert_eq!(written.is_ok(), sharing == Sharing::ReadWrite);
        }
        let shared = |index| match (sharing, index) {
            (Sharing::ReadWrite, 0 | 3) => 20 + index as u64,
            _ => 10 + index as u64,
        };
        for index in 0..4 {
            assert_eq!(word(ours, index), shared(index), "{sharing:?} {index}");
            set(ours, index, 30 + index as u64).unwrap();
        }
        for index in 0..4 {
            let is_shared = index == 0 || index == 3;
            assert_eq!(word(theirs, index) == 30 + index as u64, is_shared);
        }
        // Pages that are detached already stay as they are.
        arena.detach(0, 3 * page).unwrap();
        for index in 0..4 {
            assert_eq!(word(ours, index), 30 + index as u64);
        }
        // Ranges that are not whole pages are refused.
        for (offset, len) in [(1, page), (0, 0), (0, page - 1), (4 * page, page)] {
            let error = arena.detach(offset, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        assert!(arena.detach(usize::MAX - page + 1, page).is_err());
        drop(peer);
        drop(arena);
        assert!(memory.load_bytes(&mut [0], ours + page as u64).is_err());
    }
}

/// While pages are detached, threads of the owner increment counters in them: no increment is lost.
#[test]
fn no_store_is_lost_while_pages_are_detached() {
    const THREADS: usize = 3;
    let page = page_size();
    let pages = 64;
    let arena = Arena::create("rkey-test", pages * page, Sharing::ReadWrite).unwrap();
    let memory = memory();
    let base = arena.as_ptr().expose_provenance() as u64;
    let go_on = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        let counters: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (memory, go_on) = (&memory, &go_on);
                scope.spawn(move || {
                    let mut counts = vec![0u64; pages];
                    while go_on.load(Ordering::Relaxed) {
                        for (index, count) in counts.iter_mut().enumerate() {
                            // Each thread has its own word in each page.
                            let at = base + (index * page + thread * 8) as u64;
                            let old = memory.fetch_add(at, 1).unwrap();
                            assert_eq!(old, *count, "a step was lost");
                            *count += 1;
                        }
                    }
                })
            })
            .collect();
        for index in 0..pages {
            arena.detach(index * page, page).unwrap();
            std::thread::yield_now();
        }
        go_on.store(false, Ordering::Relaxed);
        for counter in counters {
            counter.join().unwrap();
        }
    });
}

#[test]
fn ranges_outside_an_arena_are_refused() {
    let page = page_size() as u64;
    let arena = Arena::create("rkey-test", 1, Sharing::ReadWrite).unwrap();
    let kind = |offset, len| {
        let fd = arena.duplicate_fd().unwrap();
        PeerArena::map(fd, offset, len, Sharing::ReadWrite)
            .unwrap_err()
            .kind()
    };
    assert_eq!(kind(0, 2 * page), ErrorKind::InvalidData);
    assert_eq!(kind(page, page), ErrorKind::InvalidData);
    assert_eq!(kind(u64::MAX - page + 1, page), ErrorKind::InvalidData);
    assert_eq!(kind(0, 0), ErrorKind::InvalidInput);
    assert_eq!(kind(1, page), ErrorKind::InvalidInput);
    assert_eq!(kind(0, page - 1), ErrorKind::InvalidInput);
}

#[test]
fn a_permit_lasts_until_it_is_revoked() {
    let own = OwnPermit::create().unwrap();
    let peer = PeerPermit::map(own.fd().try_clone_to_owned().unwrap()).unwrap();
    let source: Vec<u8> = (0..200).collect();
    let from = source.as_ptr().expose_provenance() as u64;
    let me = std::process::id();
    let mut seen = vec![0; 200];
    let read = |seen: &mut [u8]| {
        let to = seen.as_mut_ptr();
        #[expect(unsafe_code, reason = "a copy to a raw address")]
        // SAFETY: as many bytes as there are, borrowed for the call.
        unsafe {
            cma_read_with(&peer, me, to, from, seen.len())
        }
    };
    assert_eq!(read(&mut seen), Ok(()));
    assert_eq!(seen, source);
    own.revoke();
    assert_eq!(read(&mut seen), Err(CmaError::Revoked));
    own.revoke();
    // A revoked permit cannot be restored, neither by changing its size nor by a new mapping.
    assert_eq!(ftruncate(own.fd(), 4096), Err(Errno::PERM));
    let late = PeerPermit::map(own.fd().try_clone_to_owned().unwrap()).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::InvalidData);
    assert_eq!(read(&mut seen), Err(CmaError::Revoked));
    // Nothing else is accepted as a permit.
    let segment = OwnSegment::create("rkey-test", 1).unwrap();
    assert!(PeerPermit::map(segment.fd().try_clone_to_owned().unwrap()).is_err());
    let file = std::fs::File::open("/dev/zero").unwrap();
    assert!(PeerPermit::map(file.into()).is_err());
}

#[test]
fn the_owner_of_a_permit_reads_the_note_of_its_peer() {
    let own = OwnPermit::create().unwrap();
    let peer = PeerPermit::map(own.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(own.note(), 0);
    for note in [1, u64::MAX, 7] {
        peer.leave_note(note).unwrap();
        assert_eq!(own.note(), note);
    }
    own.revoke();
    assert!(peer.leave_note(8).is_err());
    assert_eq!(own.note(), 0);
}

#[test]
fn a_forked_child_lacks_the_segment_and_can_drop_it_safely() {
    let own = OwnSegment::create("rkey-test", 1).unwrap();
    own.word_u32(0).store(1, Ordering::Relaxed);
    let at = own.as_ptr().expose_provenance() as u64;
    let memory = memory();
    #[expect(unsafe_code, reason = "fork")]
    // SAFETY: the child only copies, makes mapping calls and exits.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let gone = memory.load_bytes(&mut [0], at) == Err(Fault::at(at));
            // Something else is mapped at the address, and must survive the drop.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let other = libc::mmap(at as *mut libc::c_void, page_size(), rights, flags, -1, 0);
            let placed = other as u64 == at;
            drop(own);
            let survived = memory.load_bytes(&mut [0], at).is_ok();
            libc::_exit(i32::from(!(gone && placed && survived)));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert_eq!(status, 0);
    }
    assert_eq!(own.word_u32(0).load(Ordering::Relaxed), 1);
}

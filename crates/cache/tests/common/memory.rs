//! Memory that a test maps, unmaps and changes itself, at its own addresses.

#![allow(
    dead_code,
    reason = "each test program uses only a part of this shared module"
)]
// UNSAFETY: the tests unmap and replace memory.
#![allow(unsafe_code)]

use rkey_base::range::VaRange;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses that only the test uses: far from those that the kernel chooses for mappings, so that nothing is mapped
/// into a hole. Dropping it unmaps them.
pub(crate) struct Arena {
    start: u64,
    len: u64,
}

static NEXT: AtomicU64 = AtomicU64::new(0x1000_0000_0000);

fn pointer(address: u64) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

pub(crate) const PAGE: u64 = 4096;

impl Arena {
    /// Room for `pages` pages. Nothing can be read or written there until it is mapped.
    pub(crate) fn new(pages: u64) -> Self {
        // A page without access on either side, so that no other mapping is next to it.
        let len = (pages + 2) * PAGE;
        let start = NEXT.fetch_add(1 << 32, Ordering::Relaxed);
        // SAFETY: replaces nothing.
        let mapped = unsafe {
            libc::mmap(
                pointer(start),
                len as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE
                    | libc::MAP_ANONYMOUS
                    | libc::MAP_NORESERVE
                    | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(mapped.expose_provenance() as u64, start);
        Self { start, len }
    }

    /// The range of some pages of the arena.
    pub(crate) fn pages(&self, first: u64, count: u64) -> VaRange {
        let room = VaRange::new(self.start + PAGE, self.len - 2 * PAGE).unwrap();
        room.slice(first * PAGE, count * PAGE).unwrap()
    }

    /// Maps zeroed memory over the range, with these flags (`MAP_FIXED` is added).
    pub(crate) fn map_by(&self, range: &VaRange, flags: i32, fd: i32, offset: i64) {
        assert!(self.start < range.start() && range.end() < self.start + self.len);
        // SAFETY: replaces memory inside the arena, to which no Rust reference exists.
        let mapped = unsafe {
            libc::mmap(
                pointer(range.start()),
                range.len() as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                flags | libc::MAP_FIXED,
                fd,
                offset,
            )
        };
        let error = std::io::Error::last_os_error();
        assert_eq!(mapped.addr() as u64, range.start(), "mmap: {error}");
    }

    /// Maps private zeroed memory over the range.
    pub(crate) fn map(&self, range: &VaRange) {
        self.map_by(range, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    }

    /// Maps private zeroed memory to the range, if nothing is mapped there.
    pub(crate) fn claim(&self, range: &VaRange) -> bool {
        assert!(self.start < range.start() && range.end() < self.start + self.len);
        // SAFETY: replaces nothing.
        let mapped = unsafe {
            libc::mmap(
                pointer(range.start()),
                range.len() as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        mapped != libc::MAP_FAILED
    }

    /// Unmaps the range. Only other threads of this test may map something there.
    pub(crate) fn unmap(&self, range: &VaRange) {
        assert!(self.start < range.start() && range.end() < self.start + self.len);
        // SAFETY: as in `map_by`.
        assert_eq!(0, unsafe {
            libc::munmap(pointer(range.start()), range.len() as usize)
        });
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the arena is this test's own, and nothing refers to it anymore.
        unsafe { libc::munmap(pointer(self.start), self.len as usize) };
    }
}

/// Writes a number to the beginning of each page.
pub(crate) fn stamp(range: &VaRange, stamp: u64) {
    for address in (range.start()..range.end()).step_by(PAGE as usize) {
        // SAFETY: the test has mapped the memory for writing, and other threads only write stamps there.
        unsafe { pointer(address).cast::<u64>().write_volatile(stamp) };
    }
}

/// Advises the kernel.
pub(crate) fn advise(range: &VaRange, advice: i32) -> std::io::Result<()> {
    // SAFETY: memory of an arena, to which no Rust reference exists; its contents may be lost.
    let result = unsafe { libc::madvise(pointer(range.start()), range.len() as usize, advice) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Moves memory. Both ranges are in arenas.
pub(crate) fn remap(from: &VaRange, to: &VaRange, flags: i32) -> std::io::Result<()> {
    // SAFETY: as in `advise`.
    let moved = unsafe {
        libc::mremap(
            pointer(from.start()),
            from.len() as usize,
            to.len() as usize,
            libc::MREMAP_MAYMOVE | flags,
            pointer(to.start()),
        )
    };
    if moved == libc::MAP_FAILED {
        Err(std::io::Error::last_os_error())
    } else {
        assert_eq!(moved.addr() as u64, to.start());
        Ok(())
    }
}

/// `MADV_GUARD_INSTALL`, of Linux 6.13.
pub(crate) const GUARD_INSTALL: i32 = 102;

/// Makes memory read-only.
pub(crate) fn protect(range: &VaRange) -> std::io::Result<()> {
    // SAFETY: as in `advise`; nothing writes to the memory before it is unmapped.
    let result = unsafe {
        libc::mprotect(
            pointer(range.start()),
            range.len() as usize,
            libc::PROT_READ,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Unmaps memory of an arena without the C library's `munmap`.
pub(crate) fn unmap_by_system_call(range: &VaRange) {
    // SAFETY: as in `advise`.
    let result = unsafe { libc::syscall(libc::SYS_munmap, pointer(range.start()), range.len()) };
    assert_eq!(result, 0);
}

/// Unmaps memory of an arena through the pointer that `dlsym` returns.
pub(crate) fn unmap_by_dlsym(range: &VaRange) {
    type Munmap = unsafe extern "C" fn(*mut libc::c_void, usize) -> i32;
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"munmap".as_ptr()) };
    assert!(!found.is_null());
    // SAFETY: the address of the function of that name, whose type this is.
    let munmap = unsafe { std::mem::transmute::<*mut libc::c_void, Munmap>(found) };
    // SAFETY: as in `advise`.
    let result = unsafe { munmap(pointer(range.start()), range.len() as usize) };
    assert_eq!(result, 0);
}

/// A file in memory of two pages.
pub(crate) fn file() -> OwnedFd {
    let file = rustix::fs::memfd_create("cache", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 2 * PAGE).unwrap();
    file
}

/// Removes the pages of a [`file`], and adds new ones.
pub(crate) fn truncate(file: &OwnedFd) {
    rustix::fs::ftruncate(file, 0).unwrap();
    rustix::fs::ftruncate(file, 2 * PAGE).unwrap();
}

/// Removes the pages of a [`file`], which keeps its length.
pub(crate) fn punch(file: &OwnedFd) {
    use rustix::fs::FallocateFlags;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, 0, 2 * PAGE).unwrap();
}

//! Memory that a test maps itself, so that it can unmap or protect its pages or truncate the file behind them
//! while it is registered.
#![allow(unsafe_code)] // UNSAFETY: maps memory, and loads and stores words in it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rkey_base::range::VaRange;

pub const PAGE: usize = 4096;

/// The address of the next mapping: far below the addresses that the kernel chooses, and never reused. So a
/// hole that a test makes stays a hole, whatever other threads map.
static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);

/// Our own mapping. Words are only accessed through atomics.
pub struct Mapped {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is only accessed through atomics and system calls.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Zeroed memory, or the file.
    pub fn new(len: usize, file: Option<&OwnedFd>) -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(unused(len), len, rights, file, libc::MAP_FIXED_NOREPLACE);
        Self { start, len }
    }

    /// Reserves addresses without pages.
    pub fn reserved(len: usize) -> Self {
        let flags = libc::MAP_FIXED_NOREPLACE;
        let start = map(unused(len), len, libc::PROT_NONE, None, flags);
        Self { start, len }
    }

    pub fn base(&self) -> u64 {
        self.start as u64
    }

    pub fn range(&self) -> VaRange {
        VaRange::new(self.base(), self.len as u64).unwrap()
    }

    /// Unmaps pages.
    pub fn unmap(&self, at: usize, len: usize) {
        assert!(at + len <= self.len);
        // SAFETY: a part of our mapping, to which there are no references.
        assert_eq!(unsafe { libc::munmap(self.start.add(at).cast(), len) }, 0);
    }

    /// Changes the protection to none, read-only or all.
    pub fn protect(&self, at: usize, len: usize, protection: i32) {
        assert!(at + len <= self.len);
        // SAFETY: a part of our mapping, to which there are no references.
        let done = unsafe { libc::mprotect(self.start.add(at).cast(), len, protection) };
        assert_eq!(done, 0);
    }

    pub fn forbid(&self, at: usize, len: usize) {
        self.protect(at, len, libc::PROT_NONE);
    }

    pub fn allow(&self, at: usize, len: usize) {
        self.protect(at, len, libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Maps new pages at the same addresses.
    pub fn map_again(&self, at: usize, len: usize) {
        assert!(at + len <= self.len);
        // SAFETY: within our own range of addresses.
        let start = unsafe { self.start.add(at) };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(map(start, len, rights, None, libc::MAP_FIXED), start);
    }

    fn at(&self, word: usize) -> &AtomicU64 {
        assert!((word + 1) * 8 <= self.len);
        // SAFETY: aligned, inside the mapping; the caller guarantees that a page is mapped there now.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u64>().add(word)) }
    }

    /// A word. Its page must be mapped.
    pub fn word(&self, word: usize) -> u64 {
        self.at(word).load(Ordering::Relaxed)
    }

    /// Writes a word. Its page must be mapped writable.
    pub fn set(&self, word: usize, value: u64) {
        self.at(word).store(value, Ordering::Relaxed);
    }

    pub fn words(&self) -> usize {
        self.len / 8
    }

    /// Fills words from `from` on.
    pub fn fill(&self, from: usize, count: usize, value: impl Fn(usize) -> u64) {
        for word in from..from + count {
            self.set(word, value(word));
        }
    }

    /// The first word with another value than expected.
    pub fn first_other(
        &self,
        from: usize,
        count: usize,
        is_right: impl Fn(usize, u64) -> bool,
    ) -> Option<usize> {
        (from..from + count).find(|&word| !is_right(word, self.word(word)))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own addresses; parts may already be unmapped, which is not an error.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Addresses that were never used, a page apart from the previous ones.
fn unused(len: usize) -> *mut u8 {
    let room = (len.next_multiple_of(PAGE) + PAGE) as u64;
    NEXT.fetch_add(room, Ordering::Relaxed) as *mut u8
}

fn map(at: *mut u8, len: usize, rights: i32, file: Option<&OwnedFd>, flags: i32) -> *mut u8 {
    let (kind, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: new addresses (MAP_FIXED_NOREPLACE), or addresses that the caller owns without references to them
    // (MAP_FIXED).
    let start = unsafe { libc::mmap(at.cast(), len, rights, kind | flags, fd, 0) };
    assert_ne!(
        start,
        libc::MAP_FAILED,
        "{}",
        std::io::Error::last_os_error()
    );
    start.cast()
}

/// A file in memory that can be truncated.
pub fn file(len: usize) -> OwnedFd {
    let file = rustix::fs::memfd_create("a file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len as u64).unwrap();
    file
}

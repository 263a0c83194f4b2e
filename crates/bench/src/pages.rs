//! Page-aligned memory for the benchmarks, like the peers', which the program touches with plain volatile
//! accesses while peers write to it.

// UNSAFETY: hands mapped memory to the device (`Buffer` is an unsafe trait) and reads words of it while the
// other process writes them, as the peers' C programs do.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use rkey::{Region, SharedMemory};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// A page.
pub(crate) const PAGE: usize = 4096;

/// Mapped pages that are never unmapped: a benchmark ends with its process.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it holds only an address and a length, and is the only owner of the memory.
unsafe impl Send for Pages {}

// SAFETY: initialised anonymous pages (zeros at first) that are never unmapped. `Words` values access them by
// volatile and atomic accesses only, never by reference.
unsafe impl rkey::Buffer for Pages {
    fn expose(&mut self) -> (NonNull<u8>, usize) {
        (self.start, self.length)
    }
}

impl Pages {
    /// Maps `length` bytes, rounded up to pages, and touches them if `populate` is set.
    pub(crate) fn map(length: usize, populate: bool) -> Result<Self> {
        let length = length.next_multiple_of(PAGE).max(PAGE);
        let flags = MapFlags::PRIVATE
            | if populate {
                MapFlags::POPULATE
            } else {
                MapFlags::NORESERVE
            };
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let at = at.with_context(|| format!("cannot map {length} bytes"))?;
        let start = NonNull::new(at.cast()).context("mmap returned the null page")?;
        Ok(Self { start, length })
    }

    /// Splits the pages into single ones.
    pub(crate) fn split(self) -> impl Iterator<Item = Pages> {
        let start = self.start;
        (0..self.length / PAGE).map(move |index| {
            // SAFETY: inside the mapping; each page goes into one value, and `self` is consumed.
            let start = unsafe { start.add(index * PAGE) };
            Pages {
                start,
                length: PAGE,
            }
        })
    }

    /// Access to the words, even while the pages are registered.
    pub(crate) fn words(&self) -> Words {
        Words {
            start: self.start.cast(),
            count: self.length / 8,
        }
    }
}

/// The words of memory from rkey's allocator. The region must outlive them; a rig keeps both.
pub(crate) fn words_of(region: &Region<SharedMemory>) -> Result<Words> {
    // SAFETY: a region with virtual addressing begins at its address (`base`), which is page-aligned and mapped
    // while it is registered, and its type never hands out a reference to its bytes.
    unsafe { Words::over(region.base(), region.len()) }
}

/// The words of some pages, for a program that reads memory while a peer writes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
}

impl Words {
    /// The words of a region that is registered elsewhere.
    ///
    /// # Safety
    /// `length` bytes at `address` (a multiple of 8) stay mapped, readable and writable while the value is
    /// used, and no references to them exist.
    pub(crate) unsafe fn over(address: u64, length: u64) -> Result<Self> {
        let start =
            NonNull::new(address as *mut AtomicU64).context("the region is at address 0")?;
        Ok(Self {
            start,
            count: length as usize / 8,
        })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: inside the mapping (checked), aligned, never unmapped; atomics may be shared with any other
        // writer.
        unsafe { self.start.add(index).as_ref() }
    }

    /// The word at a byte offset.
    pub(crate) fn load(&self, offset: u64) -> u64 {
        self.word(offset as usize / 8).load(Ordering::Acquire)
    }

    /// Stores the word at a byte offset.
    pub(crate) fn store(&self, offset: u64, value: u64) {
        self.word(offset as usize / 8)
            .store(value, Ordering::Release);
    }

    /// Reads one word of each cache line of the first `length` bytes.
    pub(crate) fn touch_read(&self, length: u64) -> u64 {
        (0..length as usize / 8)
            .step_by(8)
            .map(|i| self.word(i).load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Rewrites the first `length` bytes.
    pub(crate) fn touch_write(&self, length: u64, value: u64) {
        for index in 0..length as usize / 8 {
            self.word(index)
                .store(value.wrapping_add(index as u64), Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
    }
}

//! A segment that only its creator can write.

// UNSAFETY: views and words inside a mapping that lives as long as they do.
#![allow(unsafe_code)]

use super::mapping::{Children, Mapping, Rights, create, seal};
use crate::shared::OwnBytes;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A segment that this process can write through this mapping only: not through the descriptor, not through a new
/// mapping, and not by changing its size or punching holes.
#[derive(Debug)]
pub struct OwnSegment {
    fd: OwnedFd,
    mapping: Mapping,
}

impl OwnSegment {
    /// A segment of at least `len` bytes, rounded up to whole pages, all zero. `name` appears in `/proc/*/fd` and
    /// `/proc/*/maps`.
    ///
    /// # Errors
    ///
    /// When the process cannot get more descriptors or memory; before Linux 5.1 (no `F_SEAL_FUTURE_WRITE`).
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let (fd, size) = create(name, len)?;
        // Map before sealing: the seal against future writable mappings does not affect an existing mapping.
        let mapping = Mapping::new(&fd, 0, size, Rights::ReadWrite, Children::DoNot)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        seal(&fd, seals)?;
        Ok(Self { fd, mapping })
    }

    /// The descriptor, to be passed to the peer.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Closes the descriptor; call this once every peer that needs the descriptor has it. The mapping stays.
    #[must_use]
    pub fn publish(self) -> PublishedSegment {
        PublishedSegment {
            mapping: self.mapping,
        }
    }

    /// The size in bytes, a multiple of the page size.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The page-aligned address of the mapping.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// A part of the segment for writing, or `None` if it is not inside.
    #[must_use]
    #[inline]
    pub fn place(&mut self, offset: usize, len: usize) -> Option<OwnBytes<'_>> {
        let at = self.mapping.at(offset, len)?;
        // SAFETY: the range is inside the mapping, which lives as long as the borrow; `&mut self` makes it the only
        // view, and no other process can write here.
        Some(unsafe { OwnBytes::new(at, len) })
    }

    /// The aligned word at `offset`, which this process may write at any time and peers may read.
    ///
    /// # Panics
    ///
    /// When it does not lie inside, or is not aligned.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn word_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: an aligned word inside the mapping, by `Mapping::word`, for as long as the borrow.
        unsafe { &*self.mapping.word(offset, 4).cast::<AtomicU32>() }
    }

    /// The aligned word at `offset`, which this process may write at any time and peers may read.
    ///
    /// # Panics
    ///
    /// When it does not lie inside, or is not aligned.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn word_u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word inside the mapping, by `Mapping::word`, for as long as the borrow.
        unsafe { &*self.mapping.word(offset, 8).cast::<AtomicU64>() }
    }
}

/// An [`OwnSegment`] that no further peer can map. It needs no descriptor.
#[derive(Debug)]
pub struct PublishedSegment {
    mapping: Mapping,
}

impl PublishedSegment {
    /// The size in bytes, a multiple of the page size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The page-aligned address of the mapping.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }
}

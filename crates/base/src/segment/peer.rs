//! A peer's segment, which only the peer can write.

// UNSAFETY: views of a mapping that lives as long as they do.
#![allow(unsafe_code)]

use super::mapping::{Children, Mapping, Rights, inspect};
use crate::shared::PeerBytes;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A segment that a peer made and may change at any time, mapped for reading.
#[derive(Debug)]
pub struct PeerSegment {
    mapping: Mapping,
}

impl PeerSegment {
    /// Maps the segment behind a descriptor from a peer. The descriptor is not needed afterwards.
    ///
    /// # Errors
    ///
    /// `InvalidData` when it is not a memfd of ordinary pages, is not sealed against shrinking (then the peer could
    /// raise `SIGBUS` here at any time), or has a size outside `min_len..=max_len`; otherwise errors of the kernel.
    pub fn map(fd: OwnedFd, min_len: usize, max_len: usize) -> io::Result<Self> {
        let size = inspect(&fd)?;
        let len = usize::try_from(size)
            .ok()
            .filter(|len| (min_len..=max_len).contains(len));
        let Some(len) = len.filter(|&len| len > 0) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the peer's segment has {size} bytes, not {min_len} to {max_len}"),
            ));
        };
        Ok(Self {
            mapping: Mapping::new(&fd, 0, len, Rights::Read, Children::DoNot)?,
        })
    }

    /// The size in bytes.
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
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.as_ptr()
    }

    /// A part of the segment, or `None` if it is not inside.
    #[must_use]
    #[inline]
    pub fn foreign(&self, offset: usize, len: usize) -> Option<PeerBytes<'_>> {
        let at = self.mapping.at(offset, len)?;
        // SAFETY: inside the mapping, which lives as long as the borrow and cannot shrink.
        Some(unsafe { PeerBytes::new(at, len) })
    }

    /// Reads the aligned word at `offset`; everything that the peer wrote before it published the word is visible
    /// afterwards (an acquire load).
    ///
    /// # Panics
    ///
    /// When it does not lie inside, or is not aligned.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn load_u32(&self, offset: usize) -> u32 {
        // SAFETY: an aligned word inside the mapping, by `Mapping::word`; a load needs no right to write.
        unsafe { (*self.mapping.word(offset, 4).cast::<AtomicU32>()).load(Ordering::Acquire) }
    }

    /// Reads the aligned word at `offset`, like [`load_u32`](Self::load_u32).
    ///
    /// # Panics
    ///
    /// When it does not lie inside, or is not aligned.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: an aligned word inside the mapping, by `Mapping::word`; a load needs no right to write.
        unsafe { (*self.mapping.word(offset, 8).cast::<AtomicU64>()).load(Ordering::Acquire) }
    }
}

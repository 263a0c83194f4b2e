//! A mapping of a memfd, and the checks on the memfd before it.

// UNSAFETY: mmap and munmap.
#![allow(unsafe_code)]

use crate::process::incarnation;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// What may be done through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Read,
    ReadWrite,
}

/// Whether forked children get the mapping too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Children {
    Inherit,
    DoNot,
}

/// A shared mapping; dropping it ends it.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    children: Children,
    /// The process that made it.
    incarnation: u64,
}

// SAFETY: a mapping is an address range of the process, the same in all its threads; how its bytes may be accessed is
// the business of the views.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives only address and length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes (not 0) from `offset` on, both multiples of the page size or the end of the file.
    pub(super) fn new(
        fd: impl AsFd,
        offset: u64,
        len: usize,
        rights: Rights,
        children: Children,
    ) -> io::Result<Self> {
        let protection = match rights {
            Rights::Read => ProtFlags::READ,
            Rights::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                fd.as_fd(),
                offset,
            )?
        };
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(io::Error::other("the kernel mapped memory at address 0"));
        };
        let mapping = Self {
            start,
            len,
            children,
            incarnation: incarnation(),
        };
        if children == Children::DoNot {
            // SAFETY: advice about the mapping just made; it changes no byte.
            unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        }
        Ok(mapping)
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address `offset` bytes into the mapping, if `len` bytes are there.
    #[inline(always)]
    pub(super) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if len > self.len || offset > self.len - len {
            return None;
        }
        // SAFETY: inside the mapping, or at its end, by the check.
        Some(unsafe { self.start.as_ptr().add(offset) })
    }

    /// The address of an aligned word.
    ///
    /// # Panics
    ///
    /// When it does not lie inside, or is not aligned: offsets of words are constants of the program.
    #[inline(always)]
    #[track_caller]
    pub(super) fn word(&self, offset: usize, size: usize) -> *mut u8 {
        match self.at(offset, size) {
            // The mapping starts at a page, so the offset alone decides.
            Some(at) if offset.is_multiple_of(size) => at,
            _ => panic!(
                "there is no aligned word at offset {offset} of {} bytes",
                self.len
            ),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.children == Children::DoNot && self.incarnation != incarnation() {
            // A forked child never had the mapping; something else may be at that address.
            return;
        }
        // SAFETY: the range was mapped by `new` and is unmapped here only; views borrow the mapping, so none is left.
        // An error leaves it mapped, which harms nobody.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A new memfd of `len` bytes, rounded up to whole pages; returns the size.
pub(super) fn create(name: &str, len: usize) -> io::Result<(OwnedFd, usize)> {
    let page = crate::process::page_size();
    let size = len
        .max(1)
        .checked_next_multiple_of(page)
        .ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Nobody shall execute what a peer may have written. Kernels before 6.3 do not know the flag.
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, size as u64)?;
    Ok((fd, size))
}

/// Adds seals.
pub(super) fn seal(fd: &OwnedFd, seals: SealFlags) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, seals)?)
}

/// The size of a memfd that came from a peer, if touching a mapping of it can never raise a signal.
///
/// # Errors
///
/// `InvalidData`, with a sentence, when the descriptor is something else, or could shrink, or is made of huge pages
/// (which may run out).
pub(super) fn inspect(fd: &OwnedFd) -> io::Result<u64> {
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()));
    let Ok(seals) = fcntl_get_seals(fd) else {
        return refuse("the peer's segment is not a memfd");
    };
    if !seals.contains(SealFlags::SHRINK) {
        return refuse("the peer's segment is not sealed against shrinking");
    }
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type differs between platforms"
    )]
    if fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return refuse("the peer's segment is not made of ordinary pages");
    }
    match u64::try_from(fstat(fd)?.st_size) {
        Ok(size) => Ok(size),
        Err(_) => refuse("the peer's segment has no size"),
    }
}

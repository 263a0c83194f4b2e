//! A mapping of a memfd, and the checks on the memfd before it.

// UNSAFETY: mmap and munmap.
#![allow(unsafe_code)]

use crate::process::incarnation;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, memfd_create,
};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mremap_fixed, munmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// What may be done through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Read,
    ReadWrite,
}

/// Whether forked children also get the mapping.
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
    /// The process that made the mapping.
    incarnation: u64,
}

// SAFETY: a mapping is an address range of the process, the same in all its threads; the views decide how its bytes may
// be accessed.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives only the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes (not 0) from `offset` on. `offset` is a multiple of the page size, and so is `len`, unless it
    /// extends to the end of the file.
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

    /// Replaces pages of a shared, writable mapping of a whole file with private copies of them.
    ///
    /// The new mapping replaces the old one in one step: an access of another thread uses one or the other. A page is
    /// copied when it is first written through the new one, and not before. So stores of this process reach either a
    /// page before it is copied, or the copy. See [`populate`](Self::populate).
    ///
    /// Do this only once per page: doing it again would lose the contents of the private copy.
    pub(super) fn make_private(&self, fd: &OwnedFd, offset: usize, len: usize) -> io::Result<()> {
        let start = self.pages(offset, len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // The pages are mapped at another address first: if no memory is left, that fails and leaves everything
        // unchanged. SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let new = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::PRIVATE,
                fd,
                offset as u64,
            )?
        };
        // SAFETY: the range belongs to this mapping (checked above). Its bytes are only ever reached by address, and
        // are the same afterwards; it stays mapped with the same rights, and `drop` unmaps whatever is mapped there.
        let moved = unsafe { mremap_fixed(new, len, len, MremapFlags::MAYMOVE, start.cast()) };
        if let Err(error) = moved {
            // SAFETY: the mapping made above, which has no other user.
            let _ = unsafe { munmap(new, len) };
            return Err(error.into());
        }
        Ok(())
    }

    /// Writes to all of these pages without changing them, so that the private ones are copies from now on.
    pub(super) fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        let start = self.pages(offset, len)?;
        // SAFETY: advice about our own pages; populating them changes no byte.
        match unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not support it.
            Err(rustix::io::Errno::INVAL) => {
                for at in (0..len).step_by(crate::process::page_size()) {
                    // SAFETY: a byte of a mapped, writable page. The write is atomic and changes nothing, because
                    // others may use the byte.
                    unsafe { AtomicU8::from_ptr(start.add(at)) }.fetch_or(0, Ordering::Relaxed);
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// The address of whole pages (at least one) of the mapping.
    fn pages(&self, offset: usize, len: usize) -> io::Result<*mut u8> {
        let page = crate::process::page_size();
        let whole = len > 0 && len.is_multiple_of(page) && offset.is_multiple_of(page);
        let start = self.at(offset, len).filter(|_| whole);
        start.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the range does not consist of whole pages of the mapping",
            )
        })
    }

    /// The address `offset` bytes into the mapping, if it has `len` bytes from there.
    #[inline(always)]
    pub(super) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if len > self.len || offset > self.len - len {
            return None;
        }
        // SAFETY: the check ensures that it is inside the mapping or at its end.
        Some(unsafe { self.start.as_ptr().add(offset) })
    }

    /// The address of an aligned word.
    ///
    /// # Panics
    ///
    /// When the word does not lie inside or is not aligned: offsets of words are constants of the program.
    #[inline(always)]
    #[track_caller]
    pub(super) fn word(&self, offset: usize, size: usize) -> *mut u8 {
        match self.at(offset, size) {
            // The mapping starts at a page boundary, so the word is aligned if its offset is.
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
            // A forked child never had the mapping; something else may be mapped at that address.
            return;
        }
        // SAFETY: `new` mapped the range, and only this code unmaps it; views borrow the mapping, so none is left. An
        // error leaves it mapped, which is harmless.
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
    // Do not allow execution of code that a peer may have written. Kernels before 6.3 reject the flag.
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

/// The seals of a descriptor that came from a peer.
///
/// # Errors
///
/// `InvalidData`, with an explanation, when it is not a memfd, or made of huge pages (which may run out).
pub(super) fn seals_of_a_memfd(fd: &OwnedFd) -> io::Result<SealFlags> {
    let Ok(seals) = fcntl_get_seals(fd) else {
        return refuse("the peer's segment is not a memfd");
    };
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type differs between platforms"
    )]
    if fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return refuse("the peer's segment is not made of ordinary pages");
    }
    Ok(seals)
}

/// The size of a memfd that came from a peer, if touching a mapping of it can never raise a signal.
///
/// # Errors
///
/// `InvalidData`, with an explanation, when the descriptor is something else, or could shrink.
pub(super) fn inspect(fd: &OwnedFd) -> io::Result<u64> {
    if !seals_of_a_memfd(fd)?.contains(SealFlags::SHRINK) {
        return refuse("the peer's segment is not sealed against shrinking");
    }
    match u64::try_from(fstat(fd)?.st_size) {
        Ok(size) => Ok(size),
        Err(_) => refuse("the peer's segment has an invalid size"),
    }
}

fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()))
}

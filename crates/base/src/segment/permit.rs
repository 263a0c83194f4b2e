//! A revocable permit to copy to and from our memory with `process_vm_readv(2)` and `process_vm_writev(2)`.
//!
//! A process that is about to copy from our memory can be stopped right before the system call and make the call much
//! later, when the memory is used for something else. No word in shared memory prevents that: the process may have read
//! the word just before it was stopped. But the kernel reads the list of *our* addresses from *its* memory during the
//! call. So this list must be in a page that we can remove. Once the page has been removed, a call that begins fails,
//! wherever the process was stopped before it. A call that has begun runs to its end because a process cannot be stopped inside
//! one.
//!
//! The page is a memfd that may shrink but not grow. Its owner truncates it to zero; then no page backs the other
//! process's mapping.

// UNSAFETY: writes a list for the kernel into a mapping.
#![allow(unsafe_code)]

use super::mapping::{Children, Mapping, Rights, create, seal, seals_of_a_memfd};
use crate::fault::Fault;
use crate::process::incarnation;
use rustix::fs::{SealFlags, fstat, ftruncate};
use rustix::io::pread;
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the page has the note, in bytes: past every list.
const NOTE: usize = 2048;

/// A permit that this process gives to one other process.
#[derive(Debug)]
pub struct OwnPermit {
    fd: OwnedFd,
    revoked: AtomicBool,
}

impl OwnPermit {
    /// A new permit.
    ///
    /// # Errors
    ///
    /// When the process cannot get more descriptors or memory.
    pub fn create() -> io::Result<Self> {
        Self::with_name("rkey-permit")
    }

    /// A new permit whose memfd has this name, which `/proc` shows.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn with_name(name: &str) -> io::Result<Self> {
        let (fd, _) = create(name, 1)?;
        // Seal the permit against further seals, too: the peer must not be able to prevent the truncation.
        seal(&fd, SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self {
            fd,
            revoked: AtomicBool::new(false),
        })
    }

    /// The descriptor, to be passed to the other process.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the permit has been revoked.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Revokes the permit. No copy begins after this call has returned; a copy that has begun continues. Returns whether the
    /// permit is revoked; only a kernel with unusual rules could prevent that.
    pub fn revoke(&self) -> bool {
        if self.revoked.load(Ordering::Acquire) {
            return true;
        }
        let cut = ftruncate(&self.fd, 0).is_ok();
        self.revoked.fetch_or(cut, Ordering::AcqRel);
        cut
    }

    /// The note that the other process has left ([`PeerPermit::leave_note`]), which may be any number. 0 before the first one, and once the
    /// permit has been revoked.
    #[must_use]
    pub fn note(&self) -> u64 {
        let mut note = [0; 8];
        match pread(&self.fd, &mut note, NOTE as u64) {
            Ok(8) => u64::from_ne_bytes(note),
            _ => 0,
        }
    }
}

/// A permit from another process. One thread at a time uses it.
#[derive(Debug)]
pub struct PeerPermit {
    mapping: Mapping,
    /// The process that mapped it. Forked children do not have the page.
    incarnation: u64,
    _one_thread: PhantomData<Cell<()>>,
}

impl PeerPermit {
    /// Takes over the descriptor of a permit from a peer.
    ///
    /// # Errors
    ///
    /// `InvalidData` when it is not a permit; errors of the kernel.
    pub fn map(fd: OwnedFd) -> io::Result<Self> {
        let page = crate::process::page_size();
        let seals = seals_of_a_memfd(&fd)?;
        let size = fstat(&fd)?.st_size;
        if seals.contains(SealFlags::SHRINK) || u64::try_from(size) != Ok(page as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer's descriptor is not a permit",
            ));
        }
        // The page can vanish at any time, and a store must then return an error, not raise a signal.
        crate::copy::install()?;
        Ok(Self {
            mapping: Mapping::new(&fd, 0, page, Rights::ReadWrite, Children::DoNot)?,
            incarnation: incarnation(),
            _one_thread: PhantomData,
        })
    }

    /// Writes a list of ranges for the kernel to the permit's page; returns its address.
    ///
    /// # Errors
    ///
    /// The permit has been revoked.
    pub(crate) fn put<const N: usize>(
        &self,
        list: [libc::iovec; N],
    ) -> Result<*const libc::iovec, Fault> {
        const { assert!(size_of::<[libc::iovec; N]>() <= NOTE) };
        let to = self.mapping.as_ptr();
        let from = list.as_ptr().cast::<u8>();
        // SAFETY: our own page, larger than the list, to which there is no other reference; one thread uses it at a
        // time (the type is not `Sync`). If the page no longer exists, this returns an error.
        unsafe { crate::copy::copy(to, from, size_of_val(&list))? };
        Ok(to.cast())
    }

    /// Leaves a note for the owner of the permit, which replaces the last one.
    ///
    /// # Errors
    ///
    /// The permit has been revoked, or this is a forked child of the process that took it over.
    pub fn leave_note(&self, note: u64) -> Result<(), Fault> {
        // The smallest page has 4 KiB.
        const { assert!(NOTE + size_of::<u64>() <= 4096) };
        let to = self.mapping.as_ptr().wrapping_add(NOTE);
        if self.incarnation != incarnation() {
            return Err(Fault::at(to as u64));
        }
        // SAFETY: 8 bytes of our own page, to which there is no other reference; one thread uses it at a time. If the page no longer
        // exists, this returns an error.
        unsafe { crate::copy::copy(to, (&raw const note).cast(), size_of_val(&note)) }
    }
}

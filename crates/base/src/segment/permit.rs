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
use rustix::fs::{SealFlags, fstat, ftruncate};
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

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
        let (fd, _) = create("rkey-permit", 1)?;
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
}

/// A permit from another process. One thread at a time uses it.
#[derive(Debug)]
pub struct PeerPermit {
    mapping: Mapping,
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
        // The smallest page has 4 KiB.
        const { assert!(size_of::<[libc::iovec; N]>() <= 4096) };
        let to = self.mapping.as_ptr();
        let from = list.as_ptr().cast::<u8>();
        // SAFETY: our own page, larger than the list, to which there is no other reference; one thread uses it at a
        // time (the type is not `Sync`). If the page no longer exists, this returns an error.
        unsafe { crate::copy::copy(to, from, size_of_val(&list))? };
        Ok(to.cast())
    }
}

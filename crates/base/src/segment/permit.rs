//! A permit to copy from and to our memory by `process_vm_readv(2)` and `process_vm_writev(2)`, which can be taken back.
//!
//! A process that has been told to copy from our memory can be stopped right before the system call, and make it much
//! later, when we have given the memory to somebody else. No word in shared memory prevents that: it may have looked at
//! the word just before it was stopped. But the kernel reads the list of *our* addresses out of *its* memory, at the
//! call. So this list lies in a page that is ours to take away. When it is gone, a call that begins fails, wherever the
//! process was stopped before it. A call that has begun ends by itself; a process cannot be stopped inside of one.
//!
//! The page is a memfd that may shrink but not grow. Its owner cuts it to nothing; the other process then finds no page
//! behind its mapping.

// UNSAFETY: the place where a list for the kernel is put, inside a mapping.
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
    withdrawn: AtomicBool,
}

impl OwnPermit {
    /// A new permit.
    ///
    /// # Errors
    ///
    /// When the process may not have more descriptors or memory.
    pub fn create() -> io::Result<Self> {
        let (fd, _) = create("rkey-permit", 1)?;
        // Sealed against seals as well: nobody may forbid us to cut it.
        seal(&fd, SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self {
            fd,
            withdrawn: AtomicBool::new(false),
        })
    }

    /// The descriptor, to be passed to the other process.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes it back. No copy begins after this has returned; one that has begun goes on. Says whether it worked, of
    /// which only a kernel with unusual rules could be the reason.
    pub fn withdraw(&self) -> bool {
        if self.withdrawn.load(Ordering::Acquire) {
            return true;
        }
        let cut = ftruncate(&self.fd, 0).is_ok();
        self.withdrawn.fetch_or(cut, Ordering::AcqRel);
        cut
    }
}

/// A permit that another process gave to this one. One thread at a time uses it.
#[derive(Debug)]
pub struct PeerPermit {
    mapping: Mapping,
    _one_thread: PhantomData<Cell<()>>,
}

impl PeerPermit {
    /// Takes over the descriptor of a permit that came from a peer.
    ///
    /// # Errors
    ///
    /// `InvalidData` when it is none; what the kernel says.
    pub fn map(fd: OwnedFd) -> io::Result<Self> {
        let page = crate::process::page_size();
        let seals = seals_of_a_memfd(&fd)?;
        let size = fstat(&fd)?.st_size;
        if seals.contains(SealFlags::SHRINK) || u64::try_from(size) != Ok(page as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer's permit is none",
            ));
        }
        // It can go at any time: a store is to be an error then, and not a signal.
        crate::copy::install()?;
        Ok(Self {
            mapping: Mapping::new(&fd, 0, page, Rights::ReadWrite, Children::DoNot)?,
            _one_thread: PhantomData,
        })
    }

    /// Puts a list of one place for the kernel where the owner can take it away; gives its address.
    ///
    /// # Errors
    ///
    /// The permit has been withdrawn.
    pub(crate) fn put(&self, place: libc::iovec) -> Result<*const libc::iovec, Fault> {
        let to = self.mapping.as_ptr();
        let from = (&raw const place).cast::<u8>();
        // SAFETY: a page of ours, larger than the list, and never referred to otherwise; one thread at a time (the type
        // is not `Sync`). If the page is gone, that is an error.
        unsafe { crate::copy::copy(to, from, size_of::<libc::iovec>())? };
        Ok(to.cast())
    }
}

//! The initiator's side: a peer's mapped memory, and copies that respect its lease.
// UNSAFETY: copies between the program's memory and a mapping, by address.
#![allow(unsafe_code)]

use super::offer::{LeaseId, LeaseOffer};
use super::{CHUNK, announcement};
use crate::ring::{Half, KeepMapped, LEASES};
use crate::shm::ControlLine;
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::process::page_size;
use rkey_base::segment::{PeerArena, Sharing};
use rkey_base::shared::{OwnBytes, PeerBytes};
use rkey_base::{barrier, copy};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Why a direct access failed.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The owner has revoked the lease permanently; request a new one.
    #[error("the owner has revoked the lease")]
    Revoked,
    /// The link to the owner is down.
    #[error("the link to the owner is down")]
    Gone,
    /// The range is not inside the lease.
    #[error("{len} bytes at offset {offset} are not inside the {leased} leased bytes")]
    OutOfRange {
        /// The offset of the access.
        offset: u64,
        /// The length of the access.
        len: u64,
        /// The number of leased bytes.
        leased: u64,
    },
    /// The lease allows only reads.
    #[error("the lease allows only reads")]
    ReadOnly,
    /// The address of an atomic is not a multiple of 8, here and in the owner's process.
    #[error(
        "atomics need an address that is a multiple of 8, but offset {offset} is at {address:#x}"
    )]
    Misaligned {
        /// The offset of the access in the lease.
        offset: u64,
        /// The address of that offset in this process. Memory pages are mapped whole, so it is as far from a multiple
        /// of 8 as the address in the owner's process.
        address: u64,
    },
    /// Local memory could not be accessed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// This process is a forked child; the lease belongs to its parent.
    #[error("the lease belongs to the parent process, not to this forked child")]
    Forked,
    /// The lease could not be opened.
    #[error("cannot open the lease: {0}")]
    Open(#[from] io::Error),
}

/// A requester's access to leases: opens those that the owner grants. Cheap to clone; usable from any thread.
#[derive(Clone, Debug)]
pub struct LeaseClient(Arc<Client>);

#[derive(Debug)]
pub(crate) struct Client {
    own: Half,
    peer: Half,
    /// Whether both processes take part in heavy barriers.
    light: bool,
    line: Arc<ControlLine>,
    /// The in-use words that a [`DirectMap`] uses. No two maps share one, so that neither clears the other's
    /// announcement.
    taken: Box<[AtomicBool]>,
    _keep: KeepMapped,
}

impl Client {
    pub(crate) fn new(
        own: Half,
        peer: Half,
        keep: KeepMapped,
        light: bool,
        line: Arc<ControlLine>,
    ) -> Self {
        let taken = (0..LEASES).map(|_| AtomicBool::new(false)).collect();
        Self {
            own,
            peer,
            light,
            line,
            taken,
            _keep: keep,
        }
    }
}

impl LeaseClient {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self(client)
    }

    /// Maps the memory of a lease. `fd` arrived with the offer.
    ///
    /// # Errors
    /// [`DirectError::Open`] if the memory does not match the offer or is not sealed as required; the error is
    /// `ResourceBusy` if an older, revoked lease with the same index has not been dropped.
    pub fn open(&self, grant: &LeaseOffer, fd: OwnedFd) -> Result<DirectMap, DirectError> {
        let client = &self.0;
        let index = grant.id.index();
        let (Some(generation), Some(in_use)) =
            (client.peer.generation(index), client.own.in_use(index))
        else {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        };
        let page = page_size() as u64;
        let skip = grant.offset % page;
        let whole = skip
            .checked_add(grant.len)
            .and_then(|len| len.checked_next_multiple_of(page))
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let sharing = if grant.writable {
            Sharing::ReadWrite
        } else {
            Sharing::ReadOnly
        };
        let arena = PeerArena::map(fd, grant.offset - skip, whole, sharing)?;
        let words = (NonNull::from(generation), NonNull::from(in_use));
        if client.taken[index].swap(true, Ordering::Acquire) {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy).into());
        }
        Ok(DirectMap {
            // `skip` is less than a page and `whole` fits in memory.
            start: arena.as_ptr().wrapping_add(skip as usize),
            len: grant.len,
            writable: grant.writable,
            light: client.light,
            id: grant.id,
            generation: words.0,
            in_use: words.1,
            lost: false,
            _arena: arena,
            client: Arc::clone(client),
        })
    }
}

/// A peer's memory, mapped under a lease.
///
/// All methods are synchronous: when they return, the bytes have been copied. They are ordered
/// like plain loads and stores of this thread. The peer (and others it shares the memory with)
/// may change the bytes at any time.
#[derive(Debug)]
pub struct DirectMap {
    start: *mut u8,
    len: u64,
    writable: bool,
    light: bool,
    /// Set once the lease was found to be revoked; its in-use word may already belong to another map.
    lost: bool,
    id: LeaseId,
    generation: NonNull<AtomicU64>,
    in_use: NonNull<AtomicU64>,
    client: Arc<Client>,
    _arena: PeerArena,
}

// SAFETY: the pointers are to mappings that live as long as the value (`_arena`, and the halves
// that `client` keeps); one thread uses it at a time.
unsafe impl Send for DirectMap {}

impl DirectMap {
    /// The number of leased bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: a lease has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether writes and atomics are allowed.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The lease.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Whether the lease was valid at the time of the call.
    pub fn is_live(&self) -> bool {
        !self.lost && self.current() && !self.client.line.is_gone()
    }

    #[inline(always)]
    fn current(&self) -> bool {
        // SAFETY: a word of the peer's half, which `client` keeps mapped.
        unsafe { self.generation.as_ref() }.load(Ordering::Acquire) == self.id.generation
    }

    #[inline(always)]
    fn in_use(&self) -> &AtomicU64 {
        // SAFETY: a word in our own half, which `client` keeps mapped.
        unsafe { self.in_use.as_ref() }
    }

    /// Announces a copy that begins `offset` bytes into the lease, checks that the lease is valid, copies, and clears
    /// the announcement.
    #[inline(always)]
    fn with_lease<R>(
        &mut self,
        offset: u64,
        access: impl FnOnce(*mut u8) -> Result<R, Fault>,
    ) -> Result<R, DirectError> {
        self.in_use().store(announcement(offset), Ordering::Relaxed);
        if self.light {
            barrier::light();
        } else {
            fence(Ordering::SeqCst);
        }
        if !self.current() {
            self.lose();
            return Err(DirectError::Revoked);
        }
        let result = access(self.start);
        self.in_use().store(0, Ordering::Release);
        Ok(result?)
    }

    /// Records that the lease is revoked: from now on another map may use the index, but this one may not.
    #[cold]
    fn lose(&mut self) {
        self.in_use().store(0, Ordering::Release);
        self.lost = true;
        self.give_index_back();
    }

    fn give_index_back(&self) {
        if let Some(taken) = self.client.taken.get(self.id.index()) {
            taken.store(false, Ordering::Release);
        }
    }

    #[inline(always)]
    fn check(&self, offset: u64, len: u64, write: bool) -> Result<(), DirectError> {
        if len > self.len || offset > self.len - len {
            return Err(DirectError::OutOfRange {
                offset,
                len,
                leased: self.len,
            });
        }
        if write && !self.writable {
            return Err(DirectError::ReadOnly);
        }
        if self.lost || self.client.line.is_gone() || self.client.line.is_forked() {
            return Err(self.why_not());
        }
        Ok(())
    }

    #[cold]
    fn why_not(&self) -> DirectError {
        if self.client.line.is_forked() {
            DirectError::Forked
        } else if self.client.line.is_gone() {
            DirectError::Gone
        } else {
            DirectError::Revoked
        }
    }

    /// Copies in parts of at most 256 KiB, each under its own announcement.
    #[inline(always)]
    fn in_chunks(
        &mut self,
        offset: u64,
        len: usize,
        mut part: impl FnMut(*mut u8, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), DirectError> {
        let mut done = 0;
        loop {
            let size = (len - done).min(CHUNK as usize);
            self.with_lease(offset.wrapping_add(done as u64), |start| {
                // The range is inside the mapping: the caller has checked offset and length.
                part(start.wrapping_add(offset as usize + done), done, size)
            })?;
            done += size;
            if done >= len {
                return Ok(());
            }
        }
    }

    /// Writes bytes to the peer's memory.
    ///
    /// # Errors
    /// [`DirectError`]. If the lease is revoked during a long write, a multiple of 256 KiB has been written.
    #[inline]
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DirectError> {
        self.check(offset, bytes.len() as u64, true)?;
        self.in_chunks(offset, bytes.len(), |at, done, size| {
            // SAFETY: `at` and `size` are inside the writable mapping (checked above), `done` and
            // `size` inside `bytes`.
            unsafe { copy::copy(at, bytes.as_ptr().add(done), size) }
        })
    }

    /// Reads bytes from the peer's memory.
    ///
    /// # Errors
    /// [`DirectError`].
    #[inline]
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DirectError> {
        self.check(offset, into.len() as u64, false)?;
        self.in_chunks(offset, into.len(), |at, done, size| {
            // SAFETY: `at` and `size` are inside the mapping (checked above), `done` and `size`
            // inside `into`.
            unsafe { copy::copy(into.as_mut_ptr().add(done), at, size) }
        })
    }

    /// Writes `len` bytes at `src` of `mem` to the peer's memory.
    ///
    /// # Errors
    /// [`DirectError`]; `Fault` if `mem` cannot be read there.
    pub fn write_from<M: Memory>(
        &mut self,
        mem: &M,
        offset: u64,
        src: u64,
        len: u64,
    ) -> Result<(), DirectError> {
        self.check(offset, len, true)?;
        self.in_chunks(offset, len as usize, |at, done, size| {
            // SAFETY: inside the writable mapping (checked above), to which this process has no reference.
            mem.load(
                unsafe { OwnBytes::new(at, size) },
                src.wrapping_add(done as u64),
            )
        })
    }

    /// Reads `len` bytes of the peer's memory to `dst` of `mem`.
    ///
    /// # Errors
    /// [`DirectError`]; `Fault` if `mem` cannot be written there.
    pub fn read_to<M: Memory>(
        &mut self,
        mem: &M,
        offset: u64,
        dst: u64,
        len: u64,
    ) -> Result<(), DirectError> {
        self.check(offset, len, false)?;
        self.in_chunks(offset, len as usize, |at, done, size| {
            // SAFETY: inside the mapping (checked above).
            mem.store(dst.wrapping_add(done as u64), unsafe {
                PeerBytes::new(at, size)
            })
        })
    }

    /// Writes `swap` to the 8 bytes at `offset` if they equal `compare`; returns the old value. Atomic for every
    /// process that shares the memory.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn compare_swap(
        &mut self,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, DirectError> {
        self.check_atomic(offset)?;
        self.with_lease(offset, |start| {
            // SAFETY: 8 bytes inside the writable mapping, aligned (checked above).
            unsafe { copy::compare_swap(start.wrapping_add(offset as usize).cast(), compare, swap) }
        })
    }

    /// Adds to the 8 bytes at `offset`; returns the old value. Atomic for every process that shares the memory.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn fetch_add(&mut self, offset: u64, add: u64) -> Result<u64, DirectError> {
        self.check_atomic(offset)?;
        self.with_lease(offset, |start| {
            // SAFETY: 8 bytes inside the writable mapping, aligned (checked above).
            unsafe { copy::fetch_add(start.wrapping_add(offset as usize).cast(), add) }
        })
    }

    #[inline]
    fn check_atomic(&self, offset: u64) -> Result<(), DirectError> {
        self.check(offset, 8, true)?;
        let address = (self.start.addr() as u64).wrapping_add(offset);
        if !address.is_multiple_of(8) {
            return Err(DirectError::Misaligned { offset, address });
        }
        Ok(())
    }
}

impl Drop for DirectMap {
    fn drop(&mut self) {
        if !self.lost {
            // The in-use word is clear between two calls.
            self.give_index_back();
        }
    }
}

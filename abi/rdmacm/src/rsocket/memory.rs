//! Registered memory, which peers may write, and the buffers of programs.

#![allow(unsafe_code)]
// UNSAFETY: maps memory, and copies between it and the addresses that programs pass. Peers write it, and programs may pass any address,
// so all copies are those of `rkey_device::base::copy`.

use super::wire::{Iomap, RemoteSge};
use crate::sys::Pd;
use ibverbs::sys::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, Mr};
use rkey_kit::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// Who may write to an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only this process.
    Local,
    /// This process and the peer.
    Remote,
}

impl Access {
    fn flags(self) -> c_int {
        let flags = match self {
            Self::Local => ACCESS_LOCAL_WRITE,
            Self::Remote => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE,
        };
        flags as c_int
    }
}

/// Copies between our memory and memory of the program or of a peer, which may change during the copy or not be mapped.
///
/// # Errors
/// `EFAULT`: the memory is not mapped, or does not permit this access. Some bytes may have been copied.
///
/// # Safety
/// The program allows the bytes at `to` to be overwritten.
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { rkey_device::base::copy::copy(to, from, len) }.map_err(|_| Errno::FAULT)
}

/// A registration of memory.
#[derive(Debug)]
pub struct Registration {
    mr: *mut Mr,
}

// SAFETY: a handle of the verbs front end, which any thread may use.
unsafe impl Send for Registration {}

impl Registration {
    /// Registers memory.
    ///
    /// # Errors
    /// The errors of `ibv_reg_mr`.
    ///
    /// # Safety
    /// The memory must stay valid until the registration is dropped.
    pub unsafe fn new(
        pd: *mut Pd,
        at: *mut c_void,
        len: usize,
        access: Access,
    ) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller.
        let mr = unsafe { ibverbs::memory::mr::reg_mr(pd, at, len, access.flags()) };
        match mr.is_null() {
            true => Err(Errno::last()),
            false => Ok(Self { mr }),
        }
    }

    /// The local and the remote key.
    #[must_use]
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration is live until drop.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more. When the call returns, peers no longer access the memory.
        unsafe { ibverbs::memory::mr::dereg_mr(self.mr) };
    }
}

/// Registered memory that this library has mapped.
#[derive(Debug)]
pub struct Area {
    at: *mut u8,
    len: usize,
    registration: Option<Registration>,
}

// SAFETY: the area owns the memory, which is accessed only by copies and atomics.
unsafe impl Send for Area {}

impl Area {
    /// Maps and registers zeroed memory.
    ///
    /// # Errors
    /// No memory is available.
    #[expect(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "`reg_mr` validates the handle"
    )]
    pub fn new(pd: *mut Pd, len: usize, access: Access) -> Result<Self, Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
        let at = at.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        let mut area = Self {
            at: at.cast(),
            len,
            registration: None,
        };
        // SAFETY: the mapping outlives the registration: see `drop`.
        area.registration = Some(unsafe { Registration::new(pd, at, len, access) }?);
        Ok(area)
    }

    fn keys(&self) -> (u32, u32) {
        self.registration
            .as_ref()
            .map_or((0, 0), Registration::keys)
    }

    /// The address and local key for our own work requests, from an offset on.
    #[must_use]
    pub fn local(&self, at: u32) -> (u64, u32) {
        (
            self.at.expose_provenance() as u64 + u64::from(at),
            self.keys().0,
        )
    }

    /// The address and remote key for the peer, with a length.
    #[must_use]
    pub fn remote(&self, len: u32) -> RemoteSge {
        RemoteSge {
            addr: self.at.expose_provenance() as u64,
            key: self.keys().1,
            len,
        }
    }

    /// Copies a program's bytes into the area.
    ///
    /// # Errors
    /// `EFAULT`: the program's memory is not readable.
    #[expect(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "`copy` returns a fault for any address that cannot be read"
    )]
    pub fn fill(&self, at: u32, from: *const u8, len: u32) -> Result<(), Errno> {
        let (at, len) = (at as usize, len as usize);
        assert!(at + len <= self.len, "a copy stays inside its area");
        // SAFETY: inside the area, which nothing refers to.
        unsafe { copy(self.at.add(at), from, len) }
    }

    /// Copies bytes of the area to a program's memory. A peer may change them during the copy.
    ///
    /// # Errors
    /// `EFAULT`: the program's memory is not writable.
    ///
    /// # Safety
    /// The program allows its memory to be overwritten.
    pub unsafe fn read(&self, at: u32, to: *mut u8, len: u32) -> Result<(), Errno> {
        let (at, len) = (at as usize, len as usize);
        assert!(at + len <= self.len, "a copy stays inside its area");
        // SAFETY: inside the area, and the caller promises the rest.
        unsafe { copy(to, self.at.add(at), len) }
    }

    /// The eight bytes at an offset that is a multiple of eight.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(
            at.is_multiple_of(8) && at + 8 <= self.len,
            "a word is inside its area"
        );
        // SAFETY: inside the area, and aligned, as the area begins at a page. Peers may write it at any time, so access is atomic.
        unsafe { AtomicU64::from_ptr(self.at.add(at).cast()) }
    }

    /// Reads the target in a slot, and clears the slot.
    #[must_use]
    pub fn take_target(&self, slot: u32) -> RemoteSge {
        let at = slot as usize * RemoteSge::SIZE;
        let addr = self.word(at).load(Ordering::Acquire);
        let rest = self.word(at + 8).swap(0, Ordering::AcqRel);
        RemoteSge::from_words([addr, rest])
    }

    /// Reads the record of a mapped area that the peer has written. The records follow the slots of the targets.
    #[must_use]
    pub fn iomap(&self, targets: u32, index: u16) -> Iomap {
        let at = targets as usize * RemoteSge::SIZE + usize::from(index) * Iomap::SIZE;
        let load = |at: usize| self.word(at).load(Ordering::Acquire);
        Iomap {
            offset: load(at),
            memory: RemoteSge::from_words([load(at + 8), load(at + 16)]),
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // Deregister first, so that the peer cannot write to memory that is no longer ours.
        self.registration = None;
        // SAFETY: our own mapping, which nothing uses any more. It cannot fail with these arguments.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}

/// A cursor over the buffers that a program passes.
#[derive(Debug)]
pub struct Buffers<'a> {
    left: &'a [libc::iovec],
    /// How many bytes of the first buffer have been copied.
    skip: usize,
}

impl<'a> Buffers<'a> {
    /// Creates a cursor at the first byte of a list of buffers.
    ///
    /// # Errors
    /// `EINVAL`: the total length is too large. `EFAULT`: a buffer is null.
    ///
    /// # Safety
    /// If the call writes to the buffers, the program allows them to be overwritten. They need not be mapped.
    pub unsafe fn new(left: &'a [libc::iovec]) -> Result<Self, Errno> {
        let mut total = 0usize;
        for buffer in left {
            if buffer.iov_base.is_null() && buffer.iov_len > 0 {
                return Err(Errno::FAULT);
            }
            let sum = total.checked_add(buffer.iov_len);
            total = sum
                .filter(|sum| *sum <= isize::MAX as usize)
                .ok_or(Errno::INVAL)?;
        }
        Ok(Self { left, skip: 0 })
    }

    /// The number of bytes that have not been copied yet.
    #[must_use]
    pub fn len(&self) -> usize {
        let all: usize = self.left.iter().map(|buffer| buffer.iov_len).sum();
        all - self.skip
    }

    /// Whether all bytes have been copied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `copy` for each contiguous part of the next `len` bytes, with the part's offset, address and length.
    fn advance(
        &mut self,
        len: u32,
        mut copy: impl FnMut(u32, *mut u8, u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            let Some((first, rest)) = self.left.split_first() else {
                break;
            };
            let here = (first.iov_len - self.skip).min((len - done) as usize);
            copy(
                done,
                first.iov_base.cast::<u8>().wrapping_add(self.skip),
                here as u32,
            )?;
            done += here as u32;
            self.skip += here;
            if self.skip == first.iov_len {
                (self.left, self.skip) = (rest, 0);
            }
        }
        Ok(())
    }

    /// Copies the next bytes into an area.
    ///
    /// # Errors
    /// `EFAULT`: they cannot be read.
    pub fn fill(&mut self, area: &Area, at: u32, len: u32) -> Result<(), Errno> {
        self.advance(len, |offset, from, len| area.fill(at + offset, from, len))
    }

    /// Copies bytes of an area to the next bytes.
    ///
    /// # Errors
    /// `EFAULT`: they cannot be written.
    pub fn read(&mut self, area: &Area, at: u32, len: u32) -> Result<(), Errno> {
        self.advance(len, |offset, to, len| {
            // SAFETY: promised when this was made.
            unsafe { area.read(at + offset, to, len) }
        })
    }

    /// Copies bytes to the next bytes, as many as there is room for. Returns how many.
    ///
    /// # Errors
    /// `EFAULT`: they cannot be written.
    pub fn put(&mut self, data: &[u8]) -> Result<usize, Errno> {
        let len = self.len().min(data.len());
        self.advance(len as u32, |offset, to, len| {
            let from = data[offset as usize..].as_ptr();
            // SAFETY: promised when this was made. The data is as long as checked above.
            unsafe { copy(to, from, len as usize) }
        })?;
        Ok(len)
    }

    /// Takes all remaining bytes.
    ///
    /// # Errors
    /// `EFAULT`: they cannot be read.
    pub fn take(&mut self) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0; self.len()];
        let into = data.as_mut_ptr();
        self.advance(data.len() as u32, |offset, from, len| {
            let to = into.wrapping_add(offset as usize);
            // SAFETY: our own bytes, as many as the buffers together have.
            unsafe { copy(to, from, len as usize) }
        })?;
        Ok(data)
    }
}

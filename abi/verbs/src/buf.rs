//! Buffers that the library allocates (`ibv_alloc_buf`, rdma-core 65): ordinary memory, as this device reaches all of
//! it.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and memory that is mapped for programs.

use crate::mr::{PAGE, reg_mr_iova2};
use crate::object::{Object, find, output, place, remove};
use crate::pd::PdObject;
use crate::sys::{Buf, Mr, Pd};
use rkey_kit::{Errno, Pool, fence};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

/// A buffer. Programs know its address and nothing else of it.
#[repr(C)]
struct BufObject {
    c: UnsafeCell<Buf>,
    pd: *mut Pd,
    start: u64,
    /// Bytes that the program asked for.
    len: u64,
}

// SAFETY: the structure at the start has no fields; the rest is not written.
unsafe impl Sync for BufObject {}
// SAFETY: holds addresses, which are checked before use.
unsafe impl Send for BufObject {}

static BUFS: Pool<BufObject> = Pool::new(1 << 16);

// SAFETY: the structure is at the start.
unsafe impl Object for BufObject {
    type C = Buf;
    fn pool() -> &'static Pool<Self> {
        &BUFS
    }
}

impl BufObject {
    fn mapped(&self) -> usize {
        self.len.next_multiple_of(PAGE) as usize
    }
}

impl Drop for BufObject {
    fn drop(&mut self) {
        // SAFETY: mapped for this buffer, which the program uses no more.
        unsafe { libc::munmap(self.start as *mut c_void, self.mapped()) };
    }
}

/// `ibv_alloc_buf`: memory that begins with a page and is zero.
///
/// # Safety
/// A protection domain, and room for a handle.
pub unsafe extern "C" fn alloc_buf(pd: *mut Pd, size: usize, buf: *mut *mut Buf) -> *mut c_void {
    fence(|| {
        // SAFETY: as the caller promises, or refused.
        let into = unsafe {
            find::<PdObject>(pd)?;
            output(buf)?
        };
        if size == 0 || size > isize::MAX as usize {
            return Err(Errno::INVAL);
        }
        let len = (size as u64).next_multiple_of(PAGE) as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the kernel likes; it replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        *into = place(BufObject {
            c: UnsafeCell::new(Buf { private: [] }),
            pd,
            start: start as u64,
            len: size as u64,
        })?;
        Ok(start)
    })
}

/// `ibv_free_buf`.
///
/// # Safety
/// Nobody uses the memory, and no region is on it.
pub unsafe extern "C" fn free_buf(buf: *mut Buf) {
    fence(|| {
        // SAFETY: nobody uses it, as the caller promises; or it is refused.
        drop(unsafe { remove::<BufObject>(buf)? });
        Ok(())
    });
}

/// Checks that a range is inside of a buffer that was allocated for this protection domain.
///
/// # Errors
/// `EINVAL`: it is not.
///
/// # Safety
/// A buffer, or anything else.
pub(crate) unsafe fn check(
    pd: *mut Pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
) -> Result<(), Errno> {
    // SAFETY: a buffer as the caller promises, or something that is refused.
    let object = unsafe { find::<BufObject>(buf)? };
    let from = (addr as u64).checked_sub(object.start);
    let end = from.and_then(|from| from.checked_add(length as u64));
    if object.pd == pd && end.is_some_and(|end| end <= object.len) {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// `ibv_reg_buf_mr`.
///
/// # Safety
/// A protection domain, and a buffer that stays as long as the region.
pub unsafe extern "C" fn reg_buf_mr(
    pd: *mut Pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    fence(|| {
        // SAFETY: as the caller promises, or refused.
        let region = unsafe {
            check(pd, buf, addr, length)?;
            reg_mr_iova2(pd, addr, length, addr as u64, access as u32)
        };
        if region.is_null() {
            Err(Errno::last())
        } else {
            Ok(region)
        }
    })
}

/// Ends what a protection domain that is closed with its context leaves.
///
/// # Safety
/// Nobody uses the memory.
pub unsafe fn sweep(of: impl Fn(*mut Pd) -> bool) {
    for object in BUFS.live(|buf| of(buf.pd)) {
        // SAFETY: nobody uses it, as the caller promises.
        drop(unsafe { remove::<BufObject>(object.cast()) });
    }
}

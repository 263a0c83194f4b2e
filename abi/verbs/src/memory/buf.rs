//! Buffers that the library allocates (`ibv_alloc_buf`, rdma-core 65). They are ordinary memory, because this device
//! can reach all of it.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and memory that is mapped for programs.

use crate::memory::mr::{PAGE, reg_mr_iova2};
use crate::memory::pd::PdObject;
use crate::object::{Object, find, insert, output, remove};
use crate::sys::{Buf, Mr, Pd};
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

/// A buffer, opaque to programs.
#[repr(C)]
struct BufObject {
    c: UnsafeCell<Buf>,
    pd: *mut Pd,
    start: u64,
    /// The number of bytes that the program requested.
    len: u64,
}

// SAFETY: the C structure has no fields, and the rest is never written.
unsafe impl Sync for BufObject {}
// SAFETY: holds addresses, which are checked before use.
unsafe impl Send for BufObject {}

rkey_kit::object!(BufObject, c: Buf, 1 << 16);

impl BufObject {
    fn mapped(&self) -> usize {
        self.len.next_multiple_of(PAGE) as usize
    }
}

impl Drop for BufObject {
    fn drop(&mut self) {
        // SAFETY: mapped for this buffer, which the program no longer uses.
        unsafe { libc::munmap(self.start as *mut c_void, self.mapped()) };
    }
}

/// `ibv_alloc_buf`: zeroed memory that starts on a page boundary.
///
/// # Safety
/// `buf` is null or writable.
pub unsafe extern "C" fn alloc_buf(pd: *mut Pd, size: usize, buf: *mut *mut Buf) -> *mut c_void {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
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
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        *into = insert(BufObject {
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
/// The memory must not be in use, and no region may cover it.
pub unsafe extern "C" fn free_buf(buf: *mut Buf) {
    c_call(|| {
        // SAFETY: `remove` validates the handle, and the caller guarantees that the memory is unused.
        drop(unsafe { remove::<BufObject>(buf)? });
        Ok(())
    });
}

/// Checks that a range lies within a buffer that was allocated in this protection domain.
///
/// # Errors
/// `EINVAL`: it does not.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub(crate) unsafe fn check(
    pd: *mut Pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
) -> Result<(), Errno> {
    // SAFETY: `find` validates the handle.
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
/// `buf` stays allocated until the region is deregistered.
pub unsafe extern "C" fn reg_buf_mr(
    pd: *mut Pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    c_call(|| {
        // SAFETY: `check` validates the handle.
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

/// Frees the remaining buffers of the protection domains of a context that is being closed.
///
/// # Safety
/// The memory must not be in use.
pub unsafe fn sweep(of: impl Fn(*mut Pd) -> bool) {
    for object in BufObject::pool().live(|buf| of(buf.pd)) {
        // SAFETY: unused, as the caller guarantees.
        drop(unsafe { remove::<BufObject>(object.cast()) });
    }
}

//! Device memory. A software device has none, so this is process memory that only these calls and regions access, by
//! offset instead of address.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and memory that the device accesses.

use crate::device::context::ContextObject;
use crate::device::limits::MAX_DM;
use crate::object::{Object, Users, find, input, insert, remove};
use crate::sys::consts::*;
use crate::sys::{AllocDmAttr, Context, Dm};
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

struct Memory {
    start: *mut c_void,
    len: usize,
}

// SAFETY: only an address; concurrent copies of the bytes are harmless.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, and no region still covers it.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Device memory, as the program sees it.
#[repr(C)]
pub struct DmObject {
    c: UnsafeCell<Dm>,
    context: *mut Context,
    memory: Arc<Memory>,
    len: usize,
    imported: bool,
    users: Users,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for DmObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for DmObject {}

rkey_kit::object!(DmObject, c: Dm, 4096);

fn new_dm(
    context: *mut Context,
    memory: Arc<Memory>,
    len: usize,
    handle: u32,
    imported: bool,
) -> Result<*mut Dm, Errno> {
    let c = Dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: DM_MASK_HANDLE,
        handle,
    };
    let users = Users::default();
    insert(DmObject {
        c: UnsafeCell::new(c),
        context,
        memory,
        len,
        imported,
        users,
    })
}

/// `ibv_alloc_dm`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn alloc_dm(context: *mut Context, attr: *mut AllocDmAttr) -> *mut Dm {
    static NUMBERS: AtomicU32 = AtomicU32::new(1);
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let attr = unsafe {
            find::<ContextObject>(context)?;
            input(attr)?
        };
        // Mappings are page-aligned, so a page is the strictest alignment available.
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > 12 {
            return Err(Errno::INVAL);
        }
        if attr.length as u64 > MAX_DM {
            return Err(Errno::NOMEM);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), attr.length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let memory = Arc::new(Memory {
            start,
            len: attr.length,
        });
        new_dm(
            context,
            memory,
            attr.length,
            NUMBERS.fetch_add(1, Ordering::Relaxed),
            false,
        )
    })
}

/// `ibv_free_dm`.
///
/// # Safety
/// No other thread may use the device memory.
pub unsafe extern "C" fn free_dm(dm: *mut Dm) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<DmObject>(dm)? };
        object.users.none()?;
        if object.imported {
            return Err(Errno::INVAL);
        }
        // SAFETY: unused, as the caller guarantees.
        drop(unsafe { remove::<DmObject>(dm)? });
        Ok(0)
    })
}

/// `ibv_memcpy_{to,from}_dm` copy multiples of this number of bytes.
const UNIT: u64 = 4;

/// The address of a range of the memory, which must consist of whole units.
fn units_at(object: &DmObject, offset: u64, len: usize) -> Result<*mut u8, Errno> {
    if !offset.is_multiple_of(UNIT) || !(len as u64).is_multiple_of(UNIT) {
        return Err(Errno::INVAL);
    }
    at(object, offset, len)
}

/// The address of a range of the memory.
pub(crate) fn at(object: &DmObject, offset: u64, len: usize) -> Result<*mut u8, Errno> {
    let end = offset.checked_add(len as u64).ok_or(Errno::INVAL)?;
    if end > object.len as u64 {
        return Err(Errno::INVAL);
    }
    Ok(object
        .memory
        .start
        .cast::<u8>()
        .wrapping_add(offset as usize))
}

/// `ibv_memcpy_to_dm`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles; a source that cannot be read is refused.
pub unsafe extern "C" fn memcpy_to_dm(
    dm: *mut Dm,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let to = units_at(unsafe { find::<DmObject>(dm)? }, offset, len)?;
        // SAFETY: the target is ours and long enough; `copy` reports an unreadable source.
        unsafe { rkey_device::base::copy::copy(to, from.cast(), len) }.map_err(|_| Errno::FAULT)?;
        Ok(0)
    })
}

/// `ibv_memcpy_from_dm`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles; a target that cannot be written is refused.
pub unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut Dm,
    offset: u64,
    len: usize,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let from = units_at(unsafe { find::<DmObject>(dm)? }, offset, len)?;
        // SAFETY: the source is ours and long enough; `copy` reports an unwritable target.
        unsafe { rkey_device::base::copy::copy(to.cast(), from, len) }.map_err(|_| Errno::FAULT)?;
        Ok(0)
    })
}

/// Keeps device memory alive while a region covers it.
pub struct DmRef {
    dm: *mut Dm,
    _memory: Arc<Memory>,
}

impl DmRef {
    pub(crate) fn new(dm: *mut Dm) -> Result<Self, Errno> {
        // SAFETY: `find` validates the handle; the caller of `reg_dm_mr` promises not to free it meanwhile.
        let object = unsafe { find::<DmObject>(dm)? };
        object.users.add();
        Ok(Self {
            dm,
            _memory: Arc::clone(&object.memory),
        })
    }
}

impl Drop for DmRef {
    fn drop(&mut self) {
        // SAFETY: device memory with users is only freed together with its context.
        if let Ok(object) = unsafe { find::<DmObject>(self.dm) } {
            object.users.remove();
        }
    }
}

/// `ibv_import_dm`: makes the memory available in another context of the device.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn import_dm(context: *mut Context, handle: u32) -> *mut Dm {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let device = unsafe { find::<ContextObject>(context)? }.device();
        let same = |dm: &DmObject| {
            // SAFETY: the object is live; `find` validates its context.
            unsafe {
                !dm.imported
                    && (*dm.c.get()).handle == handle
                    && find::<ContextObject>(dm.context).is_ok_and(|c| c.device().is(device))
            }
        };
        let (memory, len) = DmObject::pool()
            .find_map(|dm| same(dm).then(|| (Arc::clone(&dm.memory), dm.len)))
            .ok_or(Errno::NOENT)?;
        new_dm(context, memory, len, handle, true)
    })
}

/// `ibv_unimport_dm`.
///
/// # Safety
/// No other thread may use the handle.
pub unsafe extern "C" fn unimport_dm(dm: *mut Dm) {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        if unsafe { find::<DmObject>(dm)? }.imported {
            // SAFETY: unused, as the caller guarantees.
            drop(unsafe { remove::<DmObject>(dm)? });
        }
        Ok(())
    });
}

/// Destroys the remaining device memory of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in DmObject::pool().live(|dm| dm.context == context) {
            drop(remove::<DmObject>(object.cast()));
        }
    }
}

//! Device memory. A software device has none of its own, so it is memory of the process that only the
//! calls here and regions reach, at offsets instead of addresses.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and memory that the device touches.

use crate::context::{ContextObject, MAX_DM};
use crate::mr::{self, Wanted};
use crate::object::{Object, Users, find, input, place, remove};
use crate::pd::PdObject;
use crate::sys::consts::*;
use crate::sys::{AllocDmAttr, Context, Dm, Mr, Pd};
use rkey_device::core::Addressing;
use rkey_kit::{Errno, Pool, fence};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bytes.
struct Memory {
    start: *mut c_void,
    len: usize,
}

// SAFETY: only an address; the bytes are copied by calls that do not care what they hold.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made for this object, and no region is left on it.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Device memory, as a program sees it.
#[repr(C)]
pub struct DmObject {
    c: UnsafeCell<Dm>,
    context: *mut Context,
    memory: Arc<Memory>,
    len: usize,
    imported: bool,
    users: Users,
}

// SAFETY: the structure is written only while it is made.
unsafe impl Sync for DmObject {}
// SAFETY: holds addresses of objects, which are checked before use.
unsafe impl Send for DmObject {}

static DMS: Pool<DmObject> = Pool::new(4096);

// SAFETY: the structure is at the start.
unsafe impl Object for DmObject {
    type C = Dm;
    fn pool() -> &'static Pool<Self> {
        &DMS
    }
}

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
    place(DmObject {
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
/// A context, and attributes.
pub unsafe extern "C" fn alloc_dm(context: *mut Context, attr: *mut AllocDmAttr) -> *mut Dm {
    static NUMBERS: AtomicU32 = AtomicU32::new(1);
    fence(|| {
        // SAFETY: as the caller promises, or refused.
        let attr = unsafe {
            find::<ContextObject>(context)?;
            input(attr)?
        };
        // Mappings are aligned to pages, and that is as far as alignment goes.
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > 12 {
            return Err(Errno::INVAL);
        }
        if attr.length as u64 > MAX_DM {
            return Err(Errno::NOMEM);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes; it replaces nothing.
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
/// No other thread uses it.
pub unsafe extern "C" fn free_dm(dm: *mut Dm) -> c_int {
    fence(|| {
        // SAFETY: device memory as the caller promises, or something that is refused.
        let object = unsafe { find::<DmObject>(dm)? };
        object.users.none()?;
        if object.imported {
            return Err(Errno::INVAL);
        }
        // SAFETY: nobody uses it.
        drop(unsafe { remove::<DmObject>(dm)? });
        Ok(0)
    })
}

/// Device memory is copied in units of so many bytes.
const UNIT: u64 = 4;

/// The address of some bytes of it, which have to be whole units.
fn units_at(object: &DmObject, offset: u64, len: usize) -> Result<*mut u8, Errno> {
    if !offset.is_multiple_of(UNIT) || !(len as u64).is_multiple_of(UNIT) {
        return Err(Errno::INVAL);
    }
    at(object, offset, len)
}

/// The address of some bytes of it.
fn at(object: &DmObject, offset: u64, len: usize) -> Result<*mut u8, Errno> {
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
/// Device memory, and so many bytes to read.
pub unsafe extern "C" fn memcpy_to_dm(
    dm: *mut Dm,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    fence(|| {
        // SAFETY: device memory as the caller promises, or something that is refused.
        let to = units_at(unsafe { find::<DmObject>(dm)? }, offset, len)?;
        // SAFETY: the target is ours and long enough; a source that cannot be read is an error.
        unsafe { rkey_device::base::copy::copy(to, from.cast(), len) }.map_err(|_| Errno::FAULT)?;
        Ok(0)
    })
}

/// `ibv_memcpy_from_dm`.
///
/// # Safety
/// Device memory, and room for so many bytes.
pub unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut Dm,
    offset: u64,
    len: usize,
) -> c_int {
    fence(|| {
        // SAFETY: device memory as the caller promises, or something that is refused.
        let from = units_at(unsafe { find::<DmObject>(dm)? }, offset, len)?;
        // SAFETY: the source is ours and long enough; a target that cannot be written is an error.
        unsafe { rkey_device::base::copy::copy(to.cast(), from, len) }.map_err(|_| Errno::FAULT)?;
        Ok(0)
    })
}

/// `ibv_reg_dm_mr`: the region is addressed from zero.
///
/// # Safety
/// A protection domain and device memory, or anything else.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut Pd,
    dm: *mut Dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut Mr {
    fence(|| {
        // SAFETY: as the caller promises, or refused.
        let (object, memory) = unsafe { (find::<PdObject>(pd)?, find::<DmObject>(dm)?) };
        if access & ACCESS_ZERO_BASED == 0 || access & ACCESS_ON_DEMAND != 0 {
            return Err(Errno::INVAL);
        }
        let wanted = Wanted {
            start: at(memory, offset, length)? as u64,
            len: length as u64,
            addressing: Addressing::Zero,
            flags: access,
            shown: std::ptr::null_mut(),
        };
        // SAFETY: our own memory, which stays while regions are on it.
        unsafe { mr::register_dm(object, pd, &wanted, Hold::new(dm)?) }
    })
}

/// Keeps device memory while a region is on it.
pub struct Hold {
    dm: *mut Dm,
    _memory: Arc<Memory>,
}

impl Hold {
    fn new(dm: *mut Dm) -> Result<Self, Errno> {
        // SAFETY: checked; not freed meanwhile, as the caller of reg_dm_mr promises.
        let object = unsafe { find::<DmObject>(dm)? };
        object.users.add();
        Ok(Self {
            dm,
            _memory: Arc::clone(&object.memory),
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: device memory that is held is not freed, except with its context.
        if let Ok(object) = unsafe { find::<DmObject>(self.dm) } {
            object.users.remove();
        }
    }
}

/// `ibv_import_dm`: the same memory under another context of the device.
///
/// # Safety
/// A context, or anything else.
pub unsafe extern "C" fn import_dm(context: *mut Context, handle: u32) -> *mut Dm {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        let device = unsafe { find::<ContextObject>(context)? }.device();
        let same = |dm: &DmObject| {
            // SAFETY: a live object; its context is live or refused.
            unsafe {
                !dm.imported
                    && (*dm.c.get()).handle == handle
                    && find::<ContextObject>(dm.context).is_ok_and(|c| c.device().is(device))
            }
        };
        let (memory, len) = DMS
            .find_map(|dm| same(dm).then(|| (Arc::clone(&dm.memory), dm.len)))
            .ok_or(Errno::NOENT)?;
        new_dm(context, memory, len, handle, true)
    })
}

/// `ibv_unimport_dm`.
///
/// # Safety
/// No other thread uses it.
pub unsafe extern "C" fn unimport_dm(dm: *mut Dm) {
    fence(|| {
        // SAFETY: device memory as the caller promises, or something that is refused.
        if unsafe { find::<DmObject>(dm)? }.imported {
            // SAFETY: nobody uses it.
            drop(unsafe { remove::<DmObject>(dm)? });
        }
        Ok(())
    });
}

/// Ends what a context that is closed leaves.
///
/// # Safety
/// Nobody uses anything of the context.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: nobody uses the objects, as the caller promises.
    unsafe {
        for object in DMS.live(|dm| dm.context == context) {
            drop(remove::<DmObject>(object.cast()));
        }
    }
}

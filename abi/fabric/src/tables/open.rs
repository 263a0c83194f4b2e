//! `fi_open`: objects that do not belong to a fabric. There is only one, `mr_cache`, into which programs import a memory monitor.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::errno::FiError;
use crate::mr::imported;
use crate::nosys;
use crate::object::{find, object, publish, remove, status};
use crate::sys::*;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};

/// The object behind the handle of `mr_cache`. It stands for the caches of all domains.
#[repr(C)]
struct CacheObject {
    fid: UnsafeCell<Fid>,
}
object!(CacheObject, Fid, 1024);

static OPS: Ops = Ops {
    close,
    bind,
    ..nosys::OPS
};

/// `fi_open`, under the name by which `libfabric.so.1` finds it (FI-247, FI-I44).
///
/// # Safety
/// The arguments must be valid as described in fi_open(3).
pub unsafe extern "C" fn open(
    version: u32,
    name: *const c_char,
    _: *mut c_void,
    attr_len: usize,
    flags: u64,
    fid: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    status(|| {
        rkey_kit::log::start();
        if name.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: not null, so the caller guarantees a C string.
        let name = unsafe { CStr::from_ptr(name) };
        if name != c"mr_cache" {
            return Err(FiError::NOSYS.because(format_args!(
                "fi_open supports only the object mr_cache, not {}",
                name.to_string_lossy()
            )));
        }
        if version < crate::sys::version(1, 13) || attr_len != 0 {
            return Err(FiError::INVAL.because(format_args!(
                "mr_cache needs version 1.13 or later, and takes no attributes"
            )));
        }
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        let object = CacheObject {
            fid: UnsafeCell::new(Fid::new(FI_CLASS_MR_CACHE, context, &OPS)),
        };
        // SAFETY: the caller guarantees null or room for a handle.
        unsafe { publish(object, fid) }.map(drop)
    })
}

/// `fi_import_fid`.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<CacheObject, _>(fid)? };
        if flags != 0 {
            return Err(FiError::INVAL);
        }
        // SAFETY: the program promises an object, and to close a monitor before it ends.
        unsafe { imported::import(bound) }
    })
}

/// `fi_close`. An imported monitor remains in use until the program closes it.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: the program no longer uses the handle.
    status(|| unsafe { remove::<CacheObject, _>(fid) }.map(drop))
}

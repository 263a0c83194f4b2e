//! `fi_fabric`, `fi_open`, `fi_version` and `fi_strerror`.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read structures of the program.

use crate::layout::FABRIC_1_0;
use crate::provider::{entries, is_wanted};
use crate::status::{Failed, Result, passed, status};
use rkey_fi::sys::{FabricAttr, Fid, FidFabric, Info, version};
use rkey_fi::{FI_VERSION, own_text};
use rkey_kit::argument::{input, store};
use std::ffi::{CStr, c_char, c_int, c_void};

/// # Safety
/// Same as for [`fabric`].
unsafe fn open(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller promises attributes or null.
    let known = unsafe { input(attr.cast_const())? };
    if known.name.is_null() || known.prov_name.is_null() {
        return Err(Failed::INVAL);
    }
    // SAFETY: the caller promises null or room for a handle.
    unsafe { store(fabric, std::ptr::null_mut())? };
    // SAFETY: not null, so it is a C string.
    let name = unsafe { CStr::from_ptr(known.prov_name) };
    if name.is_empty() || !is_wanted(Some(name)) {
        return Err(Failed::NODEV);
    }
    let provider = entries().ok_or(Failed::NODEV)?.provider;
    // SAFETY: guaranteed by the caller.
    unsafe {
        passed((provider.fabric)(attr, fabric, context))?;
        // This version determines which fields of the program's structures the provider reads.
        (**fabric).api_version = known.api_version;
    }
    Ok(())
}

/// `fi_fabric`.
///
/// # Safety
/// The arguments must be valid as described in fi_fabric(3).
pub unsafe extern "C" fn fabric(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    status(|| unsafe { open(attr, fabric, context) })
}

/// `fi_fabric` of `FABRIC_1.0`, whose attributes have no API version: it counts as 1.0.
///
/// # Safety
/// The arguments must be valid as described in fi_fabric(3).
pub unsafe extern "C" fn fabric_1_0(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        if attr.is_null() {
            return Err(Failed::INVAL);
        }
        let mut long = FabricAttr {
            fabric: std::ptr::null_mut(),
            name: std::ptr::null_mut(),
            prov_name: std::ptr::null_mut(),
            prov_version: 0,
            api_version: version(1, 0),
        };
        let into = (&raw mut long).cast::<u8>();
        // SAFETY: the caller promises the fields of this version; ours has more.
        unsafe { std::ptr::copy_nonoverlapping(attr.cast(), into, FABRIC_1_0.fabric) };
        // SAFETY: our own attributes; the caller promises what they point to.
        unsafe { open(&raw mut long, fabric, context) }
    })
}

/// `fi_fabric2`.
///
/// # Safety
/// The arguments must be valid as described in fi_fabric(3).
pub unsafe extern "C" fn fabric2(
    info: *mut Info,
    fabric: *mut *mut FidFabric,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller promises an `fi_info` or null.
        let info = unsafe { input(info.cast_const())? };
        if flags != 0 {
            return Err(Failed::BADFLAGS);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { open(info.fabric_attr, fabric, context) }
    })
}

/// `fi_open` (FI-247, FI-I44): the provider knows the names.
///
/// # Safety
/// The arguments must be valid as described in fi_open(3).
pub unsafe extern "C" fn fi_open(
    version: u32,
    name: *const c_char,
    attr: *mut c_void,
    attr_len: usize,
    flags: u64,
    fid: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let open = entries().ok_or(Failed::NOSYS)?.open;
        // SAFETY: guaranteed by the caller.
        passed(unsafe { open(version, name, attr, attr_len, flags, fid, context) })
    })
}

/// `fi_version`.
pub extern "C" fn fi_version() -> u32 {
    FI_VERSION
}

/// `fi_strerror`: the text for an error number, with or without its sign.
pub extern "C" fn strerror(number: c_int) -> *const c_char {
    let number = c_int::try_from(number.unsigned_abs()).unwrap_or(c_int::MAX);
    match own_text(number) {
        Some(text) => text.as_ptr(),
        // SAFETY: takes every number, and returns a C string.
        None if number < 256 => unsafe { libc::strerror(number) },
        None => c"Unspecified error".as_ptr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_number_has_a_text() {
        let text = |number| {
            // SAFETY: a C string.
            let text = unsafe { CStr::from_ptr(strerror(number)) };
            text.to_str().unwrap().to_owned()
        };
        assert_eq!(text(0), "Success");
        assert_eq!(text(-libc::EINVAL), "Invalid argument");
        assert_eq!(text(266), "Required key not available");
        assert_eq!(text(-266), text(266));
        for unknown in [270, c_int::MAX, c_int::MIN] {
            assert_eq!(text(unknown), "Unspecified error");
        }
    }
}

//! Options of an endpoint: `fi_getopt`, `fi_setopt`.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read and write the program's memory.

use super::object::EpObject;
use super::shared::SrxObject;
use super::*;
use crate::info::offer::CM_DATA_SIZE;
use crate::object::{find, status};
use std::ffi::c_void;

/// The level of options of endpoints.
const LEVEL: c_int = 0;

/// The least room for another message, of an endpoint or a shared receive context.
///
/// # Safety
/// A handle, or something that is refused.
unsafe fn least<'a>(fid: *mut Fid) -> Result<&'a AtomicUsize> {
    // SAFETY: as the caller promises.
    unsafe {
        match find::<EpObject, _>(fid) {
            Ok(ep) => Ok(&ep.inner.min_multi_recv),
            Err(_) => Ok(&find::<SrxObject, _>(fid)?.inner.min_multi_recv),
        }
    }
}

pub(super) unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let min_multi_recv = unsafe { least(fid)? };
        if level != LEVEL || len.is_null() {
            return Err(FiError::INVAL);
        }
        let number = match option {
            FI_OPT_MIN_MULTI_RECV => min_multi_recv.load(Ordering::Relaxed),
            FI_OPT_CM_DATA_SIZE => CM_DATA_SIZE,
            _ => return Err(FiError(libc::ENOPROTOOPT)),
        };
        // SAFETY: not null, so it is a number; room for so many bytes, as it says.
        unsafe {
            if *len < size_of::<usize>() || value.is_null() {
                return Err(FiError::TOOSMALL);
            }
            *len = size_of::<usize>();
            value.cast::<usize>().write_unaligned(number);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn setopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let min_multi_recv = unsafe { least(fid)? };
        if level != LEVEL || value.is_null() {
            return Err(FiError::INVAL);
        }
        match option {
            FI_OPT_MIN_MULTI_RECV if len == size_of::<usize>() => {
                // SAFETY: so many bytes, as the program says.
                let least = unsafe { value.cast::<usize>().read_unaligned() };
                min_multi_recv.store(least, Ordering::Relaxed);
                Ok(())
            }
            FI_OPT_FI_HMEM_P2P if len == size_of::<c_int>() => {
                // SAFETY: so many bytes, as the program says.
                let wish = unsafe { value.cast::<c_int>().read_unaligned() };
                // FI-I27: there is no device whose memory could be reached without a copy.
                match wish {
                    FI_HMEM_P2P_ENABLED | FI_HMEM_P2P_DISABLED => Ok(()),
                    _ => Err(FiError::OPNOTSUPP),
                }
            }
            FI_OPT_MIN_MULTI_RECV | FI_OPT_FI_HMEM_P2P => Err(FiError::INVAL),
            _ => Err(FiError(libc::ENOPROTOOPT)),
        }
    })
}

//! The functions that libdat2 looks up by their names, and one for `libdat.so.1`.

use crate::calls::ext;
use crate::provider;
use crate::sys::{ExtendedOp, Handle, Provider, ProviderInfo, Return, VaListTag};
use rkey_kit::{c_call, caught};
use std::ffi::{CStr, c_char};

/// libdat2 calls this when it opens the first IA of a name.
///
/// # Safety
/// The caller is libdat2.
pub unsafe extern "C" fn dat_provider_init(info: *const ProviderInfo, parameters: *const c_char) {
    // SAFETY: guaranteed by the caller.
    caught(|| unsafe { provider::init(info, parameters) });
}

/// libdat2 calls this when it has closed the last IA of a name.
///
/// # Safety
/// The caller is libdat2.
pub unsafe extern "C" fn dat_provider_fini(info: *const ProviderInfo) {
    // SAFETY: guaranteed by the caller.
    caught(|| unsafe { provider::fini(info) });
}

/// Operations of extensions that need no open IA.
///
/// # Safety
/// The caller is libdat2.
pub unsafe extern "C" fn dapl_extensions(
    handle: Handle,
    op: ExtendedOp,
    arguments: *mut VaListTag,
) -> Return {
    // SAFETY: guaranteed by the caller.
    unsafe { ext::call_extension(handle, op, arguments) }
}

/// The function table of the IA called `name` on the address or interface `parameters`, for `libdat.so.1`, which has no registry.
/// Returns null if one of the arguments is null.
///
/// # Safety
/// Both arguments are null or C strings.
pub unsafe extern "C" fn rkey_dat_provider(
    name: *const c_char,
    parameters: *const c_char,
) -> *const Provider {
    c_call(|| {
        rkey_kit::log::start();
        if name.is_null() || parameters.is_null() {
            return Err(rkey_kit::Errno::INVAL);
        }
        // SAFETY: C strings.
        let (name, parameters) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(parameters)) };
        let parameters = parameters.to_string_lossy().into_owned();
        Ok(std::ptr::from_ref(
            provider::entry(name, parameters).table(),
        ))
    })
}

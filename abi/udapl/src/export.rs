//! The symbols that libdat2 looks up.

use crate::ext;
use crate::provider;
use crate::sys::{ExtendedOp, Handle, ProviderInfo, Return, VaListTag};
use rkey_kit::caught;
use std::ffi::c_char;

/// libdat2 opens the first IA of a name.
///
/// # Safety
/// libdat2 calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn dat_provider_init(info: *const ProviderInfo, parameters: *const c_char) {
    // SAFETY: guaranteed by the caller.
    caught(|| unsafe { provider::init(info, parameters) });
}

/// libdat2 has closed the last IA of a name.
///
/// # Safety
/// libdat2 calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn dat_provider_fini(info: *const ProviderInfo) {
    // SAFETY: guaranteed by the caller.
    caught(|| unsafe { provider::fini(info) });
}

/// Operations of extensions that need no open IA.
///
/// # Safety
/// libdat2 calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn dapl_extensions(
    handle: Handle,
    op: ExtendedOp,
    arguments: *mut VaListTag,
) -> Return {
    // SAFETY: guaranteed by the caller.
    unsafe { ext::call_extension(handle, op, arguments) }
}

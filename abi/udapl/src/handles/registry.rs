//! The functions of libdat2 that we call: its registry of providers, and its numbers for open IAs.
//!
//! libdat2 has loaded us, so its functions are looked up in the running process. We do not link with it, and programs that
//! load libdat2 privately work as well.

#![allow(unsafe_code)]
// UNSAFETY: calls functions of another library.

use crate::sys::consts::SUCCESS;
use crate::sys::{Handle, IaHandle, Provider, ProviderInfo, Return};
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

type Registration = unsafe extern "C" fn(*const Provider, *const ProviderInfo) -> Return;
type Numbering = unsafe extern "C" fn(IaHandle, *mut IaHandle) -> Return;

/// The functions of libdat2.
struct Registry {
    add: Option<Registration>,
    remove: Option<Registration>,
    number_of: Option<Numbering>,
}

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let library = find_library();
        // SAFETY: the functions with these names have these types (dat_registry.h, dat_init.h of libdat2).
        unsafe {
            Registry {
                add: std::mem::transmute::<*mut c_void, Option<Registration>>(symbol(
                    library,
                    c"dat_registry_add_provider",
                )),
                remove: std::mem::transmute::<*mut c_void, Option<Registration>>(symbol(
                    library,
                    c"dat_registry_remove_provider",
                )),
                number_of: std::mem::transmute::<*mut c_void, Option<Numbering>>(symbol(
                    library,
                    c"dats_get_ia_handle",
                )),
            }
        }
    })
}

/// A handle for libdat2 if it is loaded, otherwise for everything that the process has loaded.
fn find_library() -> *mut c_void {
    // SAFETY: a C string; RTLD_NOLOAD loads nothing new.
    let found =
        unsafe { libc::dlopen(c"libdat2.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if found.is_null() {
        libc::RTLD_DEFAULT
    } else {
        found
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of `dlopen`, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Registers a provider under the name in `info`. Returns whether libdat2 accepted it.
///
/// # Safety
/// `info` is what libdat2 passed to `dat_provider_init`.
pub unsafe fn add(provider: &'static Provider, info: *const ProviderInfo) -> bool {
    // SAFETY: the table lives as long as the process; the caller promises the rest.
    let added = registry().add.map(|add| unsafe { add(provider, info) });
    added == Some(SUCCESS)
}

/// Ends a registration.
///
/// # Safety
/// `info` is what libdat2 passed to `dat_provider_fini`.
pub unsafe fn remove(provider: &'static Provider, info: *const ProviderInfo) {
    if let Some(remove) = registry().remove {
        // SAFETY: as in `add`.
        unsafe { remove(provider, info) };
    }
}

/// The program's handle for an IA: the number that libdat2 assigned, or our own pointer until there is one.
#[must_use]
pub fn number_of(ia: usize) -> Handle {
    let own = ia as Handle;
    let Some(number_of) = registry().number_of else {
        return own;
    };
    let mut number: IaHandle = std::ptr::null_mut();
    // SAFETY: the function compares the address, and writes to `number`.
    match unsafe { number_of(own, &raw mut number) } {
        SUCCESS if !number.is_null() => number,
        _ => own,
    }
}

//! Our provider for DAT 2.0, which this library loads: it is in the shared object of all front ends, so all keys of a
//! program belong to one device.

#![allow(unsafe_code)]
// UNSAFETY: calls a function of a library that was loaded by name.

use daplrkey::sys::Provider;
use rkey_kit::companion::Companion;
use rkey_kit::delivery::{DAT1, UDAPL};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// `rkey_dat_provider` of the shared object.
type Find = unsafe extern "C" fn(*const c_char, *const c_char) -> *const Provider;

/// The function table of the IA called `name`, on an interface. `None`: the provider cannot be loaded.
#[must_use]
pub fn table(name: &CStr, interface: &str) -> Option<&'static Provider> {
    static FIND: OnceLock<Option<Find>> = OnceLock::new();
    let find = (*FIND.get_or_init(load))?;
    let interface = CString::new(interface).ok()?;
    // SAFETY: two C strings. The table lives as long as the process.
    unsafe { find(name.as_ptr(), interface.as_ptr()).as_ref() }
}

fn load() -> Option<Find> {
    let library = Companion::load(DAT1.file, &UDAPL)?;
    let found = library.symbol(c"rkey_dat_provider")?;
    // SAFETY: the function has this type, and the library stays loaded.
    Some(unsafe { std::mem::transmute::<NonNull<c_void>, Find>(found) })
}

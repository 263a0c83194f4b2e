//! The provider: how the library finds it, and whether a program wants it.

#![allow(unsafe_code)]
// UNSAFETY: calls functions of a library that was loaded by name.

use rkey_fi::NAME;
use rkey_fi::sys::{Fid, Provider};
use rkey_kit::companion::Companion;
use rkey_kit::delivery::{FABRIC, OWN_LIBFABRIC};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Once, OnceLock};

/// `fi_open` of the provider.
pub(crate) type Open = unsafe extern "C" fn(
    version: u32,
    name: *const c_char,
    attr: *mut c_void,
    attr_len: usize,
    flags: u64,
    fid: *mut *mut Fid,
    context: *mut c_void,
) -> c_int;

type Begin = unsafe extern "C" fn() -> *const Provider;

/// The provider's entry points, which stay valid.
#[derive(Clone, Copy)]
pub(crate) struct Entries {
    pub(crate) provider: &'static Provider,
    pub(crate) open: Open,
}

// SAFETY: addresses of functions and of a structure that only this library could write to, and does not.
unsafe impl Send for Entries {}
// SAFETY: as above.
unsafe impl Sync for Entries {}

/// The provider; `None` if its library is not next to this one: the log then says so.
pub(crate) fn entries() -> Option<Entries> {
    static ENTRIES: OnceLock<Option<Entries>> = OnceLock::new();
    *ENTRIES.get_or_init(load)
}

fn load() -> Option<Entries> {
    let library = Companion::load(OWN_LIBFABRIC.file, &FABRIC)?;
    let (begin, open) = (
        library.symbol(c"fi_prov_ini")?,
        library.symbol(c"rkey_fi_open")?,
    );
    // SAFETY: the functions of these names have these types, and the library stays loaded.
    let (begin, open) = unsafe {
        (
            std::mem::transmute::<NonNull<c_void>, Begin>(begin),
            std::mem::transmute::<NonNull<c_void>, Open>(open),
        )
    };
    // SAFETY: the provider's structure is static.
    let provider = unsafe { begin().as_ref()? };
    Some(Entries { provider, open })
}

fn is_ours(name: &str) -> bool {
    NAME.to_str()
        .is_ok_and(|own| name.trim().eq_ignore_ascii_case(own))
}

/// Whether `FI_PROVIDER` allows the provider: a list of names, or `^` and a list of names to exclude.
fn allowed(filter: &str) -> bool {
    let filter = filter.trim();
    match filter.strip_prefix('^') {
        Some(without) => !without.split(',').any(is_ours),
        None => filter.is_empty() || filter.split(',').any(is_ours),
    }
}

/// Whether the provider name in the hints matches ours: `rkey`, names to exclude (`^tcp`), or both. The names of layers over a
/// provider would follow it, separated by `;`, but this library has no layers.
fn is_meant(hint: &str) -> bool {
    let (without, with): (Vec<&str>, Vec<&str>) = hint
        .split(';')
        .partition(|name| name.trim().starts_with('^'));
    let left_out = |name: &&str| is_ours(name.trim().trim_start_matches('^'));
    let with: Vec<&str> = with
        .into_iter()
        .filter(|name| !name.trim().is_empty())
        .collect();
    !without.iter().any(left_out) && with.iter().all(|name| is_ours(name)) && with.len() <= 1
}

/// Whether a program may get the provider, given the provider's name in its hints.
pub(crate) fn is_wanted(hint: Option<&CStr>) -> bool {
    rkey_kit::log::start();
    let filter = std::env::var("FI_PROVIDER").unwrap_or_default();
    if !allowed(&filter) {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| tracing::warn!(
            "FI_PROVIDER={filter} excludes rkey, the only provider in this libfabric.so.1, which has no layers; {}",
            match filter.trim_start().starts_with('^') {
                true => "remove rkey from the list",
                false => "add rkey to the list",
            }
        ));
        return false;
    }
    let hint = hint.map(CStr::to_string_lossy).unwrap_or_default();
    if !is_meant(&hint) {
        tracing::info!(
            "no match: the provider name in the program's hints is {hint:?}, but this libfabric.so.1 has only rkey, and no layers"
        );
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_includes_or_excludes_the_provider() {
        for filter in [
            "",
            " ",
            "rkey",
            "RKEY",
            "tcp, rkey",
            "rkey,ofi_rxm",
            "^tcp",
            "^tcp,shm",
        ] {
            assert!(allowed(filter), "{filter:?}");
        }
        for filter in ["tcp", "^rkey", "^tcp,rkey", "rkey;ofi_rxm", "rkey2"] {
            assert!(!allowed(filter), "{filter:?}");
        }
    }

    #[test]
    fn hints_for_a_layer_or_another_provider_do_not_match() {
        for hint in ["", "rkey", "Rkey", "^tcp", "rkey;^ofi_rxm"] {
            assert!(is_meant(hint), "{hint:?}");
        }
        for hint in [
            "tcp",
            "rkey;ofi_rxm",
            "ofi_rxm;rkey",
            "ofi_rxm",
            "^rkey",
            "rkey;rkey",
        ] {
            assert!(!is_meant(hint), "{hint:?}");
        }
    }
}

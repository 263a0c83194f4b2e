//! The libfabric provider `rkey`: `librkey_fi.so`, which libfabric finds through `FI_PROVIDER_PATH`.
//!
//! The library translates: flags in, error numbers and completions out. What an access may do is decided
//! below, in the device. On top of the device's reliable connections it has what endpoints of libfabric need
//! beyond them: connections on demand, matching of messages and tags, completion queues and counters.
//! One file serves libfabric from 1.17 on; it is built without libfabric and imports none of its symbols.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sys`] | the structures and numbers of libfabric's headers |
//! | `info`, `mode`, `address` | what `fi_getinfo` offers; `mr_mode`; addresses |
//! | `fabric`, `domain` | the objects that the others hang on |
//! | `mr` | memory registration |
//! | `eq`, `cq`, `cntr`, `wait` | events, completions, counters, waiting for them |
//! | `av` | address vectors |
//! | `ep` | endpoints: connections, messages, tags, RMA, atomics, progress |
//! | `cm`, `pep`, `place`, `identity` | taking connections; passive endpoints; addresses; peers that regions can be limited to |
//! | `lenient` | what manual pages forbid and other providers allow |
//! | `object`, `errno`, `nosys`, `complaint` | handles, error numbers, calls that are not there, what peers do wrong |
//! | [`fuzzing`] | what peers send, for fuzz targets |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::unwrap_used))]

mod address;
mod attached;
mod av;
mod backlog;
mod cm;
mod cntr;
mod complaint;
mod cq;
mod domain;
mod ep;
mod eq;
mod errno;
mod fabric;
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod info;
mod lenient;
mod mode;
mod mr;
mod nosys;
mod object;
mod pep;
mod place;
pub mod sys;
mod wait;
mod work;

use std::ffi::CStr;

/// The version of the provider, as libfabric counts them.
pub(crate) const PROVIDER_VERSION: u32 = sys::version(0, 1);

/// The newest version of the interface that the provider knows. Libfabric skips providers whose version is
/// below what a program asks for, and does not mind one above its own.
const FI_VERSION: u32 = sys::version(2, 6);

/// The name of the provider.
pub(crate) const NAME: &CStr = c"rkey";

/// The place in the context of the provider where libfabric's core remembers that no provider of its own
/// shall be put on top of this one unasked: `-p rkey` then means this provider and nothing else.
const DISABLE_LAYERING: usize = 5;

/// Whether a list of `FI_PROVIDER` asks for a layer over this provider, as `rkey;ofi_rxm` does. Libfabric's core
/// looks for that only in a program's hints, and most programs leave the choice to the variable.
fn asks_for_a_layer(filter: &str) -> bool {
    let asks = |entry: &str| {
        let mut names = entry.split(';').map(str::trim);
        entry.contains(';') && names.any(|name| NAME.to_str() == Ok(name))
    };
    !filter.starts_with('^') && filter.split(',').any(asks)
}

#[allow(unsafe_code)]
// UNSAFETY: the entry point that libfabric's core calls, and the structure that it writes to.
mod entry {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Once;

    struct Shared(UnsafeCell<sys::Provider>);
    // SAFETY: we touch the structure once, before libfabric's core knows it; then the core does, under its own lock.
    unsafe impl Sync for Shared {}

    static PROVIDER: Shared = Shared(UnsafeCell::new(sys::Provider {
        version: PROVIDER_VERSION,
        fi_version: FI_VERSION,
        context: {
            let mut context = [0; 32];
            context[DISABLE_LAYERING] = 1;
            context
        },
        name: NAME.as_ptr(),
        getinfo: info::getinfo,
        fabric: fabric::fabric,
        cleanup,
    }));

    /// Called by libfabric when it is unloaded. What still runs belongs to objects that the program has not
    /// closed; the library stays in memory for them.
    unsafe extern "C" fn cleanup() {}

    /// The entry point of a provider library.
    #[unsafe(no_mangle)]
    pub extern "C" fn fi_prov_ini() -> *mut sys::Provider {
        static FIRST: Once = Once::new();
        FIRST.call_once(|| {
            if std::env::var("FI_PROVIDER").is_ok_and(|filter| asks_for_a_layer(&filter)) {
                // SAFETY: nobody has the address before this function has returned it for the first time.
                unsafe { (*PROVIDER.0.get()).context[DISABLE_LAYERING] = 0 };
            }
        });
        PROVIDER.0.get()
    }
}
pub use entry::fi_prov_ini;

#[cfg(test)]
mod tests {
    use super::asks_for_a_layer;

    #[test]
    fn a_layer_has_to_be_named_together_with_the_provider() {
        for filter in ["rkey;ofi_rxm", "tcp,rkey;ofi_rxm", "ofi_rxm;rkey"] {
            assert!(asks_for_a_layer(filter), "{filter}");
        }
        for filter in [
            "",
            "rkey",
            "rkey,ofi_rxm",
            "tcp;ofi_rxm,rkey",
            "^rkey;ofi_rxm",
        ] {
            assert!(!asks_for_a_layer(filter), "{filter}");
        }
    }
}

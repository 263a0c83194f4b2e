//! The libfabric provider `rkey`, which libfabric finds through `FI_PROVIDER_PATH` as `librkey-fi.so`.
//!
//! The library translates calls, flags, error numbers and completions. The device below it checks every access. On top
//! of the device's reliable connections it provides what libfabric endpoints need: connections on demand, matching of
//! messages and tags, completion queues and counters. One file serves libfabric from 1.17 on; it is built without
//! libfabric and imports none of its symbols.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of libfabric's headers |
//! | `info`, `mode`, `address` | the offers of `fi_getinfo`; `mr_mode`; addresses |
//! | `fabric`, `domain` | the parents of all other objects |
//! | `mr` | memory registration |
//! | `eq`, `cq`, `cntr`, `wait` | events, completions, counters, and waiting for them |
//! | `av` | address vectors |
//! | `ep` | endpoints: connections, messages, tags, RMA, atomics, progress |
//! | `work` | work that waits for counters |
//! | `tables` | on top: the function tables of fabrics, domains and regions, which name all the others |
//! | `pep`, `connect_request`, `backlog` | passive endpoints, and the requests of their clients |
//! | `local_address`, `identity` | addresses of endpoints; peers that regions can be limited to |
//! | `attached`, `watched` | what queues drive; regions that counters and endpoints have to find |
//! | `lenient` | calls that manual pages forbid and other providers accept |
//! | `object`, `errno`, `nosys` | handles, error numbers, missing calls |
//! | [`fuzzing`] | readers of peers' bytes, for fuzz targets |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

mod address;
mod attached;
mod av;
mod backlog;
mod cntr;
mod connect_request;
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
mod local_address;
mod mode;
mod mr;
mod nosys;
mod object;
mod pep;
pub mod sys;
mod tables;
mod wait;
mod watched;
mod work;

pub use errno::own_text;
use std::ffi::CStr;
pub use tables::open::open;

/// The newest API version that the provider supports. Libfabric skips a provider whose version is lower than the one that a
/// program requests, and accepts a provider whose version is higher than libfabric's own.
pub const FI_VERSION: u32 = sys::version(2, 6);

/// The name of the provider.
pub const NAME: &CStr = c"rkey";

/// The index, in the provider's context, of the flag that keeps libfabric's core from layering its own provider over
/// this one unasked: `-p rkey` then means this provider only.
const DISABLE_LAYERING: usize = 5;

/// Whether a list in `FI_PROVIDER` asks for a layer over this provider, as `rkey;ofi_rxm` does. Libfabric's
/// core checks only the program's hints for that, and most programs leave the choice to the variable.
fn requests_layer(filter: &str) -> bool {
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
    // SAFETY: we touch the structure once, before libfabric's core gets it; after that only the core does, under its
    // own lock.
    unsafe impl Sync for Shared {}

    static PROVIDER: Shared = Shared(UnsafeCell::new(sys::Provider {
        version: info::build::PROVIDER_VERSION,
        fi_version: FI_VERSION,
        context: {
            let mut context = [0; 32];
            context[DISABLE_LAYERING] = 1;
            context
        },
        name: NAME.as_ptr(),
        getinfo: info::getinfo,
        fabric: tables::fabric::fabric,
        cleanup,
    }));

    /// `fi_provider.cleanup`: libfabric calls it when it unloads the provider. Objects that the program has not closed
    /// keep running; the library stays in memory for them.
    unsafe extern "C" fn cleanup() {}

    /// The entry point of a provider library, which exports it under this name.
    pub extern "C" fn fi_prov_ini() -> *mut sys::Provider {
        static FIRST: Once = Once::new();
        FIRST.call_once(|| {
            if std::env::var("FI_PROVIDER").is_ok_and(|filter| requests_layer(&filter)) {
                // SAFETY: no caller has the address before this function first returns it.
                unsafe { (*PROVIDER.0.get()).context[DISABLE_LAYERING] = 0 };
            }
        });
        PROVIDER.0.get()
    }
}
pub use entry::fi_prov_ini;

#[cfg(test)]
mod tests {
    use super::requests_layer;

    #[test]
    fn a_layer_is_recognized_only_together_with_the_provider() {
        for filter in ["rkey;ofi_rxm", "tcp,rkey;ofi_rxm", "ofi_rxm;rkey"] {
            assert!(requests_layer(filter), "{filter}");
        }
        for filter in [
            "",
            "rkey",
            "rkey,ofi_rxm",
            "tcp;ofi_rxm,rkey",
            "^rkey;ofi_rxm",
        ] {
            assert!(!requests_layer(filter), "{filter}");
        }
    }
}

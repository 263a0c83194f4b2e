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
//! | `cm`, `pep` | taking connections; passive endpoints |
//! | `object`, `errno`, `nosys`, `log` | handles, error numbers, the surroundings |

mod address;
mod av;
mod cm;
mod cntr;
mod cq;
mod domain;
mod ep;
mod eq;
mod errno;
mod fabric;
mod info;
mod log;
mod mode;
mod mr;
mod nosys;
mod object;
mod pep;
pub mod sys;
mod wait;

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

#[allow(unsafe_code)]
// UNSAFETY: the entry point that libfabric's core calls, and the structure that it writes to.
mod entry {
    use super::*;
    use std::cell::UnsafeCell;

    struct Shared(UnsafeCell<sys::Provider>);
    // SAFETY: we never touch the structure after it was made; libfabric's core does, under its own lock.
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
        PROVIDER.0.get()
    }
}
pub use entry::fi_prov_ini;

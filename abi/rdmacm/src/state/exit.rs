//! The end of the process: connections to other hosts end, although the program has not closed them. Most programs that use librdmacm
//! leave this to the kernel.

#![allow(unsafe_code)]
// UNSAFETY: a function that the loader calls when the process exits.

use crate::state::front::started;
use rkey_device::cm::Service;

extern "C" fn leave() {
    // It must not unwind into the loader.
    rkey_kit::caught(|| started().map(Service::leave_other_hosts));
}

// SAFETY: the loader calls the functions of this section once, after the handlers of `atexit` that the program has registered, which
// may still use connections; `leave` ignores their arguments.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = leave;

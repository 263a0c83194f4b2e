//! The end of the process: acknowledgements that wait for the program's answer leave without it.

#![allow(unsafe_code)]
// UNSAFETY: a function that the loader calls when the process exits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::WIRES;

/// How long an exiting process waits for the wire's threads, which takes microseconds.
const PATIENCE: Duration = Duration::from_millis(20);
/// How many devices of the process hold acknowledgements back.
static HOLDING: AtomicUsize = AtomicUsize::new(0);

/// Counts a device that holds acknowledgements back, or no longer does.
pub(crate) fn count_holding(holds: bool) {
    match holds {
        true => HOLDING.fetch_add(1, Ordering::AcqRel),
        false => HOLDING.fetch_sub(1, Ordering::AcqRel),
    };
}

/// Makes the wires' threads send what is held back. The exiting thread does not do it: it may hold any lock, if a signal handler calls
/// `exit`, and logging needs thread-local storage, which it has no longer.
pub(crate) fn send_held() {
    if HOLDING.load(Ordering::Acquire) == 0 {
        return;
    }
    let Some(wires) = WIRES.try_lock() else {
        return;
    };
    let cores = wires.iter().filter_map(|(_, wire)| wire.upgrade());
    let cores: Vec<_> = cores.filter(|it| it.core.is_usable()).collect();
    drop(wires);
    cores.iter().for_each(|it| it.core.ring());
    let until = crate::time::now() + PATIENCE;
    while !cores.is_empty() && HOLDING.load(Ordering::Acquire) > 0 && crate::time::now() < until {
        crate::time::sleep(Duration::from_micros(20));
    }
    // Dropping the last handle of a wire would join its thread.
    cores.into_iter().for_each(std::mem::forget);
}

extern "C" fn leave() {
    // It must not unwind into the loader.
    let _ = std::panic::catch_unwind(send_held);
}

// SAFETY: the loader calls the functions of this section once, after the handlers of `atexit` that the program has registered;
// `leave` ignores their arguments.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = leave;

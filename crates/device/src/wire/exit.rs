//! The end of the process: acknowledgements that wait for the program's answer leave without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{WIRES, Wire};

/// How long an exiting process waits for the wire's threads, which takes microseconds.
const PATIENCE: Duration = Duration::from_millis(20);

impl Wire {
    /// Counts a device that delays acknowledgements, or no longer does because they are sent.
    pub(crate) fn count_holding(&self, holds: bool) {
        match holds {
            true => self.core.holding.fetch_add(1, Ordering::AcqRel),
            false => self.core.holding.fetch_sub(1, Ordering::AcqRel),
        };
    }
}

/// Makes the wires' threads send what is delayed. The exiting thread does not do it: it may hold any lock, if a signal handler calls
/// `exit`, and logging needs thread-local storage, which it has no longer.
pub(crate) fn send_held() {
    let Some(wires) = WIRES.try_lock() else {
        return;
    };
    // A forked child has the counts of its parent, but nothing to send.
    let holds = |it: &Arc<Wire>| it.is_usable() && it.core.holding.load(Ordering::Acquire) > 0;
    let until = crate::time::now() + PATIENCE;
    for (_, wire) in wires.iter() {
        let Some(wire) = wire.upgrade() else {
            continue;
        };
        if holds(&wire) {
            wire.core.ring();
        }
        while holds(&wire) && crate::time::now() < until {
            crate::time::sleep(Duration::from_micros(20));
        }
        // Dropping the last handle would join the wire's thread.
        std::mem::forget(wire);
    }
}

//! The end of a process that does not close its devices: delayed acknowledgements are published. Otherwise the peers would
//! take the last messages that it received for lost.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::shared::Shared;

/// How long an exiting process waits for another thread that uses the engine, which takes microseconds. A thread that holds the engine's
/// lock and calls `exit` in a signal handler would wait forever.
const PATIENCE: Duration = Duration::from_millis(20);

/// The devices of this process.
static DEVICES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Publishes the acknowledgements of a device when the process exits.
pub(crate) fn watch(device: &Arc<Shared>) {
    // In a forked child, the lock may be held by a thread that does not exist there.
    let Some(mut devices) = DEVICES.try_lock_for(PATIENCE) else {
        return;
    };
    devices.retain(|device| device.strong_count() > 0);
    devices.push(Arc::downgrade(device));
}

/// Publishes the acknowledgements of all devices. The exiting thread may hold any lock, if a signal handler calls `exit`, and logging
/// needs thread-local storage, which it has no longer. Does nothing in a forked child, which does not map the rings.
pub(crate) fn publish_all() {
    let Some(devices) = DEVICES.try_lock().map(|devices| devices.clone()) else {
        return;
    };
    let until = crate::time::now() + PATIENCE;
    for device in devices.iter().filter_map(Weak::upgrade) {
        let driver = &device.driver;
        while driver.lifecycle.is_usable() && !driver.try_publish() && crate::time::now() < until {
            crate::time::sleep(Duration::from_micros(20));
        }
        // Dropping the last reference would release memory that other threads may still use.
        std::mem::forget(device);
    }
}

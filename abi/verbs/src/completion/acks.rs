//! What completion events and asynchronous events have in common: both are acknowledged, and both arrive through a
//! descriptor that a program may make non-blocking.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use parking_lot::{Condvar, Mutex};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts an object's events that the program has fetched and not yet acknowledged.
#[derive(Debug, Default)]
pub struct Acks {
    open: Mutex<u32>,
    less: Condvar,
}

impl Acks {
    /// Counts an event that the program fetches.
    pub fn add_fetched(&self) {
        *self.open.lock() += 1;
    }

    /// Counts `count` acknowledgements.
    pub fn acknowledge(&self, count: u32) {
        let mut open = self.open.lock();
        *open = open.saturating_sub(count);
        self.less.notify_all();
    }

    /// Waits until every event is acknowledged.
    pub fn wait(&self) {
        let mut open = self.open.lock();
        while *open > 0 {
            self.less.wait(&mut open);
        }
    }
}

/// Makes a descriptor blocking, which is the default of verbs. Programs that must not wait set `O_NONBLOCK`.
pub fn make_blocking(fd: c_int) {
    // SAFETY: the calls only read and write flags of our own descriptor.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
    }
}

/// Whether the program set `O_NONBLOCK`.
#[must_use]
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: only reads flags.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Adds to a counter of acknowledged events. Programs may read it; any thread may acknowledge.
///
/// # Safety
/// `counter` is a field of a live object.
pub(crate) unsafe fn completed(counter: *mut u32, count: u32) {
    // SAFETY: a live field, which only this function writes.
    unsafe { AtomicU32::from_ptr(counter) }.fetch_add(count, Ordering::Relaxed);
}

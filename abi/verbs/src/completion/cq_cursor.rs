//! The state of an extended completion queue while a program polls it.

#![allow(unsafe_code)]
// UNSAFETY: a cell that a lock guards, or the program's promise to use one thread.

use crate::raw_lock::RawLock;
use crate::sys::consts::*;
use rkey_device::engine::Completion;
use std::cell::UnsafeCell;

/// The completion under the cursor, between `ibv_start_poll` and `ibv_end_poll`.
pub struct Cursor {
    /// Whether the program promised to use one thread, so that the lock is not needed.
    single_threaded: bool,
    lock: RawLock,
    pub(crate) current: UnsafeCell<Current>,
}

/// One completion and its timestamps.
#[derive(Clone, Copy, Default)]
pub(crate) struct Current {
    pub(crate) completion: Completion,
    /// When the completion was added to the queue: by the clock of [`crate::device::clock::timestamp`], and by the wall clock.
    pub(crate) time: u64,
    pub(crate) wallclock: u64,
}

// SAFETY: only the thread that holds `lock`, or the program's only thread, uses `current`.
unsafe impl Sync for Cursor {}

impl Cursor {
    /// Creates a cursor that is at no completion.
    #[must_use]
    pub fn new(single_threaded: bool) -> Self {
        let current = UnsafeCell::new(Current::default());
        Self {
            single_threaded,
            lock: RawLock::new(),
            current,
        }
    }

    /// Waits until no other thread polls.
    pub(crate) fn lock(&self) {
        if !self.single_threaded {
            self.lock.lock();
        }
    }

    /// Lets other threads poll.
    pub(crate) fn unlock(&self) {
        self.lock.unlock();
    }
}

/// Whether these fields of a completion include timestamps.
#[must_use]
pub const fn is_stamped(wc_flags: u64) -> bool {
    wc_flags & (WC_EX_WITH_COMPLETION_TIMESTAMP | WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0
}

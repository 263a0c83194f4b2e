//! The state of an extended completion queue while a program polls it, and the clock of completion timestamps.

#![allow(unsafe_code)]
// UNSAFETY: a cell that a lock guards, or the program's promise to use one thread; and a call of the C library.

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
    /// When the completion was added to the queue: by the clock of [`timestamp`], and by the wall clock.
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

/// The clock of completion timestamps: nanoseconds of the raw monotonic clock. Only queues created with
/// timestamps stamp their completions.
#[must_use]
pub fn timestamp() -> u64 {
    clock(libc::CLOCK_MONOTONIC_RAW)
}

/// Whether these fields of a completion include timestamps.
#[must_use]
pub const fn is_stamped(wc_flags: u64) -> bool {
    wc_flags & (WC_EX_WITH_COMPLETION_TIMESTAMP | WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0
}

/// The time of a clock in nanoseconds.
#[expect(
    clippy::disallowed_methods,
    reason = "verbs defines the clocks of timestamps"
)]
pub(crate) fn clock(which: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(which, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

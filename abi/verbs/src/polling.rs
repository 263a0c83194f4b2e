//! What an extended completion queue remembers while a program reads it, and the clock of completion timestamps.

#![allow(unsafe_code)]
// UNSAFETY: a cell that a lock or the promise of a program guards, and a call of the C library.

use crate::hold::Hold;
use crate::sys::consts::*;
use rkey_device::engine::Completion;
use std::cell::UnsafeCell;

/// The completion that is being read, between `ibv_start_poll` and `ibv_end_poll`.
pub struct Polling {
    /// A program that promised to use one thread.
    single_threaded: bool,
    hold: Hold,
    pub(crate) current: UnsafeCell<Current>,
}

/// One completion and its times.
#[derive(Clone, Copy, Default)]
pub(crate) struct Current {
    pub(crate) completion: Completion,
    /// When it was added to the queue, by the clock of [`timestamp`] and by that of the wall.
    pub(crate) time: u64,
    pub(crate) wallclock: u64,
}

// SAFETY: only the thread that holds `hold`, or the program's only thread, uses `current`.
unsafe impl Sync for Polling {}

impl Polling {
    /// Nothing is being read.
    #[must_use]
    pub fn new(single_threaded: bool) -> Self {
        let current = UnsafeCell::new(Current::default());
        Self {
            single_threaded,
            hold: Hold::new(),
            current,
        }
    }

    /// Waits until no other thread reads.
    pub(crate) fn hold(&self) {
        if !self.single_threaded {
            self.hold.take();
        }
    }

    /// Lets another thread read.
    pub(crate) fn release(&self) {
        self.hold.release();
    }
}

/// The clock of completion timestamps: nanoseconds of the raw monotonic clock. Completions are stamped when they are
/// added to a queue that was made for it.
#[must_use]
pub fn timestamp() -> u64 {
    clock(libc::CLOCK_MONOTONIC_RAW)
}

/// Whether a program that wants to read these fields wants to read times.
#[must_use]
pub const fn is_stamped(wc_flags: u64) -> bool {
    wc_flags & (WC_EX_WITH_COMPLETION_TIMESTAMP | WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0
}

/// A clock in nanoseconds.
pub(crate) fn clock(which: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for a time.
    unsafe { libc::clock_gettime(which, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

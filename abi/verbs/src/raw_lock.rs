//! The lock that a program holds between two calls of an extended interface: from `ibv_start_poll` to
//! `ibv_end_poll`, or from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.

use std::sync::atomic::{AtomicBool, Ordering};

/// A lock without a guard: one call locks it, another unlocks it.
pub(crate) struct RawLock(AtomicBool);

impl RawLock {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits until the lock is free, and acquires it.
    pub(crate) fn lock(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Releases the lock.
    pub(crate) fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether any thread holds the lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

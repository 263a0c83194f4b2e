//! The lock that a program holds between two calls of an extended interface: `ibv_start_poll` and `ibv_end_poll`, or
//! `ibv_wr_start` and `ibv_wr_complete`.

use std::sync::atomic::{AtomicBool, Ordering};

/// A lock without a guard: one call takes it, another one releases it.
pub(crate) struct Hold(AtomicBool);

impl Hold {
    /// Not held.
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits until no other thread holds it, and holds it.
    pub(crate) fn take(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Lets another thread take it.
    pub(crate) fn release(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether a thread holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

//! Work of the engine that no ring shows: what commands leave, and messages over the device's link to itself.

use std::sync::atomic::{AtomicBool, Ordering};

use rkey_engine::{LinkId, Progress};

/// Whether the engine has work that no ring shows. Written under the engine's lock, and read without it.
pub(super) struct PendingWork {
    drive_again: AtomicBool,
    /// The device's link to itself. It is not in the poll set: posts over it set `drive_again`.
    pub(super) loopback: LinkId,
    uses_loopback: AtomicBool,
}

impl PendingWork {
    /// The work of an engine that has never been driven.
    pub(super) fn new(loopback: LinkId) -> Self {
        Self {
            drive_again: AtomicBool::new(true),
            loopback,
            uses_loopback: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(super) fn exists(&self) -> bool {
        self.drive_again.load(Ordering::Relaxed)
    }

    /// Updates it after a drive.
    #[inline]
    pub(super) fn after_drive(&self, progress: &Progress) {
        // Pollers publish delayed acknowledgements without driving.
        let drive_again =
            progress.more || (progress.did && self.uses_loopback.load(Ordering::Relaxed));
        if self.drive_again.load(Ordering::Relaxed) != drive_again {
            self.drive_again.store(drive_again, Ordering::Relaxed);
        }
    }

    /// A command may have created work that no ring shows.
    #[inline]
    pub(super) fn after_command(&self) {
        self.drive_again.store(true, Ordering::Relaxed);
    }

    /// The post may have gone over the loopback, if that is in use.
    #[inline]
    pub(super) fn after_post(&self) {
        if self.uses_loopback.load(Ordering::Relaxed) {
            self.drive_again.store(true, Ordering::Relaxed);
        }
    }

    /// The loopback, which counts as in use from now on.
    pub(super) fn use_loopback(&self) -> LinkId {
        self.uses_loopback.store(true, Ordering::Relaxed);
        self.loopback
    }
}

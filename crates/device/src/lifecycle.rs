//! Whether a device can be used: it may be open, closing, failed, or the device of the parent process.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rkey_base::process::ForkMark;

use crate::error::DeviceError;

/// Something that program threads wait on.
pub(crate) trait WaitPoint: Send + Sync {
    /// The device failed: threads that wait, now or later, return.
    fn device_failed(&self);
}

/// The socket of a listener.
impl WaitPoint for OwnedFd {
    fn device_failed(&self) {
        let _ = rustix::net::shutdown(self, rustix::net::Shutdown::Both);
    }
}

/// The state of a device as a whole, and the objects whose waiting threads must return when it fails.
pub(crate) struct Lifecycle {
    stopping: AtomicBool,
    fork: ForkMark,
    failed: AtomicBool,
    failure: OnceLock<String>,
    wait_points: Mutex<Vec<Weak<dyn WaitPoint>>>,
}

impl Lifecycle {
    /// The lifecycle of a device that this process has just opened.
    pub(crate) fn new(fork: ForkMark) -> Self {
        Self {
            stopping: AtomicBool::new(false),
            fork,
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            wait_points: Mutex::new(Vec::new()),
        }
    }

    /// Whether this process may use the device now.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    #[inline]
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        if self.fork.is_child() || self.failed.load(Ordering::Relaxed) {
            return Err(self.error());
        }
        Ok(())
    }

    #[cold]
    fn error(&self) -> DeviceError {
        if self.fork.is_child() {
            return DeviceError::Forked;
        }
        DeviceError::Failed(self.failure.get().cloned().unwrap_or_default())
    }

    /// Whether this process was forked from the one that opened the device.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Identifies the process that opened the device.
    #[inline]
    pub(crate) fn fork_mark(&self) -> ForkMark {
        self.fork
    }

    /// Whether an object that is dropped should be removed from the engine: not in a forked child, which must not touch it,
    /// and not after a failure, when its state cannot be trusted.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_forked() && !self.has_failed()
    }

    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Called when the last handle was dropped: the engine thread ends.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Makes [`Lifecycle::check`] return this failure from now on, and wakes waiting threads. Only the first failure counts.
    pub(crate) fn fail(&self, why: String) {
        let _ = self.failure.set(why);
        self.failed.store(true, Ordering::Release);
        let wait_points = self.wait_points.lock().clone();
        for point in wait_points.iter().filter_map(Weak::upgrade) {
            point.device_failed();
        }
    }

    /// Registers an object that program threads may wait on, until it is dropped.
    pub(crate) fn add_wait_point<T: WaitPoint + 'static>(&self, point: &Arc<T>) {
        let point: Weak<T> = Arc::downgrade(point);
        let mut wait_points = self.wait_points.lock();
        wait_points.retain(|other| other.strong_count() > 0);
        wait_points.push(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::event_queue::EventQueue;
    use rkey_engine::CqId;

    fn lifecycle() -> Lifecycle {
        Lifecycle::new(ForkMark::new().unwrap())
    }

    #[test]
    fn the_first_failure_is_reported() {
        let life = lifecycle();
        assert!(life.check().is_ok() && life.is_usable());
        life.fail("first".to_owned());
        life.fail("second".to_owned());
        let error = life.check().unwrap_err();
        assert!(matches!(&error, DeviceError::Failed(why) if why == "first"));
        assert!(life.has_failed() && !life.is_stopping() && !life.is_forked());
        assert!(!life.is_usable());
    }

    #[test]
    fn a_failure_closes_the_channels_that_still_exist() {
        let life = lifecycle();
        let queue = || Arc::new(EventQueue::<CqId>::new(1).unwrap());
        let (kept, dropped) = (queue(), queue());
        life.add_wait_point(&dropped);
        drop(dropped);
        life.add_wait_point(&kept);
        assert_eq!(life.wait_points.lock().len(), 1);
        life.fail("a test".to_owned());
        assert!(kept.next(None).unwrap().is_none(), "no event will come");
    }
}

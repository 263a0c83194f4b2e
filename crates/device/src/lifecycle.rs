//! Whether a device can be used: it is open, closing, failed, or belongs to the parent of this process.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rkey_base::process::ForkMark;
use rkey_engine::CqId;

use crate::error::DeviceError;
use crate::objects::channel::EventQueue;

/// The state of a device as a whole, and what its end has to close so that waiting threads return.
pub(crate) struct Lifecycle {
    stopping: AtomicBool,
    fork: ForkMark,
    failed: AtomicBool,
    failure: OnceLock<String>,
    /// Completion channels of the program.
    channels: Mutex<Vec<Weak<EventQueue<CqId>>>>,
    /// Sockets that the program listens at.
    listeners: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Lifecycle {
    /// Of a device that this process has just opened.
    pub(crate) fn new(fork: ForkMark) -> Self {
        Self {
            stopping: AtomicBool::new(false),
            fork,
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            channels: Mutex::new(Vec::new()),
            listeners: Mutex::new(Vec::new()),
        }
    }

    /// Whether the device may be used by this process, now.
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

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The last handle is gone: the engine thread ends.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// From now on [`Lifecycle::check`] answers with this failure. The first one is kept.
    pub(crate) fn fail(&self, why: String) {
        let _ = self.failure.set(why);
        self.failed.store(true, Ordering::Release);
    }

    /// Remembers a channel that threads of the program may wait at.
    pub(crate) fn add_channel(&self, channel: &Arc<EventQueue<CqId>>) {
        add(&self.channels, channel);
    }

    /// Remembers a socket that the program listens at.
    pub(crate) fn add_listener(&self, socket: &Arc<OwnedFd>) {
        add(&self.listeners, socket);
    }

    /// Closes channels and listening sockets: whoever waits at one returns.
    pub(crate) fn close_channels_and_listeners(&self) {
        let channels = self.channels.lock();
        channels
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|channel| channel.close());
        for socket in self.listeners.lock().iter().filter_map(Weak::upgrade) {
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Adds one, and forgets those that are gone.
fn add<T>(list: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut list = list.lock();
    list.retain(|it| it.strong_count() > 0);
    list.push(Arc::downgrade(one));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifecycle() -> Lifecycle {
        Lifecycle::new(ForkMark::new().unwrap())
    }

    #[test]
    fn the_first_failure_is_reported() {
        let life = lifecycle();
        assert!(life.check().is_ok() && !life.has_failed());
        life.fail("first".to_owned());
        life.fail("second".to_owned());
        let error = life.check().unwrap_err();
        assert!(matches!(&error, DeviceError::Failed(why) if why == "first"));
        assert!(life.has_failed() && !life.is_stopping() && !life.is_forked());
    }

    #[test]
    fn failing_closes_the_channels_that_are_left() {
        let life = lifecycle();
        let queue = || Arc::new(EventQueue::new(1).unwrap());
        let (kept, dropped) = (queue(), queue());
        life.add_channel(&dropped);
        drop(dropped);
        life.add_channel(&kept);
        assert_eq!(life.channels.lock().len(), 1);
        life.close_channels_and_listeners();
        assert!(kept.next(None).unwrap().is_none(), "no event will come");
    }
}

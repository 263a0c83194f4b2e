//! Completion channels.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rkey_engine::CqId;

use super::event_queue::EventQueue;
use crate::device::Device;
use crate::error::DeviceError;

/// A completion channel. It gets an event for the next completion of each armed completion queue that was created with it. Clones
/// are the same channel.
#[derive(Clone, Debug)]
pub struct Channel {
    device: Device,
    queue: Arc<EventQueue<CqId>>,
}

impl Channel {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn queue(&self) -> &Arc<EventQueue<CqId>> {
        &self.queue
    }

    /// Waits up to `timeout` (`None`: without limit) for the next completion queue that is ready, and leaves the engine to its
    /// thread in the meantime.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`], or waiting failed.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<CqId>, DeviceError> {
        let shared = self.device().shared();
        shared.lifecycle().check()?;
        if let Some(event) = self.queue().try_next() {
            return Ok(Some(event));
        }
        shared.driver.hand_over();
        let event = self.queue().next(timeout)?;
        shared.lifecycle().check()?;
        Ok(event)
    }

    /// Waits for the next completion queue that is ready, as a blocking `read` of the descriptor would: a signal whose
    /// handler was installed without `SA_RESTART` ends the wait. `None` if the device failed.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`], [`DeviceError::Io`] with `EINTR`.
    pub fn next_event_or_signal(&self) -> Result<Option<CqId>, DeviceError> {
        let shared = self.device().shared();
        shared.lifecycle().check()?;
        if let Some(event) = self.queue().try_next() {
            return Ok(Some(event));
        }
        shared.driver.hand_over();
        let event = self.queue().next_or_signal()?;
        shared.lifecycle().check()?;
        Ok(event)
    }

    /// The next completion queue that is ready, if any.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn try_next_event(&self) -> Result<Option<CqId>, DeviceError> {
        self.device().check()?;
        Ok(self.queue().try_next())
    }

    /// Whether there are events.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.queue().is_empty()
    }

    /// A descriptor that is readable exactly while there are events. Use it only with `poll`, `select` and `epoll`.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue().fd()
    }
}

impl Device {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn create_channel(&self) -> Result<Channel, DeviceError> {
        self.check()?;
        // The program must arm a queue for each event, so no limit is needed.
        let queue = Arc::new(EventQueue::new(usize::MAX)?);
        self.shared().lifecycle().add_wait_point(&queue);
        Ok(Channel {
            device: self.clone(),
            queue,
        })
    }
}

//! Operations in flight.

use super::message::Message;
use super::shared::Handle;
use super::slot::{Outcome, Slot};
use crate::address::Address;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// A message that is being sent. Dropping it does not cancel the message.
#[must_use = "failures are reported only here"]
pub struct Sending {
    pub(super) handle: Arc<Handle>,
    pub(super) slot: Arc<Slot>,
    pub(super) to: Address,
}

/// A receive that waits for its message. Dropping it cancels the receive; a message that has already matched it is lost.
#[must_use = "dropping it cancels the receive"]
pub struct Receiving {
    pub(super) handle: Arc<Handle>,
    pub(super) slot: Arc<Slot>,
}

impl Sending {
    /// Waits until the endpoint has released the buffer, up to the device's timeout, and returns it. By then a short
    /// message (up to 8 KiB) is in the peer's memory, though its program may not have received it; a longer one has
    /// been received.
    ///
    /// # Errors
    /// [`Error::PeerGone`]; [`Error::Timeout`]: the message may still be received.
    pub fn wait(self) -> Result<Vec<u8>> {
        let timeout = self.handle.timeout();
        self.wait_timeout(timeout)
    }

    /// Like [`Sending::wait`], up to `timeout`.
    ///
    /// # Errors
    /// Same as [`Sending::wait`].
    pub fn wait_timeout(self, timeout: Duration) -> Result<Vec<u8>> {
        let what = "the operation to complete";
        let taken = || self.slot.take();
        self.result(self.handle.inner.wait(timeout, what, taken)?)
    }

    /// Returns the buffer if the operation has ended, or the operation if it has not.
    ///
    /// # Errors
    /// Same as [`Sending::wait`], in the inner result.
    pub fn try_wait(self) -> std::result::Result<Result<Vec<u8>>, Self> {
        match self.handle.try_take(&self.slot) {
            Ok(None) => Err(self),
            Ok(Some(outcome)) => Ok(self.result(outcome)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Whether the operation has ended, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.handle.is_ended(&self.slot)
    }

    fn result(&self, outcome: Outcome) -> Result<Vec<u8>> {
        match outcome {
            Outcome::Sent(bytes) => Ok(bytes),
            Outcome::Received(message) => Ok(message.bytes),
            Outcome::Truncated { len, room } => Err(Error::Truncated { len, room }),
            Outcome::Failed(failure) => Err(self.handle.error_of(&failure, Some(self.to))),
        }
    }
}

/// A read or a write of a peer's memory. Dropping it does not stop the transfer.
#[must_use = "failures are reported only here"]
pub struct Transferring(pub(super) Sending);

impl Transferring {
    /// Waits until the transfer is done, up to the device's timeout: then the bytes of a write are in the peer's memory, and
    /// those of a read are in ours.
    ///
    /// # Errors
    /// [`Error::Denied`] with the reason if the peer refused the access; messages and other transfers continue.
    /// [`Error::PeerGone`]; [`Error::Timeout`]: the transfer may still be executed.
    pub fn wait(self) -> Result<()> {
        self.0.wait().map(drop)
    }

    /// Like [`Transferring::wait`], up to `timeout`.
    ///
    /// # Errors
    /// Same as [`Transferring::wait`].
    pub fn wait_timeout(self, timeout: Duration) -> Result<()> {
        self.0.wait_timeout(timeout).map(drop)
    }

    /// Whether the transfer has ended, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

impl Receiving {
    /// Waits for the message, up to the device's timeout.
    ///
    /// # Errors
    /// [`Error::Truncated`]: the message was longer than the buffer. [`Error::PeerGone`]: the sender exited while its message
    /// was in transit. [`Error::Timeout`]; the receive is then canceled.
    pub fn wait(self) -> Result<Message> {
        let timeout = self.handle.timeout();
        self.wait_timeout(timeout)
    }

    /// Like [`Receiving::wait`], up to `timeout`.
    ///
    /// # Errors
    /// Same as [`Receiving::wait`].
    pub fn wait_timeout(self, timeout: Duration) -> Result<Message> {
        let taken = || self.slot.take();
        let outcome = self
            .handle
            .inner
            .wait(timeout, "a matching message", taken)?;
        self.result(outcome)
    }

    /// Returns the message if it has arrived, or the receive if it has not.
    ///
    /// # Errors
    /// Same as [`Receiving::wait`], in the inner result.
    pub fn try_wait(self) -> std::result::Result<Result<Message>, Self> {
        match self.handle.try_take(&self.slot) {
            Ok(None) => Err(self),
            Ok(Some(outcome)) => Ok(self.result(outcome)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Whether the receive has ended, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.handle.is_ended(&self.slot)
    }

    fn result(&self, outcome: Outcome) -> Result<Message> {
        match outcome {
            Outcome::Received(message) => Ok(message),
            Outcome::Truncated { len, room } => Err(Error::Truncated { len, room }),
            Outcome::Failed(failure) => Err(self.handle.error_of(&failure, None)),
            Outcome::Sent(_) => Err(Error::Object("the receive ended without a message".into())),
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if !self.slot.is_ended() {
            self.handle.cancel(&self.slot);
        }
    }
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending")
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Transferring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transferring")
            .field("peer", &self.0.to)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Receiving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiving").finish_non_exhaustive()
    }
}

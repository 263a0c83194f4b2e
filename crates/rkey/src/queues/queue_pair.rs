//! Queue pairs, for programs that post many operations and poll for completions themselves, as with verbs.
//!
//! Everything here is safe without lifetimes: a posted operation names local memory by key, and the device looks that
//! key up, with address and length, before each copy. An operation whose region has been deregistered in the meantime
//! fails; it cannot access memory that is not registered.

use crate::device::domain::Domain;
use crate::error::Result;
use rkey_device::link::NodeId;
use rkey_engine::{QpAttributes, QpState};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a peer with access to our memory may be silent when a queue pair connected to it is shut down.
const PATIENCE: Duration = Duration::from_secs(1);

/// The maximum payload inside a request, in bytes.
pub(crate) const INLINE: u32 = 208;

/// What a peer needs to connect a queue pair to ours; serialise it and send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairAddress {
    node: NodeId,
    number: u32,
    first_message: u32,
}

/// A reliable, connected queue pair. Clones are the same queue pair.
///
/// Operations take an id that the program chooses, which the [`Completion`] returns; flags say whether a successful
/// operation is reported ([`SendFlags::SIGNALED`]). Failures are always reported. Send-queue operations complete in
/// posting order.
///
/// [`Completion`]: crate::Completion
/// [`SendFlags::SIGNALED`]: crate::SendFlags::SIGNALED
#[derive(Clone, Debug)]
pub struct QueuePair {
    // Declared before `domain`, so that the queue pair is dropped before the domain that it belongs to.
    pub(super) raw: rkey_device::Qp,
    pub(crate) domain: Domain,
}

impl QueuePair {
    pub(crate) fn new(raw: rkey_device::Qp, domain: Domain) -> Self {
        Self { raw, domain }
    }

    pub(crate) fn raw(&self) -> &rkey_device::Qp {
        &self.raw
    }

    /// Whether the peer is a queue pair of the same device, or there is no peer.
    pub(crate) fn is_to_itself(&self) -> Result<bool> {
        let node = self.raw.query()?.attributes.peer.and_then(|peer| peer.node);
        Ok(node.is_none_or(|node| node == self.domain.device().raw().node()))
    }

    /// The number of the queue pair.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.raw.qpn()
    }

    /// Returns what a peer needs to connect to this queue pair.
    #[must_use]
    pub fn address(&self) -> QueuePairAddress {
        let address = self.raw.address();
        QueuePairAddress {
            node: self.domain.device().raw().node(),
            number: address.qpn,
            first_message: address.msn,
        }
    }

    /// Connects to a queue pair of a peer, which must do the same with ours.
    ///
    /// # Errors
    /// The queue pair is already connected.
    pub fn connect(&self, peer: &QueuePairAddress) -> Result<()> {
        let address = rkey_device::QpAddress {
            qpn: peer.number,
            msn: peer.first_message,
        };
        Ok(self.raw.connect(peer.node, address)?)
    }

    /// The state that the queue pair is in.
    ///
    /// # Errors
    /// The device is broken.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.raw.query()?.state)
    }

    /// Moves the queue pair to the error state: everything posted is flushed, and when this returns, no peer accesses
    /// memory because of it. A peer that does not respond for a second loses its link to this device, and all its
    /// connections to the device with it.
    ///
    /// # Errors
    /// The device is broken.
    pub fn shut_down(&self) -> Result<()> {
        self.raw.modify(&QpAttributes::to(QpState::Error))?;
        let device = self.domain.device().raw();
        device.wait_until_quiet(self.raw.qpn(), PATIENCE);
        Ok(())
    }
}

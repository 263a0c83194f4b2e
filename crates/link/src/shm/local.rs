//! The state shared by all links of a device: the device's identity, the sizes of the rings, and the allowed users.

use super::hello::Probe;
use super::socket::Policy;
use crate::ring::Geometry;
use crate::{Malformed, NodeId};
use rkey_base::barrier;
use rkey_base::process::ForkMark;
use std::io;
use std::sync::Arc;

/// The configuration of a device's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The number of slots of the request ring: a power of two, 16 to 16384. Half of them may be outstanding.
    pub request_slots: u32,
    /// The number of slots of the response ring: a power of two, 16 to 16384.
    pub response_slots: u32,
    /// The size of a payload ring in bytes: a power of two, 4 KiB to 256 MiB.
    pub payload_ring: u32,
    /// The maximum payload of one fragment in bytes: 256 to half of the ring.
    pub fragment_max: u32,
    /// Whether peers may access this process's memory, and we theirs, with `process_vm_*` (if the kernel permits it).
    pub remote_iovec: bool,
    /// The size in bytes from which payload that does not fit into the ring is sent as a remote iovec.
    pub remote_iovec_min: u32,
    /// Whether warrants are issued and taken, so that writes can go straight into memory that its owner polls.
    pub warrants: bool,
    /// Which peers are allowed.
    pub policy: Policy,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            request_slots: 256,
            response_slots: 256,
            payload_ring: 2 << 20,
            fragment_max: 16 << 10,
            remote_iovec: true,
            remote_iovec_min: 64 << 10,
            warrants: true,
            policy: Policy::SameUser,
        }
    }
}

impl LinkConfig {
    /// Checks that the sizes are within their bounds.
    ///
    /// # Errors
    /// The size that is out of bounds.
    pub fn check(&self) -> Result<(), Malformed> {
        self.requests().check()?;
        self.responses().check()
    }

    pub(crate) fn requests(&self) -> Geometry {
        Geometry {
            slots: self.request_slots,
            payload: self.payload_ring,
            fragment_max: self.fragment_max,
        }
    }

    pub(crate) fn responses(&self) -> Geometry {
        Geometry {
            slots: self.response_slots,
            ..self.requests()
        }
    }
}

/// The identity of this device on its links. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalNode {
    pub(crate) id: NodeId,
    pub(crate) config: LinkConfig,
    pub(crate) membarrier: bool,
    /// On the heap, at the address that a peer's probe reads.
    nonce: Arc<[u8; 16]>,
    /// Detects a forked child, which must leave its parent's links alone.
    fork: ForkMark,
}

impl LocalNode {
    /// Creates a node with this identity.
    ///
    /// # Errors
    /// `InvalidInput` for sizes out of bounds; errors of the random number generator.
    pub fn new(id: NodeId, config: LinkConfig) -> io::Result<Self> {
        config
            .check()
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(Self {
            id,
            config,
            membarrier: barrier::register(),
            nonce: Arc::new(nonce),
            fork: ForkMark::new()?,
        })
    }

    /// The identity.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The configuration.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    pub(crate) fn fork_mark(&self) -> ForkMark {
        self.fork
    }

    pub(crate) fn probe(&self) -> Probe {
        if self.config.remote_iovec {
            Probe {
                address: Arc::as_ptr(&self.nonce).addr() as u64,
                nonce: *self.nonce,
            }
        } else {
            Probe {
                address: 0,
                nonce: [0; 16],
            }
        }
    }
}

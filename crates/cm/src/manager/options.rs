//! What the program passes to the calls that make connections.

use crate::address::PortSpace;
use crate::wire::{Ece, Mtu, PrivateData, Rep, Req, Transport};
use core::net::SocketAddr;

/// The program's queue pair as described to the peer (`struct rdma_conn_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// The queue pair number.
    pub qpn: u32,
    /// The first PSN that the queue pair expects to receive.
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics that the queue pair accepts.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics that the queue pair initiates.
    pub initiator_depth: u8,
    /// How many times the queue pair retries without an answer, at most 7. A REP does not carry this number.
    pub retry_count: u8,
    /// How many times the queue pair retries when the receiver is not ready, at most 7.
    pub rnr_retry: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// Whether the queue pair uses end-to-end flow control.
    pub flow_control: bool,
}

/// The path of a new connection. Both sides use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The local ACK timeout as a time code.
    pub ack_timeout: u8,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            mtu: Mtu::B1024,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: 19,
        }
    }
}

/// A connection to establish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Our address and port.
    pub from: SocketAddr,
    /// The peer's address and port.
    pub to: SocketAddr,
    /// The port space of the peer's port.
    pub space: PortSpace,
    /// The transport.
    pub transport: Transport,
    /// Our queue pair.
    pub queue_pair: QueuePair,
    /// The path.
    pub path: PathOptions,
    /// The vendor options.
    pub ece: Ece,
    /// Private data for the peer's program.
    pub data: PrivateData<{ Req::DATA }>,
}

/// The answer to a connect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Our queue pair.
    pub queue_pair: QueuePair,
    /// The vendor options.
    pub ece: Ece,
    /// Private data for the peer's program.
    pub data: PrivateData<{ Rep::DATA }>,
}

//! Queue pairs whose peer is on another host, and datagrams to other hosts: RoCEv2 packets instead of fragments on a link.
//!
//! The state machine of such a queue pair is [`rkey_roce::transport`]: it stands beside the engine's requester and responder, below the same
//! queues, states, completions and checks. The engine's owner has the sockets. It passes packets to
//! [`Engine::wire_receive`](crate::Engine::wire_receive), and calls [`Engine::wire_transmit`](crate::Engine::wire_transmit) while
//! [`Engine::has_wire_output`](crate::Engine::has_wire_output). [`Engine::drive`](crate::Engine::drive) runs the timers.
//!
//! A connected queue pair has a machine from ready-to-receive on, if [`QpAttributes::wire`](crate::QpAttributes::wire) says where its
//! peer is. Requests move from its send queue to the machine in order, each named by its sequence number; the entry stays in
//! the queue until the request has ended. A datagram queue pair decides for each datagram ([`UdAddress::wire`](crate::UdAddress::wire)).
//!
//! | file | what it is |
//! | --- | --- |
//! | `peer.rs` | addresses of hosts, and the route header of received datagrams |
//! | `machine.rs` | the machine of a queue pair, and its attributes |
//! | `host.rs` | what the machine asks for: memory, receives, checks of keys |
//! | `arriving.rs` | what peers access: each refusal and each count, for the operation as a whole |
//! | `send.rs` | from the send queue to packets |
//! | `receive.rs` | packets that arrive |
//! | `outcome.rs` | how requests and receives end |

mod arriving;
mod host;
mod machine;
mod outcome;
mod peer;
mod receive;
mod send;

pub(crate) use machine::{Wire, follow};
pub(crate) use outcome::on_time;
pub use peer::WirePeer;
pub(crate) use send::{await_turn, send_queued_on_wire};

use std::collections::VecDeque;

/// What all queue pairs of the wire share.
#[derive(Debug, Default)]
pub(crate) struct WireQueue {
    /// The queue pairs that may have a packet to send, by index, in turn.
    turns: VecDeque<u32>,
    drops: WireDrops,
}

/// How many packets the engine has dropped before they reached the state machine of a queue pair. The counts wrap after 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireDrops {
    /// There is no such queue pair, or it has no peer on another host.
    pub unknown: u64,
    /// The packet did not come from the peer of its queue pair, or not to the address that the peer knows.
    pub stranger: u64,
    /// The queue pair is not ready to receive.
    pub not_ready: u64,
    /// The peer has guessed keys and must wait.
    pub paused: u64,
}

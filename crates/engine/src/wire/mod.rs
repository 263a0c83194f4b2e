//! Queue pairs whose peer is on another host, and datagrams to other hosts: RoCEv2 packets instead of fragments on a link.
//!
//! The state machine of such a queue pair is [`rkey_roce::transport`]. It replaces the engine's requester and responder, under
//! the same queues, states, completions and checks. The engine's owner has the sockets. It passes packets to
//! [`Engine::wire_receive`](crate::Engine::wire_receive), and calls [`Engine::wire_transmit`](crate::Engine::wire_transmit) while
//! [`Engine::has_wire_output`](crate::Engine::has_wire_output) returns true. [`Engine::drive`](crate::Engine::drive) runs the
//! timers.
//!
//! A connected queue pair has a machine from the ready-to-receive state on, if [`QpAttributes::wire`](crate::QpAttributes::wire)
//! contains its peer's address. Requests move from its send queue to the machine in order, identified by their sequence numbers;
//! the entry stays in the queue until the request has ended. A datagram queue pair decides for each datagram
//! ([`UdAddress::wire`](crate::UdAddress::wire)).
//!
//! | file | what it is |
//! | --- | --- |
//! | `peer.rs` | addresses of hosts, and the route header of received datagrams |
//! | `machine.rs` | the machine of a queue pair |
//! | `settings.rs` | the attributes that the machine gets from the queue pair |
//! | `host.rs` | what the machine requests: memory, receives, key checks |
//! | `arriving.rs` | accesses by peers: refusals and counters for whole operations |
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
mod settings;

pub(crate) use machine::Wire;
pub(crate) use outcome::on_time;
pub use peer::WirePeer;
pub(crate) use receive::origin_of;
pub(crate) use send::{await_turn, send_queued_on_wire};
pub(crate) use settings::follow;

use rkey_roce::transport::KeepBudget;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The memory for packets that arrive before earlier ones, in bytes, of all queue pairs together. One connection on a long path uses up
/// to 8 MiB.
const KEPT: usize = 64 << 20;

/// State shared by all queue pairs with peers on other hosts.
#[derive(Debug)]
pub(crate) struct WireQueue {
    /// The indexes of the queue pairs that may have a packet to send, in turn.
    turns: VecDeque<u32>,
    drops: WireDrops,
    /// For packets that arrive before earlier ones.
    pub(crate) kept: KeepBudget,
}

impl Default for WireQueue {
    fn default() -> Self {
        Self {
            turns: VecDeque::new(),
            drops: WireDrops::default(),
            kept: KeepBudget::new(KEPT),
        }
    }
}

/// How many packets the engine has dropped before they reached a queue pair's state machine. The counters wrap at 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireDrops {
    /// The queue pair does not exist, or has no peer on another host.
    pub unknown: u64,
    /// The packet did not come from the address of the queue pair's peer, or was not sent to the address that the peer knows.
    pub wrong_address: u64,
    /// The queue pair is not ready to receive.
    pub not_ready: u64,
    /// The peer is paused because it has guessed keys.
    pub paused: u64,
}

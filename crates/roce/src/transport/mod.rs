//! Queue pairs as state machines: work requests, packets and the time go in; packets, events and the next deadline come out.
//!
//! [`Connection`] is an RC or UC queue pair, [`DatagramQueuePair`] a UD queue pair. They have no clock, socket or memory: a
//! [`Host`] provides the memory and the receives, and decides what a peer may access.
//!
//! | module | what it is |
//! | --- | --- |
//! | `connection` | a connected queue pair |
//! | `requester` | its requesting half: request packets, responses, retries |
//! | `responder` | its responding half: order, messages, replies |
//! | `datagram` | a datagram queue pair |
//! | `host` | the trait for a queue pair's environment |
//! | `work` | work requests, and how they are split into packets |
//! | `notify` | congestion notifications to the peer |
//! | `config` | attributes of a connected queue pair |
//! | `event` | completions and failures |
//! | `attached` | an acknowledgement inside a request |
//! | `budget` | memory for packets that wait for earlier ones |
//! | `buffer` | the buffer that a packet is written to |
//! | `gaps` | what has not arrived, and when it looks lost |
//! | `report` | what a responder tells a requester that has agreed to selective retransmission |
//! | `sequence` | packet sequence numbers that do not wrap |
//! | `deadline` | the earliest of several deadlines |
//! | `step` | the context of one call |
//!
//! # Its place in the device
//!
//! The device's engine drives queue pairs between processes of one host over links, and a link guarantees that each fragment
//! arrives exactly once and in order. A wire guarantees nothing. This state machine is not a link, but an alternative to the
//! engine's requester and responder: it sits below the queues of a queue pair (send queue, receive queue, completion queues,
//! state table) and above the sockets. It could not be a link, for three reasons:
//!
//! * The wire format is the standard's, because the peer may be any RoCE device. Its unit is the packet, and each response refers
//!   to a packet: sequence errors, RNR NAKs, refusals. A link's fragment has a different header, with fields that no packet has:
//!   the length of a send, the address of every fragment, the sender.
//! * The state that recovers from packet loss belongs to one queue pair: PSNs, timeouts, retry counts, the reads that a peer may
//!   request again. A link is one path for all queue pairs of two devices, and does not know them.
//! * The engine answers a message that must wait with a NAK of the message, and its requester waits until everything outstanding
//!   is acknowledged. On a wire, that would be a second, slower go-back-N on top of the first.
//!
//! What both have in common is implemented once, above them: queues, completions, states, and the key checks that [`Host`]
//! requests.
//!
//! # Protocol
//!
//! Chapter 9 of the InfiniBand specification, volume 1. Where the specification leaves a choice, it follows Linux's Soft-RoCE:
//!
//! * A packet that is sent again is rebuilt from the work request. Loss is repaired by sending everything again from the oldest
//!   missing packet (go-back-N), unless both sides have agreed to [selective retransmission](#selective-retransmission).
//! * The window starts at [`Config::window`], halves with each loss and grows by one packet for each acknowledged window. A read
//!   counts with the packets of its response, and a read of more than half of the window is requested in parts, which exceed the
//!   window by a quarter at most. If it were requested at once, a responder that sends without pause would overflow the buffers of
//!   the network and of this side.
//! * On a path with a long round trip, the window grows further, up to [`Config::longest_window`]: in slow start until the first
//!   loss or congestion, and then slowly. Its packets leave in bursts that are spread over the round trip, and no burst is longer
//!   than [`Config::window`], or half as much longer for reads. So buffers need not be larger than for a short path.
//! * If a response is late, the oldest packet is sent once more, besides the others (a probe). That needs no retry.
//! * Routers may mark the packets of a reliable connection when they are congested. A receiver of marked packets sends congestion
//!   notifications, whose receiver lowers its window, at most once in a round trip and by half at most. The window grows as after a loss.
//! * Responses to a long read are sent at once until the peer has lost some, and then in bursts with pauses: nothing acknowledges
//!   them, so there is no window.
//! * A requester requests an acknowledgement when it has nothing more to send, and for each quarter of a window.
//! * A responder reports a gap once. If that report or the packet that closes the gap is lost, the requester's timeout repairs
//!   it.
//! * A later acknowledgement replaces one that has not been sent, so a batch of packets gets one.
//! * A refusal is retransmitted if the refused packet arrives again. The specification allows the queue pair to fall silent, but
//!   then a peer that missed the refusal would report a timeout.
//! * Credits are neither sent nor obeyed: a message without a receive gets an RNR NAK.
//!
//! # Selective retransmission
//!
//! If both sides have set [`Config::selective`], only what is lost is sent again. This is no part of the specification, so a side uses it only
//! towards a peer whose packets are marked: they have the migration bit, which this transport does not set otherwise.
//!
//! * A responder keeps requests that arrive before earlier ones, and executes them in their turn, like all others. It reports gaps that
//!   look like losses: after a later packet, or after more packets or some time if the network has reordered packets before. Reports
//!   are repeated a few times.
//! * A packet that is sent again has the bit of a congestion notification (BECN). So each side knows whether a missing packet was lost
//!   or only late, and learns how long to wait.
//! * A requester sends the reported packets again, and no others. What the responder has kept does not count as outstanding. It stores
//!   the data of reads in any order, and requests what is missing in the same way.
//! * A loss lowers the window by a few packets if no queue grows, and halves it otherwise. Slow start continues if losses are rare.
//!   If nothing was lost after all, the window becomes what it was.
//! * Probes and timeouts are the same. If the responder cannot execute a packet (RNR, a refusal), it drops those that it has kept.
//!
//! # Hostile peers
//!
//! A peer's packets can end the connection, but do nothing worse. Memory is accessed only through [`Host`], in ranges that were
//! granted; PSNs are checked against those in use; a response is checked against its request. The number of remembered requests
//! and responses is bounded ([`Connection::held`]), and so is what is kept and sent again selectively ([`Connection::kept`]): a peer that
//! leaves a gap open makes its connection hold up to 8 MiB. A packet gets at most one response packet of 16 bytes, or 24 for an atomic, or a
//! report, which is repeated up to seven times (a packet that leaves many gaps gets one for each three); only a read gets more, and for a read the peer needs a key. Congestion notifications are shorter than the marked packets that
//! they answer. A peer that sends them for no reason slows only its own connection.
//!
//! # Example
//!
//! One queue pair sends a message to another.
//!
//! ```
//! use rkey_roce::packet::{Packet, Psn};
//! use rkey_roce::transport::{
//!     Access, Atomic, Config, Connection, Event, Host, LocalFault, Operation, PacketBuffer, Receive, Refusal,
//!     RemoteRange, Status, WorkRequest,
//! };
//!
//! /// A message to send, and a buffer to receive one. Nothing is registered.
//! #[derive(Default)]
//! struct Program {
//!     message: Vec<u8>,
//!     buffer: Vec<u8>,
//! }
//!
//! impl Host for Program {
//!     fn load(&mut self, _request: u64, offset: u32, to: &mut [u8]) -> Result<(), LocalFault> {
//!         let from = self.message.get(offset as usize..).ok_or(LocalFault)?;
//!         to.copy_from_slice(from.get(..to.len()).ok_or(LocalFault)?);
//!         Ok(())
//!     }
//!     fn take_receive(&mut self, _least: u64) -> Option<Receive> {
//!         Some(Receive { id: 9, capacity: 4096 })
//!     }
//!     fn fill(&mut self, _receive: u64, _offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
//!         self.buffer.extend_from_slice(bytes);
//!         Ok(())
//!     }
//! #   fn store(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), LocalFault> { Err(LocalFault) }
//! #   fn check(&mut self, _: &RemoteRange, _: Access) -> Result<(), Refusal> { Err(Refusal::Access) }
//! #   fn write(&mut self, _: &RemoteRange, _: &[u8]) -> Result<(), Refusal> { Err(Refusal::Access) }
//! #   fn read(&mut self, _: &RemoteRange, _: &mut [u8]) -> Result<(), Refusal> { Err(Refusal::Access) }
//! #   fn atomic(&mut self, _: &RemoteRange, _: Atomic) -> Result<u64, Refusal> { Err(Refusal::Access) }
//! #   fn invalidate(&mut self, _: u32) -> Result<(), Refusal> { Err(Refusal::Access) }
//!     // The other methods refuse everything.
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (psn_a, psn_b) = (Psn::new(0x123456), Psn::new(0xfffffe));
//! let mut a = Connection::new(&Config::reliable(0x22, psn_a, psn_b));
//! let mut b = Connection::new(&Config::reliable(0x11, psn_b, psn_a));
//! let (mut sender, mut receiver) = (Program::default(), Program::default());
//! sender.message = b"hello".repeat(600);
//!
//! let message = Operation::Send { immediate: None, invalidate: None };
//! a.post(WorkRequest::new(7, message, 3000));
//! let mut buffer: PacketBuffer = [0; _];
//! // The time comes from any monotonic clock.
//! let now = 0;
//! while let Some(length) = a.transmit(now, &mut sender, &mut buffer) {
//!     b.receive(now, &mut receiver, &Packet::decode(&buffer[..length])?);
//! }
//! while let Some(length) = b.transmit(now, &mut receiver, &mut buffer) {
//!     a.receive(now, &mut sender, &Packet::decode(&buffer[..length])?);
//! }
//! assert!(receiver.buffer == sender.message);
//! assert!(matches!(b.next_event(), Some(Event::Received(message)) if message.bytes == 3000));
//! assert_eq!(a.next_event(), Some(Event::Completed { id: 7, status: Status::Success }));
//! # Ok(())
//! # }
//! ```

mod attached;
mod budget;
mod buffer;
mod config;
mod connection;
mod datagram;
mod deadline;
mod event;
mod gaps;
mod host;
mod notify;
mod report;
mod requester;
mod responder;
mod sequence;
mod step;
mod work;

pub use attached::{ATTACHED_LEN, attach};
pub use budget::KeepBudget;
pub use buffer::PacketBuffer;
pub use config::{Config, ConnectionType, early_mark, timeout_ns};
pub use connection::Connection;
pub use datagram::{DatagramConfig, DatagramQueuePair, DatagramRequest, GRH_LEN};
pub use event::{Counters, Event, Received, Status};
pub use host::{Access, Atomic, Host, LocalFault, Receive, Refusal, RemoteRange};
pub use notify::obeys_notifications;
pub use work::{MESSAGE_MAX, Operation, Target, WorkRequest};

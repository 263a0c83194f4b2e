//! Queue pairs as state machines: work requests, packets and the time go in; packets, events and the next deadline come out.
//!
//! [`Connection`] is a queue pair of the services RC and UC, [`DatagramQueuePair`] one of UD. They have no clock, socket or
//! memory: a [`Host`] has the memory and the receives, and decides what a peer may access.
//!
//! | module | what it is |
//! | --- | --- |
//! | `connection` | a connected queue pair |
//! | `requester` | its requesting half: packets of work requests, answers, retries |
//! | `responder` | its responding half: order, messages, answers |
//! | `datagram` | a datagram queue pair |
//! | `host` | the trait for what is around a queue pair |
//! | `work` | work requests, and how they are split into packets |
//! | `config` | attributes of a connected queue pair |
//! | `event` | completions and failures |
//! | `buffer` | the buffer that a packet is written to |
//! | `sequence` | packet sequence numbers that do not wrap |
//! | `step` | what one call works with |
//!
//! # Where it is in the device
//!
//! The engine of the device drives queue pairs between processes of one host over links, and a link promises that each
//! fragment arrives once and in order. A wire promises nothing. This machine is not such a link, but stands beside the
//! engine's requester and responder: below the queues of a queue pair (send queue, receive queue, completion queues, the table of
//! states) and above the sockets. It could not be a link, for three reasons:
//!
//! * The wire format is the standard's, because the peer may be any RoCE device. Its unit is the packet, and each answer names
//!   a packet: sequence errors, receivers that are not ready, refusals. A fragment of a link has another header, which says
//!   things that no packet does: the length of a send, the address of every fragment, its sender.
//! * The state that repairs packet loss belongs to one queue pair: numbers, timeouts, retry counts, the reads that a peer may ask
//!   for again. A link is one path for all queue pairs of two devices, and does not know them.
//! * The engine answers a message that must wait with a NAK of the message, and its requester waits until everything
//!   outstanding is acknowledged. On a wire, that would be a second, slower go-back-N above the first.
//!
//! What both have in common stays in one place, above: queues, completions, states, and the check of keys, which [`Host`] asks
//! for.
//!
//! # What it follows
//!
//! Chapter 9 of the InfiniBand specification, volume 1, and what Linux's Soft-RoCE does where the specification leaves a choice:
//!
//! * A packet that is sent again is built again from the work request. Loss is repaired by sending everything again from the
//!   oldest packet that is missing (go-back-N).
//! * The window starts at [`Config::window`], halves with each loss and grows by a packet for each window that arrives. A
//!   read counts with the packets of its response, and one of more than a quarter of the largest window is requested in parts:
//!   otherwise, a responder that sends without a pause would fill the buffers of the network and of this side.
//! * A requester asks for an acknowledgement when it has nothing more to send, and for each quarter of a window.
//! * A responder reports a gap once. If that report or the packet that closes the gap is lost, the requester's timeout repairs
//!   it.
//! * An acknowledgement that waits to leave is replaced by a later one, so a batch of packets gets one.
//! * A refusal is repeated if the refused packet comes again. The specification lets the queue pair fall silent, but then a peer
//!   that missed the refusal would report a timeout.
//! * Credits are neither sent nor obeyed: a message without a receive is answered with an RNR NAK.
//!
//! # A hostile peer
//!
//! What a peer sends can end the connection, and nothing else. Memory is touched through [`Host`] only, in ranges that were
//! granted; positions are compared with those in use; a response is checked against the request. The peer can make it hold only a
//! bounded number of remembered requests and answers ([`Connection::held`]). A packet is answered by at most one packet of 16
//! bytes, or 24 for an atomic; only a read gets more, and the peer has a key for its data.
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
//! /// A message, and a buffer for one. Nothing is registered.
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
//! // The time is that of any monotonic clock.
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

mod buffer;
mod config;
mod connection;
mod datagram;
mod event;
mod host;
mod requester;
mod responder;
mod sequence;
mod step;
mod work;

pub use buffer::PacketBuffer;
pub use config::{Config, ConnectionType, timeout_ns};
pub use connection::Connection;
pub use datagram::{DatagramConfig, DatagramQueuePair, DatagramRequest, GRH_LEN};
pub use event::{Counters, Event, Received, Status};
pub use host::{Access, Atomic, Host, LocalFault, Receive, Refusal, RemoteRange};
pub use work::{MESSAGE_MAX, Operation, Target, WorkRequest};

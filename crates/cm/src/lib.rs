//! InfiniBand's connection manager (CM), as it runs over RoCE: two programs that know an address and a port obtain a pair
//! of connected queue pairs, or the number of a datagram queue pair.
//!
//! Like the engine, this crate has no thread, clock, socket or log. Messages, calls and the time go into a [`Manager`];
//! messages, events and the next deadline come out. A host carries the messages between queue pairs 1 of two devices, over
//! any network.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`manager`] | the connections and listeners of a device instance: calls, messages, events, limits |
//! | [`connection`] | the states of a connection, and the table of what each message and call does in each |
//! | [`wire`] | the encoding of messages, and which requests are impossible |
//! | [`ids`] | communication ids that cannot be guessed |
//! | [`time`] | time codes, and how often messages are retransmitted |
//! | [`address`] | identifiers in messages: GUIDs, GIDs, service ids |
//!
//! Peers are untrusted. Bytes that are not a message are dropped. Impossible requests are refused with a reason. A message
//! gets at most one answer, which is no longer than the message. The number of remembered requests is limited by the
//! listener's backlog and by [`manager::Limits`]. A message reaches a connection only from the peer's address and with ids
//! that only the two sides know. So a message that names the queue pair of another connection is refused and does not end
//! that connection (on Linux it would). A host that can read messages in transit can forge them: the protocol has no
//! cryptography. Peer-to-peer connections (two active sides) and alternate paths are not supported.
//!
//! # Example
//!
//! Two managers connect, and disconnect.
//!
//! ```
//! use rkey_cm::address::{Guid, PortSpace, ServiceId};
//! use rkey_cm::manager::{Accept, Config, Connect, Event, Kind, ListenOn, PathOptions, QueuePair};
//! use rkey_cm::wire::{Ece, PrivateData, Transport};
//! use rkey_cm::{Manager, State};
//!
//! /// Carries messages until none are left.
//! fn carry(now: u64, a: &mut Manager, b: &mut Manager) {
//!     loop {
//!         let (to_b, to_a) = (a.next_transmit(), b.next_transmit());
//!         if to_b.is_none() && to_a.is_none() {
//!             return;
//!         }
//!         to_b.map(|it| b.receive(now, it.from, it.to, &it.mad));
//!         to_a.map(|it| a.receive(now, it.from, it.to, &it.mad));
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The GUID and the secret should be random; the time comes from any monotonic clock, in nanoseconds.
//! let mut client = Manager::new(Config::new(Guid([2, 0, 0, 0, 0, 0, 0, 1]), 0x1234));
//! let mut server = Manager::new(Config::new(Guid([2, 0, 0, 0, 0, 0, 0, 2]), 0x5678));
//! let now = 0;
//! let queue_pair = QueuePair {
//!     qpn: 0x11,
//!     starting_psn: 0x123456,
//!     responder_resources: 4,
//!     initiator_depth: 4,
//!     retry_count: 7,
//!     rnr_retry: 7,
//!     srq: false,
//!     flow_control: false,
//! };
//!
//! let service = ServiceId::new(PortSpace::Tcp, 7471);
//! server.listen(ListenOn::Any, service, Kind::Connected(Transport::Rc), 16)?;
//! let connection = client.connect(
//!     now,
//!     &Connect {
//!         from: "10.0.0.1:40000".parse()?,
//!         to: "10.0.0.2:7471".parse()?,
//!         space: PortSpace::Tcp,
//!         transport: Transport::Rc,
//!         queue_pair,
//!         path: PathOptions::default(),
//!         ece: Ece::default(),
//!         data: PrivateData::new(b"hello")?,
//!     },
//! )?;
//! carry(now, &mut client, &mut server);
//!
//! let Some(Event::ConnectRequest(request)) = server.next_event() else {
//!     panic!("a request");
//! };
//! assert!(request.data.as_bytes().starts_with(b"hello"));
//! server.take_request(request.connection)?;
//! let accept = Accept {
//!     queue_pair: QueuePair { qpn: 0x22, ..queue_pair },
//!     ece: Ece::default(),
//!     data: PrivateData::new(b"welcome")?,
//! };
//! server.accept(now, request.connection, &accept)?;
//! carry(now, &mut client, &mut server);
//!
//! let Some(Event::ConnectResponse { rep, .. }) = client.next_event() else {
//!     panic!("a response");
//! };
//! assert_eq!(rep.qpn, 0x22);
//! // Here the client brings up its queue pair.
//! client.establish(now, connection)?;
//! carry(now, &mut client, &mut server);
//! assert!(matches!(server.next_event(), Some(Event::Established { .. })));
//!
//! client.disconnect(now, connection)?;
//! carry(now, &mut client, &mut server);
//! assert!(matches!(server.next_event(), Some(Event::Disconnected { .. })));
//! server.disconnect(now, request.connection)?;
//! carry(now, &mut client, &mut server);
//! assert_eq!(client.state(connection), Some(State::TimeWait));
//!
//! // Time wait is over after two seconds.
//! client.advance(now + 3_000_000_000);
//! assert_eq!(client.state(connection), None);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    warn(
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::too_many_lines,
        clippy::unwrap_used
    )
)]

pub mod address;
pub mod connection;
pub mod ids;
pub mod manager;
pub mod time;
pub mod wire;

pub use connection::{ConnectionId, Info, ListenerId, State};
pub use manager::Manager;

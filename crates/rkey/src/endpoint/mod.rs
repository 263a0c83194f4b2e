//! Reliable datagrams: messages to and from any number of peers, without connections to manage.
//!
//! An [`Endpoint`] has an [`Address`]. A process that knows the address can send to the endpoint; the first message makes
//! the connection. Messages are matched with receives: by tag ([`Endpoint::send_tagged`], [`Endpoint::receive_tagged`]) or
//! not, and by sender if the receive names one. Messages between two endpoints match in the order in which they were sent,
//! and receives in the order in which they were posted. A message that matches no receive yet is kept until one is posted.
//!
//! ```
//! use rkey::Device;
//! use rkey::endpoint::Address;
//!
//! # fn main() -> rkey::Result<()> {
//! let server = Device::open()?.endpoint()?;
//! let address: Address = server.address();
//!
//! // Usually another process, which got the address as text or bytes.
//! let client = std::thread::spawn(move || -> rkey::Result<Vec<u8>> {
//!     let endpoint = Device::open()?.endpoint()?;
//!     let answer = endpoint.receive_tagged(8, address, vec![0; 64])?; // posted before it is needed
//!     endpoint.send_tagged(address, 7, "a question")?.wait()?;
//!     Ok(answer.wait()?.bytes)
//! });
//!
//! let question = server.receive_tagged(7, None, vec![0; 64])?.wait()?;
//! assert_eq!(question.bytes, b"a question");
//! server.send_tagged(question.from, 8, "an answer")?.wait()?;
//! assert_eq!(client.join().unwrap()?, b"an answer");
//! # Ok(()) }
//! ```
//!
//! # Buffers
//!
//! An operation owns its buffer until it ends, and then returns it. So the program can never see bytes that the device
//! is still writing, and dropping a [`Sending`] or a [`Receiving`] at any moment is safe.
//!
//! Messages up to 8 KiB travel with their header and may arrive before their receive is posted; each peer may have a
//! limited number of them unreceived, and its further sends wait (credit). Of a longer message, only the header travels
//! (rendezvous): the receiver's device reads the payload from the sender's memory when the receive matches, so the
//! sender's buffer is in use until then.
//!
//! # Registered memory
//!
//! A region that the endpoint registered ([`Endpoint::register`]) can be read and written by the peers that have a key for it
//! ([`Endpoint::read`], [`Endpoint::write`]), as over a [`Connection`](crate::Connection). Unlike on a connection, a denied
//! access breaks nothing.
//!
//! # Progress
//!
//! The endpoint makes progress while the program calls it: in `wait`, `try_wait` and `is_done`, and in a send that waits
//! for a connection or for room. While a program computes without calling it, nothing is received, and peers' long
//! messages wait. Connections are accepted at any time.
//!
//! Threads may share an endpoint (clones are the same endpoint). When several wait, one of them makes progress for all.

mod body;
mod handle;
mod host;
mod inner;
mod message;
mod parse;
mod pending;
mod shared;
mod slot;

pub use crate::address::{ADDRESS_BYTES, Address};
pub use handle::Endpoint;
pub use message::{MESSAGE_MAX, Message, Tag};
pub use pending::{Receiving, Sending, Transferring};

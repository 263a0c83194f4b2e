//! Connections with programs that use `librdmacm`, in C or any other language.
//!
//! [`Device::connect`](crate::Device::connect) and [`Device::listen`](crate::Device::listen) connect two programs that use this API,
//! and exchange typed values. Here the two sides agree only on what every RDMA program knows: the messages of InfiniBand's connection
//! manager (`rdma_connect(3)`), one reliable queue pair, bytes, and keys as pairs of an address and a number.
//!
//! ```
//! use rkey::{Access, Device, RemoteKey};
//!
//! # fn main() -> rkey::Result<()> {
//! // The owner.
//! let device = Device::open()?;
//! let region = device.domain()?.register(vec![0u8; 4096], Access::REMOTE_WRITE)?;
//! let listener = device.listen_cm("127.0.0.1:0")?;
//! let address = listener.address();
//!
//! // The peer: usually a C program; here it is a thread with its own device.
//! let peer = std::thread::spawn(move || -> rkey::Result<()> {
//!     let owner = Device::open()?.connect_cm(address, b"hello")?;
//!     let told = owner.receive()?.bytes;
//!     let word = |at: usize| u64::from_be_bytes(told[at..at + 8].try_into().unwrap());
//!     let key = RemoteKey::from_parts(word(0), word(8), word(16) as u32)?;
//!     owner.write_bytes(b"from the peer", &key, 64)?.wait()?;
//!     owner.send(b"done")
//! });
//!
//! let request = listener.next_request()?;
//! assert!(request.private_data().starts_with(b"hello"));
//! let peer_connection = request.accept(b"welcome")?;
//! let key = region.key(..)?;
//! let told = [key.address(), key.len(), key.key()].map(u64::to_be_bytes);
//! peer_connection.send(&told.concat())?;
//! assert_eq!(peer_connection.receive()?.bytes, b"done");
//! assert_eq!(region.read_vec(64..77)?, b"from the peer");
//! peer.join().unwrap()?;
//! # Ok(()) }
//! ```
//!
//! # What happens automatically
//!
//! A thread of the device answers the messages of the connection manager, while the program does other work. It confirms at once
//! when a peer disconnects. Receives are posted before the peer can send: 16 buffers of
//! [`max_message`](crate::DeviceBuilder::max_message) bytes.
//!
//! # Private data
//!
//! A request carries up to 56 bytes of private data, an answer up to 196, a refusal up to 148. The messages do not carry its length:
//! the receiver gets the whole field, padded with zeros, as with `librdmacm`.

mod connection;
mod inbox;
mod link;
mod listener;
mod request;
mod route;
mod setup;

pub use connection::Connection;
pub use inbox::Message;
pub use listener::Listener;
pub use request::Request;
pub use rkey_device::cm::Why as Refusal;

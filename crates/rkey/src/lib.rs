//! Safe RDMA for Rust, on any Linux machine: no NIC, no kernel module, no root.
//!
//! With remote direct memory access, a program *registers* memory and gives a *key* for it to a peer. The peer then reads,
//! writes or updates exactly that memory directly, with exactly the granted rights. Meanwhile, the program that owns the
//! memory may sleep. `rkey` is a software device that does this between processes on one host.
//!
//! # A first look
//!
//! ```
//! use rkey::{Access, Device, RemoteKey};
//!
//! # fn main() -> rkey::Result<()> {
//! // The owner.
//! let device = Device::open()?;
//! let region = device.domain()?.register(vec![0u8; 1 << 20], Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! let listener = device.listen("127.0.0.1:0")?;
//! let address = listener.address();
//!
//! // The peer. Usually another process; here it is a thread with its own device.
//! let peer = std::thread::spawn(move || -> rkey::Result<()> {
//!     let device = Device::open()?;
//!     let local = device.domain()?.register(b"sixty-four bytes would fit".to_vec(), Access::empty())?;
//!     let owner = device.connect(address)?;
//!     let key: RemoteKey = owner.receive()?;
//!     owner.write(&local, 0..10, &key, 128)?.wait()?; // our first 10 bytes, to offset 128 of the region
//!     owner.send("done")
//! });
//!
//! let peer_connection = listener.accept()?;
//! peer_connection.send(&region.key(0..4096)?)?; // a key for exactly these bytes, and no others
//! let done: String = peer_connection.receive()?;
//! assert_eq!(done, "done");
//! peer.join().unwrap()?;
//!
//! let buffer: Vec<u8> = region.deregister()?; // the memory is ours again: no peer can touch it now
//! assert_eq!(&buffer[128..138], b"sixty-four");
//! # Ok(()) }
//! ```
//!
//! # Overview
//!
//! | | |
//! | --- | --- |
//! | [`Device`] | the entry point; opening it needs no daemon and no privilege |
//! | [`Domain`] | a protection domain: a connection reaches only the regions of its own domain |
//! | [`Region`] | owns a registered buffer; [`Region::deregister`] returns the buffer |
//! | [`Published`] | a registered buffer that cannot change, so its bytes are a `&[u8]` |
//! | [`Domain::scope`] | registers borrowed memory during a closure |
//! | [`Scope::cached`] | registers the source of a transfer, unless an earlier registration contains it |
//! | [`MemoryRegion`] | the operations on all registered memory: copy in and out, update, issue keys |
//! | [`RemoteKey`] | the address, length and key that a peer needs; a plain value to send |
//! | [`Window`] | a second, narrower key for a part of a region, which can be revoked |
//! | [`Connection`] | one peer: write, read, atomics, messages |
//! | [`cm::Connection`] | one peer that need not know this API: a C program with `librdmacm` |
//! | [`endpoint::Endpoint`] | any number of peers: tagged messages, matched with receives |
//! | [`QueuePair`], [`CompletionQueue`] | the low-level interface, for many operations in flight |
//! | [`SharedMemory`], [`DirectMemory`] | memory that a peer may map and use without the owner's CPU |
//!
//! # Why this is safe
//!
//! No safe function of this crate can cause undefined behaviour, whatever a peer does:
//!
//! * Memory that a peer may write is never a `&[u8]`. It is read and written by copies and atomics
//!   that are opaque to the compiler, so there is no data race in the sense of Rust.
//! * A region owns its buffer, or the buffer is borrowed until a scope ends, and a scope does not end before its regions are
//!   deregistered, even after a panic or `std::mem::forget`.
//! * Deregistering first revokes the keys, then waits until no access is in progress, then returns. An operation in
//!   flight holds the memory for one step at a time and must ask again for the next; after deregistration it is denied.
//!   Dropping a [`Pending`] or a [`Region`] at any moment is therefore safe.
//! * All bytes that a peer sends are copied before they are parsed, and every access is checked
//!   against the owner's own table, or was permitted by the owner, which can revoke that.
//!
//! None of this protects against a hostile process of the same user, which can read and write our memory by other means
//! (`ptrace`, `/proc/PID/mem`).
//!
//! # When an access is denied
//!
//! [`Error::Denied`] carries a [`Denial`], a sentence that says which rule was broken and by how much; [`Error::explain`]
//! adds advice. Both sides also log it as a warning through the crate [`tracing`](https://docs.rs/tracing): a program sees
//! it once it installs a subscriber (such as `tracing_subscriber::fmt::init()`). The `rkey` command and the libraries for C
//! programs install one themselves; `RKEY_LOG` sets its level. [`Device::inspect`] and `rkey explain` show the denials of a
//! running program without a subscriber.

#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

// Each folder depends only on earlier ones: `device`, `memory`, `queues`, and then the kinds of peers: `connections`, `cm`,
// `endpoint`.
mod address;
pub mod cm;
mod connections;
mod device;
pub mod endpoint;
mod error;
mod memory;
mod queues;

pub use connections::{Connection, Listener, PeerInfo};
pub use device::{DEFAULT_MAX_MESSAGE, DEFAULT_TIMEOUT, Device, DeviceBuilder, Domain};
pub use error::{Error, Result};
pub use memory::{
    Buffer, CachedRegion, MemoryRegion, PrivateBuffer, Published, REMOTE_KEY_BYTES, Region,
    RegionOptions, RemoteKey, Scope, ScopedRegion, SharedMemory, Window,
};
pub use queues::{
    CompletionQueue, DirectMemory, Pending, QueuePair, QueuePairAddress, QueuePairBuilder,
};

pub use rkey_cache::Stats as CacheStats;
pub use rkey_core::{Access, Denial, Key, LKey, Reason, WindowKind};
pub use rkey_device::Config;
pub use rkey_engine::{
    Completion, CompletionFlags, CompletionOp, DenialReport, QpState, SendFlags, SendRequest, Sge,
    Status, Target, Work,
};

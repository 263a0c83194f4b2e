//! Why a call on a device failed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rkey_core::CoreError;
use rkey_engine::{EngineError, ModifyError, PostError};

use crate::config::ConfigError;

/// Why a call on a device failed. The messages say what to do if that is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An `RKEY_*` variable has a value that is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A configured limit is reached.
    #[error("the limit of {limit} {what} is reached; {variable} raises it")]
    Limit {
        /// The objects that are limited.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The environment variable that sets the limit.
        variable: &'static str,
    },
    /// A requested size is larger than the device allows for one object.
    #[error(
        "{wanted} {what} were requested, but at most {limit} are allowed; {variable} changes the limit"
    )]
    TooLarge {
        /// The name of the requested amount.
        what: &'static str,
        /// The requested amount.
        wanted: u64,
        /// The maximum.
        limit: u64,
        /// The environment variable that sets the limit.
        variable: &'static str,
    },
    /// The protection table refused a change to a region, window or domain.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// A window cannot be bound.
    #[error(transparent)]
    Bind(rkey_core::BindError),
    /// The engine refused a command.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A queue pair cannot be changed in this way.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An object is still used by others.
    #[error("{what} is still in use by {by}")]
    Busy {
        /// The object that is in use.
        what: &'static str,
        /// The objects that use it.
        by: &'static str,
    },
    /// The object does not belong to this device, or no longer exists.
    #[error("this {what} does not belong to the device, or no longer exists")]
    Unknown {
        /// The kind of object.
        what: &'static str,
    },
    /// This process was forked from the one that opened the device.
    #[error("the parent of this process opened the device; open a new one after fork")]
    Forked,
    /// The engine of the device failed; nothing more will complete.
    #[error("the device failed: {0}; close it and open a new one")]
    Failed(String),
    /// The address does not belong to this host.
    #[error("{address} is not an address of this host")]
    NotThisHost {
        /// The address.
        address: SocketAddr,
    },
    /// The address belongs to another host, which the device cannot reach.
    #[error("cannot reach {address} on another host: {hint}")]
    NoRoute {
        /// The address.
        address: SocketAddr,
        /// What the device lacks, or what the user can do.
        hint: &'static str,
    },
    /// No process listens at an address.
    #[error("no process listens at {address} (waited {waited:?}); {hint}")]
    NotListening {
        /// The address.
        address: SocketAddr,
        /// How long the client tried to connect.
        waited: Duration,
        /// A possible reason.
        hint: &'static str,
    },
    /// The address already has a listener or a reservation.
    #[error("a process of this user already listens at {address}")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The peer refused the connection or the lease.
    #[error("the peer refused the connection: {reason}")]
    Refused {
        /// The reason that the peer gave.
        reason: String,
    },
    /// The key does not allow the access.
    #[error("{0}")]
    Denied(Box<rkey_core::Denial>),
    /// The queue pair has no link to its peer (not yet, or no longer).
    #[error("queue pair {qpn:#x} is not connected to another process (not yet, or no longer)")]
    NotConnected {
        /// The queue pair number.
        qpn: u32,
    },
    /// The memory of a lease could not be mapped.
    #[error(transparent)]
    Direct(#[from] rkey_link::direct::DirectError),
    /// The process at the other end belongs to another user, and sharing is off.
    #[error("the process at the other end belongs to user {uid}; both ends need RKEY_SHARE=all")]
    OtherUser {
        /// The other process's user ID.
        uid: u32,
    },
    /// The connection could not be made: for example, the peer exited, violated the protocol, or claimed another process's
    /// device.
    #[error("connecting failed: {0}")]
    Handshake(&'static str),
    /// The peer runs another version of rkey.
    #[error(
        "the peer uses version {there} of the {protocol}, but this process uses version {here}: install the same rkey on both sides"
    )]
    Version {
        /// The protocol that differs.
        protocol: &'static str,
        /// The peer's version.
        there: u32,
        /// Our version.
        here: u32,
    },
    /// A time limit expired.
    #[error("timed out after {after:?} waiting for {what}")]
    TimedOut {
        /// The event that did not happen in time.
        what: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// Private data or another value is longer than allowed.
    #[error("{what} has length {len}; the maximum is {max}")]
    TooLong {
        /// The name of the value that is too long.
        what: &'static str,
        /// Its length: in bytes, or in entries if it is a list.
        len: usize,
        /// The maximum length.
        max: usize,
    },
    /// User memory could not be accessed.
    #[error("memory at {address:#x} cannot be accessed: it is unmapped, protected or truncated")]
    Fault {
        /// The address.
        address: u64,
    },
    /// A system call failed.
    #[error("{what} failed: {source}")]
    Io {
        /// What the process tried to do.
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl DeviceError {
    /// For `map_err`: a failed system call while doing `what`.
    pub(crate) fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io {
            what,
            source: source.into(),
        }
    }
}

impl From<rkey_base::fault::Fault> for DeviceError {
    fn from(fault: rkey_base::fault::Fault) -> Self {
        Self::Fault {
            address: fault.address,
        }
    }
}

impl From<rkey_core::BindError> for DeviceError {
    fn from(error: rkey_core::BindError) -> Self {
        Self::Bind(error)
    }
}

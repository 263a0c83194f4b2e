//! Why a call on a device failed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rkey_core::CoreError;
use rkey_engine::{EngineError, ModifyError, PostError};

use crate::config::ConfigError;

/// Why a call on a device failed. Every variant says what to do about it where that is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An `RKEY_*` variable has a value that is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A configured limit is reached.
    #[error("the limit of {limit} {what} is reached; {variable} raises it")]
    Limit {
        /// What there may not be more of.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The environment variable that sets the limit.
        variable: &'static str,
    },
    /// A wish is larger than the device allows for one object.
    #[error(
        "{wanted} {what} were asked for, but at most {limit} are allowed; {variable} changes that"
    )]
    TooLarge {
        /// What was asked for.
        what: &'static str,
        /// How much was asked for.
        wanted: u64,
        /// The most that is allowed.
        limit: u64,
        /// The environment variable that sets the limit.
        variable: &'static str,
    },
    /// The protection table refused: registration, windows, domains.
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
    /// A request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An object is still used by others.
    #[error("{what} is still in use by {by}")]
    Busy {
        /// What was to go.
        what: &'static str,
        /// What still uses it.
        by: &'static str,
    },
    /// The object does not belong to this device, or no longer exists.
    #[error("this {what} does not belong to the device, or is closed")]
    Unknown {
        /// What was named.
        what: &'static str,
    },
    /// This process was forked from the one that opened the device. Its parent still has it.
    #[error("the device was opened by the parent of this process; open one of your own after fork")]
    Forked,
    /// The engine of the device failed; nothing will complete any more.
    #[error("the device failed: {0}; close it and open a new one")]
    Failed(String),
    /// The address is not one of this host.
    #[error(
        "{address} is not an address of this host; only processes on this host can be reached for now"
    )]
    NotThisHost {
        /// The address.
        address: SocketAddr,
    },
    /// Nobody listens at an address.
    #[error("nobody listens at {address} (waited {waited:?}); {hint}")]
    NobodyListens {
        /// The address.
        address: SocketAddr,
        /// How long connecting was tried.
        waited: Duration,
        /// What may be the reason.
        hint: &'static str,
    },
    /// Somebody already listens at an address.
    #[error("a process of this user already listens at {address}")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The peer refused the connection.
    #[error("the peer refused the connection: {reason}")]
    Refused {
        /// What the peer said.
        reason: String,
    },
    /// The key does not allow what was asked for.
    #[error("{0}")]
    Denied(Box<rkey_core::Denial>),
    /// The queue pair has no link to its peer (yet, or any more).
    #[error("queue pair {qpn:#x} is not connected to another process (yet, or any more)")]
    NotConnected {
        /// Its number.
        qpn: u32,
    },
    /// A lease could not be opened.
    #[error(transparent)]
    Direct(#[from] rkey_link::direct::DirectError),
    /// A process of another user is at the other end, and sharing is off.
    #[error(
        "the process at the other end belongs to user {uid}; both ends need RKEY_SHARE=all for that"
    )]
    OtherUser {
        /// Its user id.
        uid: u32,
    },
    /// The peer went away or said something that is not part of the protocol.
    #[error("the connection was not made: {0}")]
    Handshake(&'static str),
    /// The peer is of another version of rkey.
    #[error(
        "the peer speaks version {there} of the {protocol}, this process version {here}: both sides need the same rkey"
    )]
    Version {
        /// Which protocol of rkey.
        protocol: &'static str,
        /// The version there.
        there: u32,
        /// The version here.
        here: u32,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {after:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// Private data or another value is longer than allowed.
    #[error("{what} has {len} bytes; at most {max} are allowed")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The most allowed.
        max: usize,
    },
    /// User memory could not be touched.
    #[error("memory at {address:#x} cannot be touched: it is unmapped, protected or truncated")]
    Fault {
        /// The address.
        address: u64,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
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

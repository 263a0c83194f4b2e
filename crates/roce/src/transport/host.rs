//! The trait for the environment of a queue pair: memory, receives, and access checks.

use crate::packet::NakCode;

/// A range of this side's memory as specified by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The address of the first byte, in the key's address space. Address and length come from the peer: their sum may
    /// overflow.
    pub address: u64,
    /// The key.
    pub rkey: u32,
    /// The length in bytes.
    pub length: u32,
}

/// A peer's kind of access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read the range.
    Read,
    /// Write to the range.
    Write,
    /// An atomic operation on 8 bytes.
    Atomic,
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `swap` if the word equals `compare`.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds a number, wrapping around.
    FetchAdd {
        /// The value to add.
        add: u64,
    },
}

/// Why a peer's access was refused. It determines the status that the peer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key, the range or the rights do not permit the access.
    Access,
    /// The request itself is not valid.
    Invalid,
    /// The memory could not be accessed.
    Operation,
}

impl From<Refusal> for NakCode {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access => Self::RemoteAccessError,
            Refusal::Invalid => Self::InvalidRequest,
            Refusal::Operation => Self::RemoteOperationalError,
        }
    }
}

/// The memory of a work request or of a receive could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFault;

/// A receive that was taken from the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Identifies the receive in later calls and in its event.
    pub id: u64,
    /// The total size of the receive's buffers, in bytes.
    pub capacity: u64,
}

/// The environment of a queue pair.
///
/// The host copies payloads between the program's memory and the datagram buffer, with a single copy: the transport passes
/// it the part of the buffer to use. The host checks keys, ranges and rights again on each call. The transport itself
/// never touches memory.
pub trait Host {
    /// Fills `to` with bytes of a work request's message, starting at `offset`. A packet that is sent again is loaded
    /// again, so the memory must not change until the request ends.
    ///
    /// # Errors
    ///
    /// The request ends with [`Status::LocalProtection`](super::Status::LocalProtection).
    fn load(&mut self, request: u64, offset: u32, to: &mut [u8]) -> Result<(), LocalFault>;

    /// Copies data returned by a read or an atomic (8 bytes, in native byte order) to the memory of the work request,
    /// starting at `offset`.
    ///
    /// # Errors
    ///
    /// The request ends with [`Status::LocalProtection`](super::Status::LocalProtection).
    fn store(&mut self, request: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault>;

    /// Takes the next receive from the queue, if its buffers hold at least `least` bytes (0, or the length of a datagram).
    /// The transport returns each receive in an event.
    fn take_receive(&mut self, least: u64) -> Option<Receive>;

    /// Copies bytes of a message to the buffers of a receive, starting at `offset`.
    ///
    /// # Errors
    ///
    /// The receive ends with [`Status::LocalProtection`](super::Status::LocalProtection), and the peer's request with
    /// [`Status::RemoteOperation`](super::Status::RemoteOperation).
    fn fill(&mut self, receive: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault>;

    /// Checks whether the peer may access the whole range. Called once, before the first byte is copied.
    ///
    /// # Errors
    ///
    /// The reason for the refusal.
    fn check(&mut self, range: &RemoteRange, access: Access) -> Result<(), Refusal>;

    /// Copies data that a peer wrote to the range, which is as long as `bytes`.
    ///
    /// # Errors
    ///
    /// The access is not, or no longer, permitted, or it failed.
    fn write(&mut self, range: &RemoteRange, bytes: &[u8]) -> Result<(), Refusal>;

    /// Copies the range into `to`, which is as long as the range.
    ///
    /// # Errors
    ///
    /// The access is not, or no longer, permitted, or it failed.
    fn read(&mut self, range: &RemoteRange, to: &mut [u8]) -> Result<(), Refusal>;

    /// Executes an atomic operation and returns the old value. The address is a multiple of 8.
    ///
    /// # Errors
    ///
    /// The access is not permitted, or failed.
    fn atomic(&mut self, range: &RemoteRange, operation: Atomic) -> Result<u64, Refusal>;

    /// Invalidates a key at the peer's request.
    ///
    /// # Errors
    ///
    /// The peer may not invalidate it.
    fn invalidate(&mut self, rkey: u32) -> Result<(), Refusal>;
}

//! The trait for what a transport asks of its surroundings: memory, receives, and who may touch what.

use crate::packet::NakCode;

/// A part of this side's memory, as a peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The address of the first byte, in the terms of the key. Address and length come from the peer: their sum may
    /// exceed 64 bits.
    pub address: u64,
    /// The key.
    pub rkey: u32,
    /// How many bytes.
    pub length: u32,
}

/// What a peer wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it.
    Read,
    /// Write to it.
    Write,
    /// An atomic operation on 8 bytes.
    Atomic,
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `swap` if the word equals `compare`.
    CompareSwap {
        /// What to compare with.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds a number, wrapping around.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

/// Why an access of a peer did not happen. It decides the peer's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key, the range or the rights do not permit it.
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

/// Memory of a work request or of a receive could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFault;

/// A receive that was taken from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Names the receive in later calls and in its event.
    pub id: u64,
    /// How many bytes its buffers hold.
    pub capacity: u64,
}

/// The surroundings of a queue pair.
///
/// Payloads travel between the program's memory and the buffer of one datagram with a single copy, which the host makes:
/// the transport passes it that part of the buffer. The host checks keys, ranges and rights again with each call. The
/// transport itself never touches memory.
pub trait Host {
    /// Copies bytes of a work request's message, from `offset` on, into all of `to`. A packet that is sent again is loaded
    /// again, so the memory must not change until the request ends.
    ///
    /// # Errors
    ///
    /// The request ends with [`Status::LocalProtection`](super::Status::LocalProtection).
    fn load(&mut self, request: u64, offset: u32, to: &mut [u8]) -> Result<(), LocalFault>;

    /// Copies data that a read or an atomic (8 bytes, in the byte order of this machine) has returned to the memory of the
    /// work request, from `offset` on.
    ///
    /// # Errors
    ///
    /// The request ends with [`Status::LocalProtection`](super::Status::LocalProtection).
    fn store(&mut self, request: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault>;

    /// Takes the next receive from the queue, if its buffers hold at least `least` bytes (0, or the length of a datagram).
    /// The transport returns each one in an event.
    fn take_receive(&mut self, least: u64) -> Option<Receive>;

    /// Copies bytes of a message to the buffers of a receive, from `offset` on.
    ///
    /// # Errors
    ///
    /// The receive ends with [`Status::LocalProtection`](super::Status::LocalProtection), and the peer's request with
    /// [`Status::RemoteOperation`](super::Status::RemoteOperation).
    fn fill(&mut self, receive: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault>;

    /// Whether the peer may access the whole range. Called once, before the first byte moves.
    ///
    /// # Errors
    ///
    /// Why not.
    fn check(&mut self, range: &RemoteRange, access: Access) -> Result<(), Refusal>;

    /// Copies what a peer wrote to the range, which has the length of `bytes`.
    ///
    /// # Errors
    ///
    /// The access is not, or no longer, permitted, or it failed.
    fn write(&mut self, range: &RemoteRange, bytes: &[u8]) -> Result<(), Refusal>;

    /// Copies the range into `to`, which has its length.
    ///
    /// # Errors
    ///
    /// The access is not, or no longer, permitted, or it failed.
    fn read(&mut self, range: &RemoteRange, to: &mut [u8]) -> Result<(), Refusal>;

    /// Executes an atomic operation; returns the old value. The address is a multiple of 8.
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

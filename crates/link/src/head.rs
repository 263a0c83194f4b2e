//! The head of a piece: what it asks for or answers, and how the payload is to be understood.
//!
//! A *message* is what a program posted (one write, one send). It travels in one or more
//! *pieces*; the first and the last are marked. Every piece carries the whole head, so that a
//! receiver can check each one by itself.

use bitflags::bitflags;

/// What a piece asks for (requests) or brings (responses).
///
/// The numbers are part of the shared-memory protocol. Requests are below 64, responses are 64
/// and more; a link refuses a number that it does not know, or one that flows the wrong way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// A two-sided message: lands in the buffers of a receive request.
    Send = 1,
    /// RDMA write: `addr` and `key` say where this piece goes.
    Write = 2,
    /// RDMA read of `total` bytes at `addr`; carries no payload.
    Read = 3,
    /// Compare-and-swap of 8 bytes at `addr`: `operands` are compare and swap.
    CompareSwap = 4,
    /// Fetch-and-add of 8 bytes at `addr`: `operands[0]` is added.
    FetchAdd = 5,
    /// Asks nothing: only makes the responder acknowledge (is it alive?).
    Probe = 6,
    /// A piece of the data that a read asked for, or the word that it has been pushed.
    ReadData = 64,
    /// The previous value of an atomic: `operands[0]`.
    AtomicResult = 65,
    /// The request with this `msn` was refused or cannot be served now; `imm` says how, the
    /// payload may carry the reason.
    Nak = 66,
}

impl Op {
    /// The operation with this number, if there is one.
    #[inline]
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Send,
            2 => Self::Write,
            3 => Self::Read,
            4 => Self::CompareSwap,
            5 => Self::FetchAdd,
            6 => Self::Probe,
            64 => Self::ReadData,
            65 => Self::AtomicResult,
            66 => Self::Nak,
            _ => return None,
        })
    }

    /// Whether this is something a responder sends.
    #[inline]
    pub const fn is_response(self) -> bool {
        self as u8 >= 64
    }

    /// Whether the head carries [`Head::operands`] (and then no payload).
    #[inline]
    pub const fn has_operands(self) -> bool {
        matches!(
            self,
            Self::CompareSwap | Self::FetchAdd | Self::AtomicResult
        )
    }
}

bitflags! {
    /// How a piece belongs to its message and what else it carries.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HeadFlags: u8 {
        /// The first piece of its message.
        const FIRST = 1;
        /// The last piece of its message.
        const LAST = 1 << 1;
        /// `imm` is immediate data for the receiver.
        const IMMEDIATE = 1 << 2;
        /// The receiver's completion is to raise a solicited event.
        const SOLICITED = 1 << 3;
        /// `imm` is a key that the receiver is to invalidate.
        const INVALIDATE = 1 << 4;
        /// `key` is a 64-bit key that the owner of the memory chose, not one of the device's.
        const REQUESTED_KEY = 1 << 5;
        /// The payload is a list of places in the requester's memory, not bytes.
        const BY_REFERENCE = 1 << 6;
        /// Acknowledge this piece as soon as it is executed, do not wait for company.
        const ACK_NOW = 1 << 7;
    }
}

/// What one piece says, without its payload.
///
/// The meaning of `addr`, `key` and `imm` belongs to the engine; a link carries them. What a link
/// does read is `op`, `flags` and `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What is asked or answered.
    pub op: Op,
    /// Place in the message and extras.
    pub flags: HeadFlags,
    /// The queue pair number this piece is for.
    pub dst_qp: u32,
    /// The queue pair number it comes from.
    pub src_qp: u32,
    /// The number of the message within its queue pair.
    pub msn: u32,
    /// Bytes of payload in this piece (for a piece by reference: the sum of the list).
    pub len: u32,
    /// Bytes of the whole message; for a read, the bytes asked for.
    pub total: u32,
    /// An address at the responder, or an offset in the message (read data).
    pub addr: u64,
    /// The key that names the responder's memory.
    pub key: u64,
    /// Immediate data, a key to invalidate, or the code of a [`Op::Nak`].
    pub imm: u32,
    /// Operands or the result of an atomic; zero for everything else.
    pub operands: [u64; 2],
}

impl Head {
    /// A head with nothing but an operation: a single-piece message, everything else zero.
    #[inline]
    pub const fn new(op: Op) -> Self {
        Self {
            op,
            flags: HeadFlags::FIRST.union(HeadFlags::LAST),
            dst_qp: 0,
            src_qp: 0,
            msn: 0,
            len: 0,
            total: 0,
            addr: 0,
            key: 0,
            imm: 0,
            operands: [0; 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_numbers_survive_the_wire() {
        let mut known = 0;
        for value in 0..=u8::MAX {
            if let Some(op) = Op::from_wire(value) {
                assert_eq!(op as u8, value);
                assert_eq!(op.is_response(), value >= 64);
                known += 1;
            }
        }
        assert_eq!(known, 9);
    }
}

//! The header of a fragment: the request or response, and the meaning of the payload.
//!
//! A *message* is what a program posted (one write, one send). It travels in one or more *fragments*; the first and the
//! last are marked. Every fragment carries the whole header, so that a receiver can check each one separately.

use bitflags::bitflags;

/// The operation of a fragment: a request or a response.
///
/// The numbers are part of the shared-memory protocol. Requests are below 64; responses are 64 and above. A link
/// refuses an unknown number, and one in the wrong direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// A two-sided message for the buffers of a receive.
    Send = 1,
    /// RDMA write: `addr` and `key` name the destination of this fragment.
    Write = 2,
    /// RDMA read of `total` bytes at `addr`; carries no payload.
    Read = 3,
    /// Compare-and-swap of 8 bytes at `addr`: `operands` are compare and swap.
    CompareSwap = 4,
    /// Fetch-and-add of 8 bytes at `addr`: `operands[0]` is added.
    FetchAdd = 5,
    /// Requests only an acknowledgement, to check that the peer is alive.
    Probe = 6,
    /// A fragment of read data, or the notification that it has been pushed.
    ReadData = 64,
    /// The previous value of an atomic: `operands[0]`.
    AtomicResult = 65,
    /// A NAK: the request with this `msn` was refused or cannot be served now; `imm` is the code, the payload may
    /// carry the reason.
    Nak = 66,
}

impl Op {
    /// The operation with this number, if there is one.
    #[inline]
    pub const fn from_code(value: u8) -> Option<Self> {
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

    /// Whether a responder sends this operation.
    #[inline]
    pub const fn is_response(self) -> bool {
        self as u8 >= 64
    }

    /// Whether the header carries [`Header::operands`] (and then no payload).
    #[inline]
    pub const fn has_operands(self) -> bool {
        matches!(
            self,
            Self::CompareSwap | Self::FetchAdd | Self::AtomicResult
        )
    }
}

bitflags! {
    /// The position of a fragment in its message, and what else it carries.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HeaderFlags: u8 {
        /// The first fragment of its message.
        const FIRST = 1;
        /// The last fragment of its message.
        const LAST = 1 << 1;
        /// `imm` is immediate data for the receiver.
        const IMMEDIATE = 1 << 2;
        /// The receiver's completion raises a solicited event.
        const SOLICITED = 1 << 3;
        /// `imm` is a key that the receiver invalidates.
        const INVALIDATE = 1 << 4;
        /// `key` is a 64-bit requested key, not one of the device's.
        const REQUESTED_KEY = 1 << 5;
        /// The payload is a remote iovec: a list of ranges of the requester's memory.
        const REMOTE_IOVEC = 1 << 6;
        /// The responder acknowledges this fragment as soon as it is executed and does not wait to combine
        /// acknowledgements.
        const ACK_NOW = 1 << 7;
    }
}

/// The header of one fragment.
///
/// The engine defines the meaning of `addr`, `key` and `imm`; a link only carries them. A link uses `op`, `flags` and
/// `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation.
    pub op: Op,
    /// The position in the message, and options.
    pub flags: HeaderFlags,
    /// The queue pair number this fragment is for.
    pub dst_qp: u32,
    /// The number of the queue pair that sent the message.
    pub src_qp: u32,
    /// The number of the message within its queue pair.
    pub msn: u32,
    /// The payload length of this fragment, in bytes (for a remote iovec: the sum of the list).
    pub len: u32,
    /// The length of the whole message in bytes; for a read, of the requested data.
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

impl Header {
    /// A header with only an operation: a single-fragment message with everything else zero.
    #[inline]
    pub const fn new(op: Op) -> Self {
        Self {
            op,
            flags: HeaderFlags::FIRST.union(HeaderFlags::LAST),
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
    fn operation_numbers_round_trip() {
        let mut known = 0;
        for value in 0..=u8::MAX {
            if let Some(op) = Op::from_code(value) {
                assert_eq!(op as u8, value);
                assert_eq!(op.is_response(), value >= 64);
                known += 1;
            }
        }
        assert_eq!(known, 9);
    }
}

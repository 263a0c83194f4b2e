//! Work requests and how they are split into packets.

use super::event::Status;
use super::host::Atomic;
use super::sequence::Sequence;
use crate::packet::{Mtu, Position};

/// The longest message, in bytes (IBA volume 1, 9.7.7.1.1).
pub const MESSAGE_MAX: u32 = 1 << 31;

/// A location in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address, in the key's address space.
    pub address: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message for one of the peer's receives.
    Send {
        /// Immediate data.
        immediate: Option<u32>,
        /// A key of the peer that the message invalidates. Excludes immediate data.
        invalidate: Option<u32>,
    },
    /// RDMA write; with immediate data it consumes a receive of the peer.
    Write {
        /// The destination.
        target: Target,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// RDMA read.
    Read {
        /// The source.
        target: Target,
    },
    /// An atomic operation on 8 bytes; the old value goes to the request's memory.
    Atomic {
        /// The 8 bytes, at a multiple of 8.
        target: Target,
        /// The operation.
        operation: Atomic,
    },
}

impl Operation {
    /// Whether the operation ends with a response instead of an acknowledgement.
    pub(crate) const fn needs_response(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }

    /// Whether the operation consumes a receive of the peer, which may raise a solicited event there.
    pub(crate) const fn consumes_receive(&self) -> bool {
        matches!(
            self,
            Self::Send { .. }
                | Self::Write {
                    immediate: Some(_),
                    ..
                }
        )
    }
}

/// A work request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// Identifies the request's memory in calls to the [`Host`](super::Host), and the request in its event.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
    /// The length of the message or of the data to read, in bytes: at most [`MESSAGE_MAX`]. Ignored for atomics.
    pub length: u32,
    /// Raises a solicited event at the peer if the operation consumes a receive; otherwise it has no effect.
    pub solicited: bool,
    /// Starts only when all earlier reads and atomics have ended.
    pub fence: bool,
}

impl WorkRequest {
    /// A request without options.
    #[must_use]
    pub const fn new(id: u64, operation: Operation, length: u32) -> Self {
        Self {
            id,
            operation,
            length,
            solicited: false,
            fence: false,
        }
    }

    /// How many PSNs the request takes: one for each packet of the message or of the response.
    pub(crate) const fn packets(&self, mtu: Mtu) -> u32 {
        match self.operation {
            Operation::Atomic { .. } => 1,
            _ => mtu.packets(self.length),
        }
    }
}

/// A work request in the send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) request: WorkRequest,
    /// The position of the request's first packet, once the request has been started.
    pub(crate) first: Sequence,
    pub(crate) packets: u32,
    /// The maximum number of packets of its response that are requested at once, once the request has been started.
    pub(crate) part: u32,
    /// The number of packets of the response that have arrived.
    pub(crate) answered: u32,
    /// The status, if the request failed on this side. The request ends when all requests before it have ended.
    pub(crate) failed: Option<Status>,
}

impl Work {
    /// The position after the request's last packet.
    pub(crate) const fn end(&self) -> Sequence {
        self.first.plus(self.packets)
    }

    /// The position of the next packet of its response.
    pub(crate) const fn awaited(&self) -> Sequence {
        self.first.plus(self.answered)
    }
}

/// The part of a message that one packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) position: Position,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl Part {
    /// The part that packet `index` of a message of `length` bytes carries.
    pub(crate) const fn of(length: u32, index: u32, mtu: Mtu) -> Self {
        // A message has at most 2³¹ bytes, and `index` is below its number of packets.
        let most = mtu.bytes() as u32;
        let offset = index * most;
        let rest = length - offset;
        let position = match (index == 0, rest <= most) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        Self {
            position,
            offset,
            length: if rest < most { rest } else { most },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_split_at_the_path_mtu() {
        let mtu = Mtu::Bytes256;
        let part = |length, index| Part::of(length, index, mtu);
        let is = |position, offset, length| Part {
            position,
            offset,
            length,
        };
        assert_eq!(part(0, 0), is(Position::Only, 0, 0));
        assert_eq!(part(256, 0), is(Position::Only, 0, 256));
        assert_eq!(part(257, 0), is(Position::First, 0, 256));
        assert_eq!(part(257, 1), is(Position::Last, 256, 1));
        assert_eq!(part(768, 1), is(Position::Middle, 256, 256));
        assert_eq!(part(768, 2), is(Position::Last, 512, 256));
        let last = is(Position::Last, MESSAGE_MAX - 256, 256);
        assert_eq!(part(MESSAGE_MAX, (1 << 23) - 1), last);
        let write = Operation::Send {
            immediate: None,
            invalidate: None,
        };
        let packets = |length| WorkRequest::new(0, write, length).packets(mtu);
        assert_eq!((packets(0), packets(256), packets(257)), (1, 1, 2));
        assert_eq!(packets(MESSAGE_MAX), 1 << 23);
    }
}

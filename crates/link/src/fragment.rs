//! Fragments as the requester and the responder see them.

use crate::Header;
use rkey_base::shared::PeerBytes;

/// Numbers the request fragments of a link from 0: the n-th accepted fragment has ticket n.
pub type Ticket = u64;

/// The maximum number of ranges in a remote iovec.
pub const REMOTE_IOVEC_MAX: usize = 13;

/// A list of ranges of the requester's memory, copied out of the ring.
#[derive(Clone, Copy, Debug)]
pub struct RemoteIovec {
    count: u32,
    list: [(u64, u64); REMOTE_IOVEC_MAX],
}

impl RemoteIovec {
    /// Copies a list of (address, length). `None` if it is longer than [`REMOTE_IOVEC_MAX`].
    pub fn new(list: &[(u64, u64)]) -> Option<Self> {
        let mut all = [(0, 0); REMOTE_IOVEC_MAX];
        all.get_mut(..list.len())?.copy_from_slice(list);
        Some(Self {
            count: list.len() as u32,
            list: all,
        })
    }

    /// The (address, length) pairs in order.
    #[inline]
    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.list[..self.count as usize]
    }
}

/// The payload of a received fragment.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Bytes that the peer may still change: copy them once. Exactly `header.len` bytes.
    Bytes(PeerBytes<'a>),
    /// Ranges of the requester's memory; their lengths add up to `header.len` (for a read, to `header.total`). The list
    /// is boxed because it is large and rare, and fragments are passed by value.
    RemoteIovec(Box<RemoteIovec>),
}

/// A received fragment: its header has been copied out and checked, and its payload is still in the ring.
#[derive(Clone, Debug)]
pub struct ReceivedFragment<'a> {
    /// The checked header.
    pub header: Header,
    /// The payload.
    pub payload: Payload<'a>,
}

/// A send or a write of one fragment with its payload in the slot, and without immediate data or a key to invalidate.
#[derive(Clone, Copy, Debug)]
pub struct ShortRequest<'a> {
    /// The queue pair number that it is for.
    pub dst_qp: u32,
    /// The number of the queue pair that sent it.
    pub src_qp: u32,
    /// The number of the message within its queue pair.
    pub msn: u32,
    /// What it is.
    pub kind: ShortKind,
    /// The whole payload, which is still in the ring and which the peer may still change: copy it once.
    pub bytes: PeerBytes<'a>,
}

/// What a [`ShortRequest`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortKind {
    /// A send.
    Send {
        /// Whether the receiver's completion raises a solicited event.
        solicited: bool,
    },
    /// A write of at least one byte.
    Write {
        /// The address of the first byte.
        addr: u64,
        /// The key that names the memory.
        key: u64,
        /// Whether it is a requested key, not one of the device's.
        requested: bool,
    },
}

/// A read whose data fit into a slot, or an atomic: a request that gets one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredRequest {
    /// The queue pair number that it is for.
    pub dst_qp: u32,
    /// The number of the queue pair that sent it.
    pub src_qp: u32,
    /// The number of the message within its queue pair.
    pub msn: u32,
    /// The address of the first byte.
    pub addr: u64,
    /// The key that names the memory.
    pub key: u64,
    /// Whether it is a requested key, not one of the device's.
    pub requested: bool,
    /// What it is.
    pub kind: AnsweredKind,
}

/// What an [`AnsweredRequest`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredKind {
    /// A read of so many bytes, at least one.
    Read(u32),
    /// A compare-and-swap of 8 bytes: compare, swap.
    CompareSwap(u64, u64),
    /// A fetch-and-add of 8 bytes.
    FetchAdd(u64),
}

/// The next fragment, if there is one, is not a valid short request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotShort;

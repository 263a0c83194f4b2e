//! Work requests: what a program posts to a queue pair.

use crate::{LinkId, QpState};
use bitflags::bitflags;
use rkey_base::range::VaRange;
use rkey_core::{Access, Key, LKey, RKey, Rules, WindowId};

/// The longest message, in bytes (2^31, as on verbs devices).
pub const MESSAGE_MAX: u64 = 1 << 31;

/// One buffer in local memory: a scatter/gather entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// The address of the first byte, in the addressing of `key`'s region.
    pub addr: u64,
    /// Length in bytes; may be 0.
    pub len: u32,
    /// The local key of the region that covers it.
    pub key: LKey,
}

/// A location in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address, in the addressing of the key's region or window.
    pub addr: u64,
    /// The peer's key.
    pub key: RKey,
}

/// The operation of a send-queue work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A message into the buffers of a receive at the peer.
    Send {
        /// Immediate data for the peer's completion.
        imm: Option<u32>,
        /// A type 2 window key that the peer invalidates when the message has arrived. `imm` must then be `None`.
        invalidate: Option<Key>,
    },
    /// RDMA write; with immediate data it consumes a receive at the peer.
    Write {
        /// The destination.
        remote: Target,
        /// Immediate data for the peer's completion.
        imm: Option<u32>,
    },
    /// RDMA read into the local buffers.
    Read {
        /// The source.
        remote: Target,
    },
    /// 8-byte compare-and-swap; the old value goes to the local buffer.
    CompareSwap {
        /// The word's address, aligned to 8.
        remote: Target,
        /// Swaps only if the word has this value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// 8-byte fetch-and-add; the old value goes to the local buffer.
    FetchAdd {
        /// The word's address, aligned to 8.
        remote: Target,
        /// The number to add.
        add: u64,
    },
    /// Writes 8 bytes atomically; needs the right to write. Takes no local memory.
    AtomicWrite {
        /// The word's address, aligned to 8.
        remote: Target,
        /// The new value of the 8 bytes.
        value: u64,
    },
    /// Binds a window of this device.
    Bind {
        /// The window.
        window: WindowId,
        /// The region; ignored for an empty range.
        region: LKey,
        /// The range in the region; an empty range unbinds.
        range: VaRange,
        /// The rights of the window.
        access: Access,
        /// Whether the window is addressed from zero.
        zero_based: bool,
        /// Type 2: the key that the program chose. `None` means the key reserved by `Protection::next_window_key`.
        key: Option<Key>,
        /// The rules of the requesting API.
        rules: Rules,
    },
    /// Invalidates a type 2 window of this device.
    Invalidate {
        /// The key of the window.
        key: Key,
    },
}

bitflags! {
    /// Options of a send-queue work request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// Complete the request with an entry in the completion queue even if it succeeds.
        const SIGNALED = 1;
        /// Start the request only when all earlier reads and atomics are complete.
        const FENCE = 1 << 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 1 << 2;
        /// More posts follow immediately: do not ring the doorbell yet.
        const MORE = 1 << 3;
        /// The result of a read goes where a message would have gone, so the memory needs the right to receive
        /// ([`LocalUse::Recv`](rkey_core::LocalUse::Recv)), not to read. No effect on other requests.
        const RECEIVES = 1 << 4;
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdAddress {
    /// The link, if known. If it is not, [`crate::Event::LinkNeeded`] requests a link and the datagram waits for
    /// [`crate::Engine::connect_qpn`].
    pub link: Option<LinkId>,
    /// The number of the queue pair at the destination.
    pub qpn: u32,
    /// The queue key that must match; if its highest bit is set, the queue pair's own key is used.
    pub qkey: u32,
    /// The contents of the datagram's GRH.
    pub route: Route,
    /// The destination is on another host: the datagram leaves as a packet, between the addresses that `route` names.
    pub wire: bool,
}

/// The source and destination of a datagram, as its GRH carries them to the receiver. Delivery ignores it, except that
/// the target names the group if the queue pair number is [`GROUP_QPN`](crate::groups::GROUP_QPN).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// GID of the sender.
    pub source: [u8; 16],
    /// GID of the receiver, or of the group.
    pub target: [u8; 16],
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

/// A work request for the send queue. Posting copies everything except the memory that `sges` name.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The completion returns this id.
    pub id: u64,
    /// The operation.
    pub work: Work,
    /// Local memory, in order. The memory must stay valid until the completion.
    pub sges: &'a [Sge],
    /// The payload itself, instead of `sges` (sends and writes only): inline data needs no key, and the program may reuse the
    /// bytes at once.
    pub inline: Option<&'a [u8]>,
    /// The first bytes of the message, before those that `sges` name (sends of connected queue pairs only). In all other
    /// respects, these bytes are inline data.
    pub prefix: &'a [u8],
    /// The request's options.
    pub flags: SendFlags,
    /// The destination (datagrams), or the number of the peer's shared receive queue (extended reliable connections).
    pub ud: Option<UdAddress>,
}

impl Work {
    /// The key of the peer's memory, if the work names any.
    pub(crate) const fn key(&self) -> Option<RKey> {
        match self {
            Self::Write { remote, .. }
            | Self::Read { remote }
            | Self::CompareSwap { remote, .. }
            | Self::FetchAdd { remote, .. }
            | Self::AtomicWrite { remote, .. } => Some(remote.key),
            Self::Send { .. } | Self::Bind { .. } | Self::Invalidate { .. } => None,
        }
    }
}

impl<'a> SendRequest<'a> {
    /// A signalled request without any extras.
    pub const fn new(id: u64, work: Work, sges: &'a [Sge]) -> Self {
        Self {
            id,
            work,
            sges,
            inline: None,
            prefix: &[],
            flags: SendFlags::SIGNALED,
            ud: None,
        }
    }
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// The completion returns this id.
    pub id: u64,
    /// Local memory to fill, in order. The memory must stay valid until the completion.
    pub sges: &'a [Sge],
}

/// Why a work request was not accepted. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The handle is stale.
    #[error("no such queue pair")]
    NoSuchQp,
    /// The handle is stale.
    #[error("no such shared receive queue")]
    NoSuchSrq,
    /// The queue pair does not accept this kind of request in its current state.
    #[error("the queue pair does not accept this request in state {0:?}")]
    WrongState(QpState),
    /// The queue is full: poll completions first.
    #[error("the queue is full: all {0} entries are in use; poll completions")]
    QueueFull(u32),
    /// The queue pair was created for fewer scatter/gather entries.
    #[error("the request has {given} scatter/gather entries, but the queue takes at most {max}")]
    TooManySges {
        /// The number of entries that the request has.
        given: usize,
        /// The number of entries that the queue takes.
        max: u32,
    },
    /// The queue pair was created for less inline data.
    #[error("the request has {given} bytes of inline data, but the queue takes at most {max}")]
    InlineTooLong {
        /// The number of bytes that the request has.
        given: usize,
        /// The number of bytes that the queue takes.
        max: u32,
    },
    /// This type of queue pair does not support this kind of work, or this work does not take these options.
    #[error("queue pairs of this type do not support this work request: {0}")]
    NotSupported(&'static str),
    /// The message is longer than 2^31 bytes.
    #[error("the message has {0} bytes, but the limit is 2147483648 bytes")]
    TooLong(u64),
    /// A datagram without an address.
    #[error("a datagram needs an address")]
    NoAddress,
    /// Receives of this queue pair are posted to its shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue: post them there")]
    UsesSrq,
}

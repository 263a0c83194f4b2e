//! Completions: what a program reads from a completion queue.
//!
//! [`Status`] is the list of work completion statuses of the InfiniBand specification (11.6.2);
//! a front end maps each to `IBV_WC_*`, `FI_E*` or `DAT_DTO_*`.

use bitflags::bitflags;
use serde::Serialize;

/// How a work request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[repr(u8)]
pub enum Status {
    /// The work request succeeded.
    #[default]
    Success,
    /// The message is longer than the buffers of the receive request, or than a datagram may be.
    LocalLength,
    /// The queue pair does not support the request (a read, for example, if it may have no outstanding reads).
    LocalQpOperation,
    /// A local key, range or local right was denied, or local memory could not be accessed.
    LocalProtection,
    /// The queue pair went to an error state before this request had completed.
    Flushed,
    /// A window could not be bound.
    WindowBind,
    /// The peer sent an invalid response.
    BadResponse,
    /// Responder: a message that was being received ended in a protection error.
    LocalAccess,
    /// The peer found the request invalid (unaligned atomic, receive buffer too small).
    RemoteInvalidRequest,
    /// The peer refused the request because of the key, the range or the rights.
    RemoteAccess,
    /// The peer could not execute the request (its memory could not be accessed, or its receive failed).
    RemoteOperation,
    /// The peer did not respond within the timeout and retries, or has exited.
    RetryExceeded,
    /// The peer had no receive posted within the receiver-not-ready retries.
    RnrRetryExceeded,
    /// The sender abandoned the message halfway.
    RemoteAborted,
    /// The queue pair or its completion queue is broken.
    Fatal,
}

impl Status {
    /// Whether the request succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

/// The kind of work request that completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[repr(u8)]
pub enum CompletionOp {
    /// A send, with or without immediate data or invalidation.
    #[default]
    Send,
    /// An RDMA write, with or without immediate data.
    Write,
    /// An RDMA read.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// An atomic write of 8 bytes.
    AtomicWrite,
    /// A window bind.
    Bind,
    /// A local invalidation.
    Invalidate,
    /// A receive that a send filled.
    Recv,
    /// A receive that an RDMA write with immediate data consumed.
    RecvWriteImm,
}

impl CompletionOp {
    /// Whether the completion belongs to a receive queue.
    #[inline]
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImm)
    }
}

bitflags! {
    /// Further flags of a completion.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u16 {
        /// [`Completion::imm`] is immediate data.
        const IMM = 1;
        /// [`Completion::imm`] is the key that the sender invalidated here.
        const INVALIDATED = 1 << 1;
        /// The first 40 bytes of the buffer are the global route header (datagrams).
        const GRH = 1 << 2;
        /// The sender requested a solicited event.
        const SOLICITED = 1 << 3;
        /// The datagram came from another host over IPv4: the route header is an IPv4 header in the last 20 of the 40 bytes.
        const IPV4 = 1 << 4;
        /// The datagram came from another host over IPv6.
        const IPV6 = 1 << 5;
    }
}

/// One entry of a completion queue.
///
/// After an error only `id`, `status`, `opcode`, `qpn` and `vendor` are valid (ibv_poll_cq(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The id that the program passed when it posted the request.
    pub id: u64,
    /// How the work request ended.
    pub status: Status,
    /// The operation of the work request.
    pub opcode: CompletionOp,
    /// Further flags.
    pub flags: CompletionFlags,
    /// How many bytes were received or read (datagrams: including the 40 bytes of header), or the
    /// length of a send or write.
    pub bytes: u32,
    /// Immediate data or the invalidated key, depending on `flags`.
    pub imm: u32,
    /// The number of the queue pair here.
    pub qpn: u32,
    /// The number of the sender's queue pair (receives).
    pub src_qpn: u32,
    /// The id of the [`crate::DenialReport`] that explains a denial; 0 for none.
    pub vendor: u32,
}

const _: () = assert!(size_of::<Completion>() <= 40);

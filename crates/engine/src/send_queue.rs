//! The send queue: a ring of work requests, and three counters.
//!
//! `head` is the oldest request that is not complete, `next` the next one to start, `tail` the position of the next
//! post. The counters only grow (64-bit sequence numbers of this queue); the ring wraps. Scatter/gather entries and
//! inline data are in separate arrays with a fixed stride, so that a post allocates nothing.

use crate::{CompletionOp, SendFlags, SendRequest, Sge, Status, UdAddress};
use bitflags::bitflags;
use rkey_base::range::VaRange;
use rkey_core::{Access, Attempt, Denial, Key, LKey, LocalUse, Operation, RKey, Rules, WindowId};
use std::collections::VecDeque;

bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct WqeFlags: u16 {
        const SIGNALED = 1;
        const FENCE = 1 << 1;
        const SOLICITED = 1 << 2;
        /// The payload is in the inline area.
        const INLINE = 1 << 3;
        const IMMEDIATE = 1 << 4;
        const INVALIDATE = 1 << 5;
        /// `key` is a requested key.
        const REQUESTED_KEY = 1 << 6;
        /// The request was sent as a remote iovec: the peer may access the memory.
        const REMOTE_IOVEC = 1 << 7;
        /// The request has ended, with `status`.
        const DONE = 1 << 8;
        /// The payload has been copied out of the program's memory; see [`SendQueue::keep`].
        const KEPT = 1 << 9;
        /// A read whose result is stored like a message.
        const RECEIVES = 1 << 10;
    }
}

impl WqeFlags {
    /// The flags that have the same bits in [`SendFlags`].
    const POSTED: Self = Self::SIGNALED.union(Self::FENCE).union(Self::SOLICITED);

    /// The flags that a posted request of any kind has.
    #[inline]
    pub(crate) fn of(request: &SendRequest<'_>) -> Self {
        let mut flags = Self::from_bits_truncate(request.flags.bits().into()) & Self::POSTED;
        flags.set(Self::INLINE, request.inline.is_some());
        flags
    }
}

const _: () = {
    assert!(SendFlags::SIGNALED.bits() as u16 == WqeFlags::SIGNALED.bits());
    assert!(SendFlags::FENCE.bits() as u16 == WqeFlags::FENCE.bits());
    assert!(SendFlags::SOLICITED.bits() as u16 == WqeFlags::SOLICITED.bits());
};

/// One work request.
///
/// The order of the fields matters: an address next to a key would be copied to the start of a fragment as one unit,
/// and a wide load from two narrow stores stalls the processor. Each entry has its own cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Wqe {
    pub(crate) addr: u64,
    pub(crate) id: u64,
    pub(crate) key: u64,
    pub(crate) op: CompletionOp,
    pub(crate) status: Status,
    pub(crate) flags: WqeFlags,
    pub(crate) sges: u32,
    /// The length of the message, in bytes.
    pub(crate) total: u32,
    /// Immediate data or the key to invalidate.
    pub(crate) imm: u32,
    /// The message number, once the request has been started.
    pub(crate) msn: u32,
    /// How many bytes of a read have arrived.
    pub(crate) received: u32,
    /// The length of the prefix, which is in the inline area.
    pub(crate) prefix_len: u32,
    /// The id of the report that explains the failure.
    pub(crate) vendor: u32,
}

impl Wqe {
    const EMPTY: Self = Self {
        addr: 0,
        id: 0,
        key: 0,
        op: CompletionOp::Send,
        status: Status::Success,
        flags: WqeFlags::empty(),
        sges: 0,
        total: 0,
        imm: 0,
        msn: 0,
        received: 0,
        prefix_len: 0,
        vendor: 0,
    };

    /// The denial of this request by a peer that withholds the reason.
    #[cold]
    pub(crate) fn withheld(&self) -> Denial {
        let requested = self.flags.contains(WqeFlags::REQUESTED_KEY);
        let (attempt, key) = match self.op {
            CompletionOp::Send => (Attempt::Invalidate { remote: true }, u64::from(self.imm)),
            CompletionOp::Read => (Attempt::Remote(Operation::Read), self.key),
            CompletionOp::CompareSwap | CompletionOp::FetchAdd => {
                (Attempt::Remote(Operation::Atomic), self.key)
            }
            _ => (Attempt::Remote(Operation::Write), self.key),
        };
        let key = if requested {
            RKey::Requested(key)
        } else {
            RKey::Device(Key(key as u32))
        };
        Denial::withheld(attempt, key, self.addr, self.total.into())
    }

    /// Whether the request ends with a response instead of an acknowledgement.
    #[inline]
    pub(crate) const fn needs_response(&self) -> bool {
        matches!(
            self.op,
            CompletionOp::Read | CompletionOp::CompareSwap | CompletionOp::FetchAdd
        )
    }

    /// How the request uses the memory of its scatter/gather entries.
    #[inline]
    pub(crate) const fn local_use(&self) -> LocalUse {
        match self.op {
            CompletionOp::Write => LocalUse::WriteSource,
            CompletionOp::Read if self.flags.contains(WqeFlags::RECEIVES) => LocalUse::Recv,
            CompletionOp::Read => LocalUse::ReadSink,
            CompletionOp::CompareSwap | CompletionOp::FetchAdd => LocalUse::AtomicResult,
            _ => LocalUse::Send,
        }
    }

    /// Whether the request is executed locally and sends nothing.
    #[inline]
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.op, CompletionOp::Bind | CompletionOp::Invalidate)
    }

    /// Ends the request.
    pub(crate) fn end(&mut self, status: Status, vendor: u32) {
        self.flags |= WqeFlags::DONE;
        self.status = status;
        self.vendor = vendor;
    }
}

/// Fields that only some requests have; kept apart so that the others do not touch them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail {
    None,
    Atomic([u64; 2]),
    Bind(BindWork),
    Datagram(UdAddress),
}

/// A bind, as posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindWork {
    pub(crate) window: WindowId,
    pub(crate) region: LKey,
    pub(crate) range: VaRange,
    pub(crate) access: Access,
    pub(crate) zero_based: bool,
    pub(crate) key: Option<Key>,
    pub(crate) rules: Rules,
}

pub(crate) struct SendQueue {
    wqes: Box<[Wqe]>,
    details: Box<[Detail]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    /// Payloads that were copied early, by sequence number.
    kept: VecDeque<(u64, Box<[u8]>)>,
    /// All requests before this one have been considered for an early copy.
    pub(crate) kept_to: u64,
    mask: u64,
    limit: u32,
    sge_stride: usize,
    inline_stride: usize,
    pub(crate) head: u64,
    pub(crate) next: u64,
    pub(crate) tail: u64,
}

pub(crate) const NO_SGE: Sge = Sge {
    addr: 0,
    len: 0,
    key: LKey(0),
};

impl SendQueue {
    pub(crate) fn new(limit: u32, max_sge: u32, max_inline: u32) -> Self {
        let ring = (limit.max(1) as usize).next_power_of_two();
        let sge_stride = max_sge as usize;
        let inline_stride = max_inline as usize;
        Self {
            wqes: vec![Wqe::EMPTY; ring].into(),
            details: vec![Detail::None; ring].into(),
            sges: vec![NO_SGE; ring * sge_stride].into(),
            inline: vec![0; ring * inline_stride].into(),
            kept: VecDeque::new(),
            kept_to: 0,
            mask: ring as u64 - 1,
            limit,
            sge_stride,
            inline_stride,
            head: 0,
            next: 0,
            tail: 0,
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.tail - self.head >= u64::from(self.limit)
    }

    /// The number of requests that are posted and not complete.
    pub(crate) fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    #[inline]
    fn slot(&self, seq: u64) -> usize {
        (seq & self.mask) as usize
    }

    #[inline]
    pub(crate) fn wqe(&self, seq: u64) -> &Wqe {
        &self.wqes[self.slot(seq)]
    }

    #[inline]
    pub(crate) fn wqe_mut(&mut self, seq: u64) -> &mut Wqe {
        let slot = self.slot(seq);
        &mut self.wqes[slot]
    }

    pub(crate) fn detail(&self, seq: u64) -> &Detail {
        &self.details[self.slot(seq)]
    }

    #[inline]
    pub(crate) fn sges(&self, seq: u64) -> &[Sge] {
        let from = self.slot(seq) * self.sge_stride;
        &self.sges[from..from + self.wqe(seq).sges as usize]
    }

    #[inline]
    pub(crate) fn inline(&self, seq: u64) -> &[u8] {
        let from = self.slot(seq) * self.inline_stride;
        &self.inline[from..from + self.wqe(seq).total as usize]
    }

    /// The first bytes of the message, before those of the scatter/gather entries.
    #[inline]
    pub(crate) fn prefix(&self, seq: u64) -> &[u8] {
        let from = self.slot(seq) * self.inline_stride;
        &self.inline[from..from + self.wqe(seq).prefix_len as usize]
    }

    /// Stores a copy of the payload of a request that must wait, and drops copies that are no longer needed.
    pub(crate) fn keep(&mut self, seq: u64, bytes: Box<[u8]>) {
        while self.kept.front().is_some_and(|(old, _)| *old < self.next) {
            self.kept.pop_front();
        }
        self.kept.push_back((seq, bytes));
        self.wqe_mut(seq).flags |= WqeFlags::KEPT;
    }

    /// The payload of a request, if it has been copied early.
    pub(crate) fn kept(&self, seq: u64) -> Option<&[u8]> {
        let mut all = self.kept.iter();
        all.find(|(of, _)| *of == seq).map(|(_, bytes)| &**bytes)
    }

    /// The entry that the next `push` makes part of the queue.
    #[inline]
    pub(crate) fn tail_mut(&mut self) -> &mut Wqe {
        self.wqe_mut(self.tail)
    }

    /// Adds the entry at the tail to the queue, with `prefix` and `sges`, or with `inline` data. The caller has checked
    /// lengths and room, and has filled in the entry.
    #[inline(always)]
    pub(crate) fn push(&mut self, sges: &[Sge], inline: Option<&[u8]>, prefix: &[u8]) {
        let slot = self.slot(self.tail);
        if !prefix.is_empty() {
            let from = slot * self.inline_stride;
            self.inline[from..from + prefix.len()].copy_from_slice(prefix);
        }
        match (inline, sges) {
            (None, []) => {}
            (None, [one]) => self.sges[slot * self.sge_stride] = *one,
            (None, all) => {
                let from = slot * self.sge_stride;
                self.sges[from..from + all.len()].copy_from_slice(all);
            }
            (Some(bytes), _) => {
                let from = slot * self.inline_stride;
                let room = &mut self.inline[from..from + bytes.len()];
                match (
                    <&mut [u8; 8]>::try_from(&mut *room),
                    <&[u8; 8]>::try_from(bytes),
                ) {
                    (Ok(room), Ok(bytes)) => *room = *bytes,
                    _ => room.copy_from_slice(bytes),
                }
            }
        }
        self.tail += 1;
    }

    /// Sets the extra fields of the entry that the next `push` adds.
    pub(crate) fn set_next_detail(&mut self, detail: Detail) {
        let slot = self.slot(self.tail);
        self.details[slot] = detail;
    }

    /// The oldest request before `until` with this message number.
    pub(crate) fn find(&self, msn: u32, until: u64) -> Option<u64> {
        (self.head..until).find(|&seq| {
            let wqe = self.wqe(seq);
            wqe.msn == msn && !wqe.is_local()
        })
    }

    /// Empties the queue.
    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
        self.next = self.tail;
        self.kept.clear();
    }
}

//! The consuming side of a ring: the slots and payload of the peer's half, mapped read-only.
//!
//! A private index selects the next slot. Other threads of this process can read it ([`Cursor`]), so that a poller
//! needs no lock.

use super::half::Half;
use super::slot::{self, Body, Rules};
use crate::{
    AnsweredRequest, HeaderFlags, Malformed, NotShort, Payload, ReceivedFragment, ShortRequest,
};
use crossbeam_utils::CachePadded;
use rkey_base::hint::prefetch_read;
use rkey_base::shared::PeerBytes;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of unreported fragments at which to acknowledge.
const ACK_EVERY: u64 = 16;
/// After this many fragments without waiting, the peer is ahead of us, and prefetching slots pays off. (Otherwise
/// prefetching takes cache lines away from the peer that it is about to write.)
const PREFETCH_AFTER: u64 = 8;
/// How many slots ahead to prefetch.
const PREFETCH_SLOTS: u64 = 4;
/// The number of polls without success after which to acknowledge: long enough (about 300 ns) that our write does not
/// delay a prompt response.
const ACK_AFTER_EMPTY: u32 = 24;

/// The counters that the link's owner writes and other threads read.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// How many fragments have been consumed.
    pub(crate) consumed: AtomicU64,
    /// How many fragments our ack word reports as consumed.
    pub(crate) reported: AtomicU64,
    /// The peer's ack word when last read.
    pub(crate) ack_seen: AtomicU64,
}

/// Takes fragments from the peer's half.
#[derive(Debug)]
pub(crate) struct Receiver {
    peer: Half,
    rules: Rules,
    cursor: Arc<CachePadded<Cursor>>,
    /// Whether the slot at the index has been read and was valid (`done` may advance).
    taken: Cell<bool>,
    /// Whether the current fragment requested an immediate acknowledgement.
    ack_now: Cell<bool>,
    /// How many payload ring bytes the current fragment has.
    taken_bytes: Cell<u32>,
    /// How many payload ring bytes were consumed since the last report.
    unreported_bytes: u32,
    /// The index of the last poll that found nothing.
    waited_at: Cell<u64>,
    /// The number of consecutive polls that found nothing.
    empties: Cell<u32>,
}

impl Receiver {
    pub(crate) fn new(peer: Half, responses: bool) -> Self {
        let geometry = peer.geometry();
        Self {
            peer,
            rules: Rules {
                responses,
                payload: geometry.payload,
                fragment_max: geometry.fragment_max,
            },
            cursor: Arc::default(),
            taken: Cell::new(false),
            ack_now: Cell::new(false),
            taken_bytes: Cell::new(0),
            unreported_bytes: 0,
            waited_at: Cell::new(0),
            empties: Cell::new(0),
        }
    }

    /// The counters that other threads read.
    pub(crate) fn cursor(&self) -> &Arc<CachePadded<Cursor>> {
        &self.cursor
    }

    /// How many fragments have been consumed.
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.cursor.consumed.load(Ordering::Relaxed)
    }

    /// Whether our ack word lags behind what we have consumed.
    #[inline]
    pub(crate) fn is_unreported(&self) -> bool {
        self.consumed() != self.cursor.reported.load(Ordering::Relaxed)
    }

    /// Whether the next slot has arrived.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        let next = self.consumed();
        slot::is_current(self.peer.slot_word(next).load(Ordering::Acquire), next)
    }

    /// The index of the next slot and its first word, if a fragment has arrived there.
    #[inline(always)]
    fn front(&self) -> Option<(u64, u64)> {
        let index = self.consumed();
        let first = self.peer.slot_word(index).load(Ordering::Acquire);
        if !slot::is_current(first, index) {
            self.waited_at.set(index);
            return None;
        }
        Some((index, first))
    }

    /// Whether the peer is so far ahead that prefetching pays off.
    #[inline(always)]
    fn is_behind(&self, index: u64) -> bool {
        index.wrapping_sub(self.waited_at.get()) >= PREFETCH_AFTER
    }

    /// The next fragment, if it has arrived.
    #[inline(always)]
    pub(crate) fn next(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        let Some((index, first)) = self.front() else {
            return Ok(None);
        };
        let slot = self.peer.slot(index);
        let behind = self.is_behind(index);
        if behind {
            prefetch_read(self.peer.slot(index + PREFETCH_SLOTS));
        }
        // SAFETY: a slot of the peer's half, readable for 256 bytes and aligned (`Half`).
        let (header, body) = unsafe { slot::read(slot, first, &self.rules)? };
        let mut bytes = 0;
        let payload = match body {
            Body::Inline(at) => {
                if behind && header.len > 16 {
                    let ahead = self.peer.slot(index + PREFETCH_SLOTS);
                    for line in (64..at + header.len as usize).step_by(64) {
                        prefetch_read(ahead.wrapping_add(line));
                    }
                }
                // SAFETY: the reader has checked that the length is at most 208, the size of a slot after its header; a
                // header is at most 48 bytes long.
                let bytes = unsafe { PeerBytes::new(slot.add(at), header.len as usize) };
                Payload::Bytes(bytes)
            }
            Body::InPayloadRing(offset) => {
                bytes = header.len;
                let bytes = self
                    .peer
                    .payload_as_peer(offset as usize, header.len as usize);
                Payload::Bytes(bytes.ok_or(Malformed::new("a payload outside its ring"))?)
            }
            Body::RemoteIovec(list) => Payload::RemoteIovec(list),
        };
        self.taken.set(true);
        self.taken_bytes.set(bytes);
        self.ack_now
            .set(header.flags.contains(HeaderFlags::ACK_NOW));
        Ok(Some(ReceivedFragment { header, payload }))
    }

    /// Like [`Self::next`], for valid short requests only.
    #[inline(always)]
    pub(crate) fn next_short(&self) -> Result<Option<ShortRequest<'_>>, NotShort> {
        let Some((index, first)) = self.front() else {
            return Ok(None);
        };
        let slot = self.peer.slot(index);
        // SAFETY: a slot of the peer's half, readable for 256 bytes and aligned (`Half`).
        let short = unsafe { slot::read_if_short(slot, first, &self.rules) }.ok_or(NotShort)?;
        if self.is_behind(index) {
            let ahead = self.peer.slot(index + PREFETCH_SLOTS);
            for line in (0..short.payload_at + short.len as usize).step_by(64) {
                prefetch_read(ahead.wrapping_add(line));
            }
        }
        self.taken.set(true);
        self.taken_bytes.set(0);
        self.ack_now.set(slot::wants_ack_now(first));
        // SAFETY: the reader has checked that the length is at most 208, the size of a slot after the longer of the two
        // headers, and the payload follows the header.
        let bytes = unsafe { PeerBytes::new(slot.add(short.payload_at), short.len as usize) };
        Ok(Some(ShortRequest {
            dst_qp: short.dst_qp,
            src_qp: short.src_qp,
            msn: short.msn,
            kind: short.kind,
            bytes,
        }))
    }

    /// Like [`Self::next`], for valid reads whose data fit into a slot and atomics only.
    #[inline]
    pub(crate) fn next_answered(&self) -> Option<AnsweredRequest> {
        let (index, first) = self.front()?;
        let slot = self.peer.slot(index);
        if self.is_behind(index) {
            prefetch_read(self.peer.slot(index + PREFETCH_SLOTS));
        }
        // SAFETY: a slot of the peer's half, readable for 256 bytes and aligned (`Half`).
        let request = unsafe { slot::read_if_answered(slot, first, &self.rules) }?;
        self.taken.set(true);
        self.taken_bytes.set(0);
        self.ack_now.set(slot::wants_ack_now(first));
        Some(request)
    }

    /// Whether the current fragment requested an immediate acknowledgement.
    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.ack_now.get()
    }

    /// Frees the current slot; returns whether the acknowledgement is due now.
    #[inline]
    pub(crate) fn done(&mut self) -> bool {
        if !self.taken.replace(false) {
            return false;
        }
        let consumed = self.consumed() + 1;
        self.cursor.consumed.store(consumed, Ordering::Relaxed);
        self.empties.set(0);
        self.unreported_bytes = self.unreported_bytes.saturating_add(self.taken_bytes.get());
        consumed - self.cursor.reported.load(Ordering::Relaxed) >= ACK_EVERY
            || self.ack_now.get()
            || self.unreported_bytes > self.rules.payload / 4
    }

    /// Counts a poll that found nothing; returns whether the acknowledgement is due now.
    #[inline]
    pub(crate) fn count_empty(&self) -> bool {
        if !self.is_unreported() {
            return false;
        }
        let empties = self.empties.get() + 1;
        self.empties.set(empties);
        empties >= ACK_AFTER_EMPTY
    }

    /// Records that our ack word is up to date.
    #[inline]
    pub(crate) fn set_reported(&self) {
        self.cursor
            .reported
            .store(self.consumed(), Ordering::Relaxed);
        self.empties.set(0);
    }

    /// Restarts counting payload bytes (after an acknowledgement).
    #[inline]
    pub(crate) fn forget_bytes(&mut self) {
        self.unreported_bytes = 0;
    }
}

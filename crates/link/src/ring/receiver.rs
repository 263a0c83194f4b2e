//! The consuming side of a ring: slots and payload of the peer's half, seen read-only.
//!
//! One private index says which slot is next. It lives where other threads of this process may
//! look at it ([`Cursor`]), so that a poller can peek without taking any lock.

use super::half::Half;
use super::slot::{self, Body, Rules};
use crate::{HeadFlags, Incoming, Malformed, Payload};
use rkey_base::hint::prefetch_read;
use rkey_base::shared::Foreign;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Acknowledge at the latest when this many pieces are unreported.
const ACK_EVERY: u64 = 16;
/// After so many pieces without waiting, the peer is ahead of us and slots may be prefetched. (If
/// it is not, prefetching takes lines away from it that it is about to write.)
const BEHIND: u64 = 8;
/// How far ahead.
const AHEAD: u64 = 4;
/// Or when we have looked this often and found nothing. Long enough that an answer which comes by
/// return (some 300 ns) is not delayed by our own write.
const ACK_AFTER_EMPTY: u32 = 24;

/// What the owner of the link writes and a peeking thread reads.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Cursor {
    /// Pieces consumed.
    pub(crate) consumed: AtomicU64,
    /// Pieces that our ack word reports as consumed.
    pub(crate) reported: AtomicU64,
    /// The peer's ack word as last seen.
    pub(crate) ack_seen: AtomicU64,
}

/// Takes pieces from the peer's half.
#[derive(Debug)]
pub(crate) struct Receiver {
    peer: Half,
    rules: Rules,
    cursor: Arc<Cursor>,
    /// The slot at the index has been read and was good (`done` may move on).
    taken: Cell<bool>,
    /// The taken piece is to be acknowledged at once.
    ack_now: Cell<bool>,
    /// Payload ring bytes of the taken piece.
    taken_bytes: Cell<u32>,
    /// Payload ring bytes consumed since the last report.
    unreported_bytes: u32,
    /// The index at which there was nothing last.
    waited_at: Cell<u64>,
    /// How often in a row there was nothing.
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
                piece_max: geometry.piece_max,
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

    /// What peeking threads look at.
    pub(crate) fn cursor(&self) -> &Arc<Cursor> {
        &self.cursor
    }

    /// Pieces consumed so far.
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.cursor.consumed.load(Ordering::Relaxed)
    }

    /// Whether the peer does not yet know all that we consumed.
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

    /// The next piece, if it has arrived.
    #[inline(always)]
    pub(crate) fn next(&self) -> Result<Option<Incoming<'_>>, Malformed> {
        let index = self.consumed();
        let first = self.peer.slot_word(index).load(Ordering::Acquire);
        if !slot::is_current(first, index) {
            self.waited_at.set(index);
            return Ok(None);
        }
        let slot = self.peer.slot(index);
        let behind = index.wrapping_sub(self.waited_at.get()) >= BEHIND;
        if behind {
            prefetch_read(self.peer.slot(index + AHEAD));
        }
        // SAFETY: a slot of the peer's half, readable for 256 bytes and aligned (`Half`).
        let (head, body) = unsafe { slot::read(slot, first, &self.rules)? };
        let mut bytes = 0;
        let payload = match body {
            Body::Inline(at) => {
                if behind && head.len > 16 {
                    let ahead = self.peer.slot(index + AHEAD);
                    for line in (64..at + head.len as usize).step_by(64) {
                        prefetch_read(ahead.wrapping_add(line));
                    }
                }
                // SAFETY: the reader has checked that the length is at most 208, which is what a
                // slot has after its head; a head is at most 48 bytes long.
                let bytes = unsafe { Foreign::new(slot.add(at), head.len as usize) };
                Payload::Bytes(bytes)
            }
            Body::Bounced(offset) => {
                bytes = head.len;
                let foreign = self
                    .peer
                    .payload_foreign(offset as usize, head.len as usize);
                Payload::Bytes(foreign.ok_or(Malformed::new("payload outside its ring"))?)
            }
            Body::References(list) => Payload::Reference(list),
        };
        self.taken.set(true);
        self.taken_bytes.set(bytes);
        self.ack_now.set(head.flags.contains(HeadFlags::ACK_NOW));
        Ok(Some(Incoming { head, payload }))
    }

    /// Whether the taken piece is to be acknowledged at once.
    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.ack_now.get()
    }

    /// Gives the taken slot back; says whether the acknowledgement is due now.
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

    /// Counts a look that found nothing; says whether the acknowledgement is due now.
    #[inline]
    pub(crate) fn count_empty(&self) -> bool {
        if !self.is_unreported() {
            return false;
        }
        let empties = self.empties.get() + 1;
        self.empties.set(empties);
        empties >= ACK_AFTER_EMPTY
    }

    /// Takes note that our ack word now says all.
    #[inline]
    pub(crate) fn set_reported(&self) {
        self.cursor
            .reported
            .store(self.consumed(), Ordering::Relaxed);
        self.empties.set(0);
    }

    /// Starts counting payload bytes anew (after a report).
    #[inline]
    pub(crate) fn forget_bytes(&mut self) {
        self.unreported_bytes = 0;
    }
}

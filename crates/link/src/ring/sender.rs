//! The producing side of a ring: the slots and payload of our own half.
//!
//! A fragment may be sent while fewer than a window of slots are unacknowledged. The peer's
//! acknowledgement is read only when the cached one does not suffice, because reading it costs a
//! cache miss whenever the peer has written it.

use super::half::Half;
use super::slot::{self, IN_SLOT_MAX, PAYLOAD_IN_RING};
use crate::{Header, HeaderFlags, Malformed, Op, SendError};
use rkey_base::fault::Fault;
use rkey_base::hint::prefetch_write;
use rkey_base::shared::OwnBytes;
use std::cell::Cell;

/// Payload is aligned to cache lines so that two fragments never share one.
const LINE: u64 = 64;
/// How many bytes to prefetch ahead in the payload ring: prefetching more costs more than it gains.
const PREFETCH_PAYLOAD: u64 = 1024;
/// Bursts of at most this many bytes start at the beginning of the empty payload ring, where the lines are in the caches nearest to the
/// processors. Longer ones continue where the last one ended: moving many lines between these caches takes three times as long as
/// fetching them from the cache that both share, to which they have been evicted.
const BURST_AT_START: u64 = 2048;

/// Writes fragments to our half.
#[derive(Debug)]
pub(crate) struct Sender {
    own: Half,
    /// How many fragments have been sent.
    produced: u64,
    /// How many fragments may have been sent in total: acknowledged + window; 0 once the link is down.
    limit: Cell<u64>,
    /// Set once nothing more can be sent.
    stopped: Cell<bool>,
    /// How many fragments are acknowledged, with their responses taken (see `End::read_peer_ack`).
    acked: Cell<u64>,
    /// How many payload ring bytes have been used in total, including gaps.
    head: u64,
    /// The number of these bytes that the peer has freed.
    tail: Cell<u64>,
    /// Where the last fragment that found the payload ring empty is.
    burst: u64,
    /// Whether the payload ring was used since it was last empty.
    is_used: Cell<bool>,
    /// The value of `head` after each recent fragment, by slot.
    ends: Box<[u64]>,
}

impl Sender {
    pub(crate) fn new(own: Half) -> Self {
        let geometry = own.geometry();
        Self {
            own,
            produced: 0,
            limit: Cell::new(geometry.window()),
            stopped: Cell::new(false),
            acked: Cell::new(0),
            head: 0,
            tail: Cell::new(0),
            burst: 0,
            is_used: Cell::new(false),
            ends: vec![0; geometry.slots as usize].into_boxed_slice(),
        }
    }

    /// See `End::start_at`.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, count: u64) {
        self.produced = count;
        self.acked.set(count);
        self.limit.set(count + self.own.geometry().window());
    }

    /// How many fragments have been sent.
    #[inline]
    pub(crate) fn produced(&self) -> u64 {
        self.produced
    }

    /// How many fragments have been acknowledged.
    #[inline]
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acked.get()
    }

    /// Records that everything below `acked` (which is at most `produced`) has been consumed.
    #[inline]
    pub(crate) fn set_acked(&self, acked: u64) {
        debug_assert!(acked <= self.produced && acked >= self.acked.get());
        if acked != self.acked.get() {
            self.acked.set(acked);
            if !self.stopped.get() {
                self.limit.set(acked + self.own.geometry().window());
            }
            // `acked` is at least 1 here, and the slot of the last acknowledged fragment cannot have been reused,
            // because the window is smaller than the ring.
            let last = (acked - 1) as usize & (self.ends.len() - 1);
            self.tail.set(self.tail.get().max(self.ends[last]));
            if self.is_empty() {
                let burst = self.head - self.burst;
                if self.is_used.replace(false) && burst <= BURST_AT_START {
                    // The next fragment goes to the start of the ring, where the last one probably was.
                    self.prefetch_payload(0, burst);
                }
            }
        }
    }

    /// Stops sending fragments.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.limit.set(0);
    }

    /// Whether a slot is free, according to the last ack word.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        self.produced < self.limit.get()
    }

    /// Whether a slot and payload room for any fragment are free, according to the last ack word.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        // Any fragment fits into the empty ring.
        self.has_slot()
            && (self.is_empty() || self.reserve(self.own.geometry().fragment_max).is_some())
    }

    /// Whether the payload ring is empty, according to the last ack word.
    #[inline]
    fn is_empty(&self) -> bool {
        self.head == self.tail.get()
    }

    /// The position of a fragment of `len` bytes: (start, new head), as total byte counts like `head`.
    #[inline]
    fn reserve(&self, len: u32) -> Option<(u64, u64)> {
        let size = u64::from(self.own.geometry().payload);
        let need = u64::from(len).next_multiple_of(LINE);
        let at = self.head & (size - 1);
        let is_empty = self.is_empty();
        let start = match is_empty && self.head - self.burst <= BURST_AT_START {
            true => self.head.next_multiple_of(size),
            // A fragment is contiguous; the remaining bytes before the end of the ring are skipped.
            false if at + need > size => self.head + (size - at),
            false => self.head,
        };
        if is_empty {
            return (need <= size).then_some((start, start + need));
        }
        (start + need - self.tail.get() <= size).then_some((start, start + need))
    }

    /// Sends one fragment. The caller has checked `has_slot`.
    ///
    /// # Errors
    /// `Full` when the payload ring has no room or the fragment is too long, or the fault of `fill`.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<u64, SendError> {
        debug_assert!(self.has_slot());
        let index = self.produced;
        let slot = self.own.slot(index);
        let extension;
        if header.len == 0 {
            extension = if header.op.has_operands() { 16 } else { 0 };
        } else if header.len <= IN_SLOT_MAX {
            // SAFETY: payload begins at most 48 bytes into our 256-byte slot and is at most 208 bytes;
            // only this sender writes our slots.
            let payload =
                unsafe { OwnBytes::new(slot.add(slot::payload_at(header)), header.len as usize) };
            fill(payload).map_err(SendError::Fault)?;
            extension = header.len as u16;
        } else {
            self.fill_payload_ring(slot, header, fill)?;
            extension = PAYLOAD_IN_RING;
        }
        self.publish_slot(slot, index, header, extension);
        Ok(index)
    }

    /// Fills the payload ring and stores the offset in the slot.
    fn fill_payload_ring(
        &mut self,
        slot: *mut u8,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        let geometry = self.own.geometry();
        if header.len > geometry.fragment_max {
            return Err(SendError::Full);
        }
        let (start, end) = self.reserve(header.len).ok_or(SendError::Full)?;
        let offset = start & (u64::from(geometry.payload) - 1);
        let payload = self
            .own
            .payload_place(offset as usize, header.len as usize)
            .ok_or(SendError::Full)?;
        fill(payload).map_err(SendError::Fault)?;
        // SAFETY: 8 bytes at offset 48 of our own slot.
        unsafe { slot::put_extension(slot, 0, offset) };
        self.is_used.set(true);
        if self.is_empty() {
            // The skipped bytes are free.
            self.tail.set(start);
            self.burst = start;
        } else {
            self.prefetch_ahead(end, header.len);
        }
        self.head = end;
        Ok(())
    }

    /// Prefetches the lines that the next fragment of this size will use, if they are free.
    #[inline]
    fn prefetch_ahead(&self, from: u64, len: u32) {
        let size = u64::from(self.own.geometry().payload);
        let at = from & (size - 1);
        let len = u64::from(len).min(PREFETCH_PAYLOAD).min(size - at);
        if from + len - self.tail.get() <= size {
            self.prefetch_payload(at, len);
        }
    }

    /// Prefetches lines of the payload ring.
    #[inline]
    fn prefetch_payload(&self, at: u64, len: u64) {
        if let Some(payload) = self.own.payload_place(at as usize, len as usize) {
            for line in (0..len as usize).step_by(LINE as usize) {
                prefetch_write(payload.as_ptr().wrapping_add(line));
            }
        }
    }

    /// Sends a fragment with a remote iovec. The caller has checked `has_slot`.
    ///
    /// # Errors
    /// `Full` for a list that no reader would accept.
    pub(crate) fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<u64, SendError> {
        let wanted = match header.op {
            Op::Send | Op::Write => header.len,
            Op::Read if header.len == 0 => header.total,
            _ => return Err(SendError::Full),
        };
        let mut sum = 0u64;
        for &(_, len) in remote_iovec {
            sum = sum.checked_add(len).ok_or(SendError::Full)?;
        }
        let bytes = remote_iovec.len() * 16;
        if remote_iovec.is_empty() || bytes > IN_SLOT_MAX as usize || sum != u64::from(wanted) {
            return Err(SendError::Full);
        }
        let index = self.produced;
        let slot = self.own.slot(index);
        for (i, &(addr, len)) in remote_iovec.iter().enumerate() {
            // SAFETY: at most 13 pairs (checked above), so at most 208 bytes from offset 48 on of
            // our own slot.
            unsafe {
                slot::put_extension(slot, 2 * i, addr);
                slot::put_extension(slot, 2 * i + 1, len);
            }
        }
        let header = Header {
            flags: header.flags | HeaderFlags::REMOTE_IOVEC,
            ..*header
        };
        self.publish_slot(slot, index, &header, bytes as u16);
        Ok(index)
    }

    #[inline(always)]
    fn publish_slot(&mut self, slot: *mut u8, index: u64, header: &Header, extension: u16) {
        // SAFETY: `slot` is the slot of `index` in our half, and we are its only writer.
        let first = unsafe { slot::write(slot, index, header, extension) };
        self.own
            .slot_word(index)
            .store(first, std::sync::atomic::Ordering::Release);
        let at = index as usize & (self.ends.len() - 1);
        self.ends[at] = self.head;
        self.produced = index + 1;
        // The slot after the next was read long ago (the window is half the ring), so acquire its lines before they are
        // needed. A fragment takes 55 ns without this, and 18 ns with it.
        let ahead = self.own.slot(index + 2);
        prefetch_write(ahead);
        if extension > 16 && extension != PAYLOAD_IN_RING {
            let used = slot::payload_at(header) + usize::from(extension);
            for line in (64..used).step_by(64) {
                prefetch_write(ahead.wrapping_add(line));
            }
        }
    }

    /// Extends a 32-bit acknowledged count to 64 bits, and checks it.
    #[inline]
    pub(crate) fn extend(&self, from: u64, low: u32) -> Result<u64, Malformed> {
        let count = from + u64::from(low.wrapping_sub(from as u32));
        if count > self.produced {
            return Err(Malformed::new(
                "it acknowledges fragments that were never sent",
            ));
        }
        Ok(count)
    }
}

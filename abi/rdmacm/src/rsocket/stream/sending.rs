//! The sending direction of a stream.

use super::super::wire::{Iomap, LEN_MAX, Message, Offer, RemoteSge, Violation};
use super::{Sizes, Source, TARGETS, Work, Write};
use std::collections::VecDeque;

/// The state of the sending direction.
#[derive(Debug)]
pub struct Sending {
    /// The size of the send ring.
    size: u32,
    /// The offset for the next data in the ring.
    at: u32,
    /// The number of free bytes in the ring.
    free: u32,
    /// The number of free work requests.
    requests: u32,
    /// The number of all work requests.
    requests_max: u32,
    /// The number of messages sent, modulo 2^16.
    sent: u16,
    /// The sequence number up to which messages may be sent.
    allowed: u16,
    /// The number of messages that the peer has room for.
    window: u16,
    /// The parts of the peer's ring that may be written.
    targets: VecDeque<RemoteSge>,
    /// The slot that the peer writes next.
    slot: u32,
    /// The peer's records of mapped areas: the address and key of the first, and their number.
    iomaps: RemoteSge,
}

impl Sending {
    /// The state before the first message.
    #[must_use]
    pub fn new(sizes: &Sizes, offer: &Offer) -> Self {
        let slots = u64::from(offer.targets.len) * RemoteSge::SIZE as u64;
        Self {
            size: sizes.send_bytes,
            at: 0,
            free: sizes.send_bytes,
            requests: sizes.send_requests,
            requests_max: sizes.send_requests,
            sent: 0,
            allowed: offer.credits,
            window: offer.credits,
            targets: VecDeque::from([offer.first]),
            slot: 1 % TARGETS,
            iomaps: RemoteSge {
                addr: offer.targets.addr.wrapping_add(slots),
                key: offer.targets.key,
                len: offer.iomaps.into(),
            },
        }
    }

    /// Whether data can be sent now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.may_send() && self.free > 0 && !self.targets.is_empty()
    }

    fn may_send(&self) -> bool {
        self.requests > 0 && self.sent != self.allowed
    }

    /// Whether all work requests have completed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests == self.requests_max
    }

    /// How many mapped areas the peer has room for.
    #[must_use]
    pub fn iomaps(&self) -> u16 {
        self.iomaps.len as u16
    }

    /// Adds the credits that the peer grants.
    ///
    /// # Errors
    /// [`Violation::Credits`]: it has no room for this many messages, or revokes credits.
    pub fn add_credits(&mut self, up_to: u16) -> Result<(), Violation> {
        let more = up_to.wrapping_sub(self.allowed);
        let ahead = up_to.wrapping_sub(self.sent);
        if ahead > self.window || more > ahead {
            return Err(Violation::Credits(up_to));
        }
        self.allowed = up_to;
        Ok(())
    }

    /// Reads the next target, if the peer has written one.
    ///
    /// # Errors
    /// [`Violation::Targets`]: all slots for targets are in use.
    pub fn read_target(&mut self, read: impl FnOnce(u32) -> RemoteSge) -> Result<(), Violation> {
        let target = read(self.slot);
        if target.len == 0 {
            return Ok(());
        }
        if self.targets.len() >= TARGETS as usize {
            return Err(Violation::Targets);
        }
        self.slot = (self.slot + 1) % TARGETS;
        self.targets.push_back(target);
        Ok(())
    }

    /// The offset in the ring, and the length (at most `want` bytes), of the next write of data.
    #[must_use]
    pub fn room(&self, want: usize) -> Option<(u32, u32)> {
        if !self.may_send() {
            return None;
        }
        let limit = self.targets.front()?.len.min(LEN_MAX);
        span(self.at, self.size, self.free, limit, want)
    }

    /// The next write of data, of up to `want` bytes.
    pub fn data(&mut self, want: usize) -> Option<Write> {
        let (at, len) = self.room(want)?;
        let target = self.targets.front_mut()?;
        let (to, key) = (target.addr, target.key);
        target.addr = target.addr.wrapping_add(len.into());
        target.len -= len;
        if target.len == 0 {
            self.targets.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        Some(self.write(at, len, to, key, Some(Message::Data(len))))
    }

    /// The offset in the ring, and the length (at most `want` bytes), of the next write to memory that the peer has mapped. Such a
    /// write needs no credits.
    #[must_use]
    pub fn direct_room(&self, want: u32) -> Option<(u32, u32)> {
        match self.requests {
            0 => None,
            _ => span(self.at, self.size, self.free, want, want as usize),
        }
    }

    /// Returns a write to memory that the peer has mapped.
    pub fn direct(&mut self, to: RemoteSge) -> Option<Write> {
        let (at, len) = self.direct_room(to.len)?;
        Some(self.write(at, len, to.addr, to.key, None))
    }

    fn write(&mut self, at: u32, len: u32, to: u64, key: u32, message: Option<Message>) -> Write {
        self.at = (self.at + len) % self.size;
        self.free -= len;
        self.requests -= 1;
        Write {
            source: Source::Ring { at, len },
            to,
            key,
            message,
            work: Work::Data(len),
        }
    }

    /// Returns the write that sends the record of a mapped area.
    pub fn map(&mut self, index: u16, area: Iomap) -> Option<Write> {
        if !self.may_send() || u32::from(index) >= self.iomaps.len {
            return None;
        }
        self.sent = self.sent.wrapping_add(1);
        self.requests -= 1;
        let offset = u64::from(index) * Iomap::SIZE as u64;
        Some(Write {
            source: Source::Iomap(area.to_record()),
            to: self.iomaps.addr.wrapping_add(offset),
            key: self.iomaps.key,
            message: Some(Message::Iomap(index.into())),
            work: Work::Data(0),
        })
    }

    /// Frees the oldest bytes of the ring when a work request has completed: work requests complete in order.
    pub fn completed(&mut self, len: u32) {
        self.requests += 1;
        self.free += len;
    }
}

/// The next contiguous part of a ring: its offset and length.
fn span(at: u32, size: u32, free: u32, limit: u32, want: usize) -> Option<(u32, u32)> {
    let want = u32::try_from(want).unwrap_or(u32::MAX);
    let len = want.min(limit).min(free).min(size - at);
    (len > 0).then_some((at, len))
}

//! The receiving direction of a stream.

use super::super::wire::{Message, Offer, RemoteSge, Violation};
use super::{Sizes, Source, Work, Write};
use std::collections::VecDeque;

/// The state of the receiving direction.
#[derive(Debug)]
pub struct Receiving {
    /// The size of half of the ring.
    half: u32,
    /// The ring, as the peer addresses it.
    ring: RemoteSge,
    /// The offset at which the program reads next.
    at: u32,
    /// The number of bytes that the program can read.
    waiting: u32,
    /// The lengths of the messages that the program has not fully read.
    messages: VecDeque<u32>,
    /// The number of bytes that the peer may write.
    writable: u32,
    /// The number of bytes that are neither readable nor granted to the peer.
    free: u32,
    /// The offset of the half that is granted next.
    next: u32,
    /// The number of messages that have arrived, modulo 2^16.
    arrived: u16,
    /// The number of messages that the program has read, modulo 2^16.
    read: u16,
    /// The sequence number up to which the peer may send.
    granted: u16,
    /// The number of messages that there is room for.
    window: u16,
    /// The peer's slots for targets: the address of the first, and their number.
    slots: RemoteSge,
    /// The slot that is written next.
    slot: u32,
    /// The number of mapped areas that there is room for.
    iomaps: u16,
    /// Whether the peer has shut down sending.
    is_over: bool,
}

impl Receiving {
    /// The state before the first message. Our offer has granted the first half of the ring.
    #[must_use]
    pub fn new(sizes: &Sizes, ring: RemoteSge, offer: &Offer) -> Self {
        let half = sizes.receive_bytes / 2;
        Self {
            half,
            ring,
            at: 0,
            waiting: 0,
            messages: VecDeque::new(),
            writable: half,
            free: half,
            next: half,
            arrived: 0,
            read: 0,
            granted: sizes.credits,
            window: sizes.credits,
            slots: offer.targets,
            slot: 1 % offer.targets.len,
            iomaps: sizes.iomaps,
            is_over: false,
        }
    }

    /// How many bytes can be read now.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Whether the peer has shut down sending.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Records that the peer has shut down sending.
    pub fn finish(&mut self) {
        self.is_over = true;
    }

    /// Counts a message.
    fn count(&mut self) -> Result<(), Violation> {
        if self.arrived == self.granted {
            return Err(Violation::Messages);
        }
        self.arrived = self.arrived.wrapping_add(1);
        Ok(())
    }

    /// Handles a message with data.
    ///
    /// # Errors
    /// The peer may not send this message.
    pub fn arrived(&mut self, len: u32) -> Result<(), Violation> {
        if len == 0 || len > self.writable {
            return Err(Violation::Length(len));
        }
        self.count()?;
        self.writable -= len;
        self.waiting += len;
        self.messages.push_back(len);
        Ok(())
    }

    /// Handles the message for a record of a mapped area.
    ///
    /// # Errors
    /// The peer may not send this message.
    pub fn mapped(&mut self, index: u32) -> Result<(), Violation> {
        if index >= self.iomaps.into() {
            return Err(Violation::Iomap(index));
        }
        self.count()?;
        self.read = self.read.wrapping_add(1);
        Ok(())
    }

    /// The next contiguous part after the first `skip` bytes: its offset and length.
    #[must_use]
    pub fn peek(&self, skip: u32, want: usize) -> Option<(u32, u32)> {
        let size = self.half * 2;
        let left = self.waiting.checked_sub(skip)?;
        let at = (self.at + skip) % size;
        let want = u32::try_from(want).unwrap_or(u32::MAX);
        let len = want.min(left).min(size - at);
        (len > 0).then_some((at, len))
    }

    /// Frees the next `len` bytes, which the program has read.
    pub fn consume(&mut self, len: u32) {
        let mut len = len.min(self.waiting);
        self.waiting -= len;
        self.free += len;
        self.at = (self.at + len) % (self.half * 2);
        while let Some(front) = self.messages.front_mut() {
            if *front > len {
                *front -= len;
                break;
            }
            len -= *front;
            self.messages.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }

    /// Frees all received bytes, which the program will not read.
    pub fn discard(&mut self) {
        self.consume(self.waiting);
    }

    /// Returns the write that renews the peer's credits, if half of the ring or half of the messages are free.
    pub fn credits(&mut self) -> Option<Write> {
        if self.is_over {
            return None;
        }
        let granted = self.read.wrapping_add(self.window);
        let more = granted.wrapping_sub(self.granted);
        let has_half = self.free >= self.half;
        if !has_half && (more == 0 || more < self.window / 2) {
            return None;
        }
        self.granted = granted;
        let mut write = Write {
            source: Source::Nothing,
            to: 0,
            key: 0,
            message: Some(Message::Credits(granted)),
            work: Work::Control,
        };
        if has_half {
            let target = RemoteSge {
                addr: self.ring.addr.wrapping_add(self.next.into()),
                key: self.ring.key,
                len: self.half,
            };
            write.source = Source::Target(target.to_record());
            write.to = slot_address(&self.slots, self.slot);
            write.key = self.slots.key;
            self.slot = (self.slot + 1) % self.slots.len;
            self.free -= self.half;
            self.writable += self.half;
            self.next = (self.next + self.half) % (self.half * 2);
        }
        Some(write)
    }
}

fn slot_address(slots: &RemoteSge, slot: u32) -> u64 {
    let offset = u64::from(slot) * RemoteSge::SIZE as u64;
    slots.addr.wrapping_add(offset)
}

//! The direction from the peer to the program.

use super::super::wire::{Message, Offer, Piece, Violation};
use super::{Sizes, Source, Work, Write};
use std::collections::VecDeque;

/// What has arrived, and what the peer may still send.
#[derive(Debug)]
pub struct Receiving {
    /// Half of the ring.
    half: u32,
    /// The ring, as the peer names it.
    ring: Piece,
    /// Where the program reads next.
    at: u32,
    /// Bytes that the program can read.
    waiting: u32,
    /// The lengths of the messages that the program has not read to the end.
    messages: VecDeque<u32>,
    /// Bytes that the peer may write.
    given: u32,
    /// Bytes that neither side uses.
    free: u32,
    /// The half that is given next.
    next: u32,
    /// The number of messages that arrived, modulo 2^16.
    arrived: u16,
    /// Of these, the messages that the program has read.
    read: u16,
    /// Up to where the peer may send.
    promised: u16,
    /// The messages that there is room for.
    window: u16,
    /// Where the peer wants targets: the first slot, and how many there are.
    slots: Piece,
    /// The slot that is written next.
    slot: u32,
    /// The mapped areas that there is room for.
    iomaps: u16,
    /// Whether the peer has said that nothing more comes.
    is_over: bool,
}

impl Receiving {
    /// Before the first message. The peer knows the first half from our offer.
    #[must_use]
    pub fn new(sizes: &Sizes, ring: Piece, offer: &Offer) -> Self {
        let half = sizes.receive_bytes / 2;
        Self {
            half,
            ring,
            at: 0,
            waiting: 0,
            messages: VecDeque::new(),
            given: half,
            free: half,
            next: half,
            arrived: 0,
            read: 0,
            promised: sizes.credits,
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

    /// Whether the peer has said that nothing more comes.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The peer says that nothing more comes.
    pub fn finish(&mut self) {
        self.is_over = true;
    }

    /// Counts a message.
    fn count(&mut self) -> Result<(), Violation> {
        if self.arrived == self.promised {
            return Err(Violation::Messages);
        }
        self.arrived = self.arrived.wrapping_add(1);
        Ok(())
    }

    /// A message with data arrived.
    ///
    /// # Errors
    /// The peer may not send it.
    pub fn arrived(&mut self, len: u32) -> Result<(), Violation> {
        if len == 0 || len > self.given {
            return Err(Violation::Length(len));
        }
        self.count()?;
        self.given -= len;
        self.waiting += len;
        self.messages.push_back(len);
        Ok(())
    }

    /// The record of a mapped area arrived.
    ///
    /// # Errors
    /// The peer may not send it.
    pub fn mapped(&mut self, index: u32) -> Result<(), Violation> {
        if index >= self.iomaps.into() {
            return Err(Violation::Iomap(index));
        }
        self.count()?;
        self.read = self.read.wrapping_add(1);
        Ok(())
    }

    /// The next contiguous piece after the first `skip` bytes.
    #[must_use]
    pub fn peek(&self, skip: u32, want: usize) -> Option<(u32, u32)> {
        let size = self.half * 2;
        let left = self.waiting.checked_sub(skip)?;
        let at = (self.at + skip) % size;
        let want = u32::try_from(want).unwrap_or(u32::MAX);
        let len = want.min(left).min(size - at);
        (len > 0).then_some((at, len))
    }

    /// The program has read so many bytes.
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

    /// The program reads no more.
    pub fn discard(&mut self) {
        self.consume(self.waiting);
    }

    /// The write that gives back what the program has read, if that is half of the ring or of the messages.
    pub fn credits(&mut self) -> Option<Write> {
        if self.is_over {
            return None;
        }
        let promised = self.read.wrapping_add(self.window);
        let more = promised.wrapping_sub(self.promised);
        let has_half = self.free >= self.half;
        if !has_half && (more == 0 || more < self.window / 2) {
            return None;
        }
        self.promised = promised;
        let mut write = Write {
            source: Source::Nothing,
            to: 0,
            key: 0,
            message: Some(Message::Credits(promised)),
            work: Work::Control,
        };
        if has_half {
            let target = Piece {
                addr: self.ring.addr.wrapping_add(self.next.into()),
                key: self.ring.key,
                len: self.half,
            };
            write.source = Source::Target(target.to_record());
            write.to = slot_address(&self.slots, self.slot);
            write.key = self.slots.key;
            self.slot = (self.slot + 1) % self.slots.len;
            self.free -= self.half;
            self.given += self.half;
            self.next = (self.next + self.half) % (self.half * 2);
        }
        Some(write)
    }
}

fn slot_address(slots: &Piece, slot: u32) -> u64 {
    let offset = u64::from(slot) * Piece::SIZE as u64;
    slots.addr.wrapping_add(offset)
}

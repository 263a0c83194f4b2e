//! One end of a stream as a state machine: no memory, no queue pair, no thread.
//!
//! Each end has a ring that the other writes with RDMA. The owner gives the ring away in halves, called *targets*, and gives *credits*:
//! how many messages the other may send. Both return when the program has read. What the machine wants to send is a [`Write`];
//! its owner carries it out, and reports the immediate values and the completions that arrive.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sending`], [`receiving`] | the two directions |

pub mod receiving;
pub mod sending;
#[cfg(test)]
mod tests;

use super::wire::{Message, Offer, Piece, Violation};
use receiving::Receiving;
use sending::Sending;

/// How many messages other than data an end has under way at most.
pub const CONTROLS: u32 = 4;
/// How many targets an end has room for.
pub const TARGETS: u32 = 2;

/// The sizes of an end.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Work requests for data in the send queue.
    pub send_requests: u32,
    /// Messages that the other end may send before this one gives more credits.
    pub credits: u16,
    /// Bytes of the ring with data to be sent.
    pub send_bytes: u32,
    /// Bytes of the ring that the other end writes; even.
    pub receive_bytes: u32,
    /// Mapped areas of the other end that there is room for.
    pub iomaps: u16,
}

/// What a finished work request gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A request, and so many bytes of the ring.
    Data(u32),
    /// One of the few requests that are not data.
    Control,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The ring with data to be sent.
    Ring {
        /// The offset in the ring.
        at: u32,
        /// The length.
        len: u32,
    },
    /// These bytes.
    Target([u8; Piece::SIZE]),
    /// These bytes.
    Iomap([u8; super::wire::Iomap::SIZE]),
    /// Only the immediate value counts.
    Nothing,
}

/// An RDMA write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its bytes.
    pub source: Source,
    /// The peer's address.
    pub to: u64,
    /// The key of the peer's memory.
    pub key: u32,
    /// What the peer is told.
    pub message: Option<Message>,
    /// What its completion gives back.
    pub work: Work,
}

/// What to do with a half of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Receive no more.
    Read,
    /// Send no more.
    Write,
    /// Both.
    Both,
}

/// One end of a stream.
#[derive(Debug)]
pub struct Stream {
    sending: Sending,
    receiving: Receiving,
    /// How many controls may be sent.
    controls: u32,
    /// A control that waits to be sent.
    last_words: Option<Message>,
    /// Whether more data may come.
    reads: bool,
    /// Whether the program may send.
    writes: bool,
    /// Whether the connection has ended.
    ended: bool,
    /// Whether the program has said that it sends no more.
    is_shut: bool,
}

impl Stream {
    /// An end, from its sizes, its ring as the other end names it, and the other end's offer.
    #[must_use]
    pub fn new(sizes: &Sizes, ring: Piece, offer: &Offer) -> Self {
        Self {
            sending: Sending::new(sizes, offer),
            receiving: Receiving::new(sizes, ring, offer),
            controls: CONTROLS,
            last_words: None,
            reads: true,
            writes: true,
            ended: false,
            is_shut: false,
        }
    }

    /// Takes an immediate value. `target` reads and clears a slot for targets.
    ///
    /// # Errors
    /// The peer breaks the protocol. The connection is to be ended.
    pub fn received(
        &mut self,
        immediate: u32,
        target: impl FnOnce(u32) -> Piece,
    ) -> Result<(), Violation> {
        if self.ended {
            return Ok(());
        }
        match Message::decode(immediate)? {
            Message::Data(len) => {
                if self.receiving.is_over() {
                    return Err(Violation::AfterEnd);
                }
                self.receiving.arrived(len)?;
                if !self.reads {
                    // The program has shut this half, and will not read it.
                    self.receiving.discard();
                }
            }
            Message::Credits(up_to) => {
                self.sending.allow(up_to)?;
                self.sending.aim(target)?;
            }
            Message::Iomap(index) => self.receiving.mapped(index)?,
            Message::Disconnect => self.end(),
            Message::KeepAlive => {}
            Message::Shutdown => {
                self.receiving.finish();
                self.reads = false;
                if !self.writes {
                    self.end();
                }
            }
        }
        Ok(())
    }

    /// Takes the completion of a work request.
    pub fn completed(&mut self, work: Work) {
        match work {
            Work::Data(len) => self.sending.completed(len),
            Work::Control => self.controls += 1,
        }
    }

    /// The connection has ended. What has arrived can still be read.
    pub fn end(&mut self) {
        self.ended = true;
        self.reads = false;
        self.writes = false;
        self.last_words = None;
        self.receiving.finish();
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the program may send.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writes
    }

    /// Whether the program has said that it sends no more.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Whether more data may come.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.reads
    }

    /// How many bytes can be read now.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.receiving.waiting()
    }

    /// Whether bytes can be sent now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.writes && self.sending.has_room()
    }

    /// Whether all work requests have completed, and no control waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sending.is_idle() && self.controls == CONTROLS && self.last_words.is_none()
    }

    /// Where in the ring the bytes of the next [`send`](Self::send) belong, and how many.
    #[must_use]
    pub fn room(&self, want: usize) -> Option<(u32, u32)> {
        match self.writes {
            true => self.sending.room(want),
            false => None,
        }
    }

    /// Where in the ring the bytes of the next [`send_to`](Self::send_to) belong, and how many.
    #[must_use]
    pub fn direct_room(&self, want: u32) -> Option<(u32, u32)> {
        match self.writes {
            true => self.sending.direct_room(want),
            false => None,
        }
    }

    /// The next write of data, of up to `want` bytes. The caller puts the bytes into the ring first.
    #[must_use]
    pub fn send(&mut self, want: usize) -> Option<Write> {
        match self.writes {
            true => self.sending.data(want),
            false => None,
        }
    }

    /// A write of data to memory that the peer has mapped: up to `len` bytes.
    #[must_use]
    pub fn send_to(&mut self, to: Piece) -> Option<Write> {
        match self.writes {
            true => self.sending.direct(to),
            false => None,
        }
    }

    /// A write that tells the peer of a mapped area.
    #[must_use]
    pub fn map(&mut self, index: u16, area: super::wire::Iomap) -> Option<Write> {
        match self.writes {
            true => self.sending.map(index, area),
            false => None,
        }
    }

    /// How many areas the peer has room for.
    #[must_use]
    pub fn iomaps_of_peer(&self) -> u16 {
        self.sending.iomaps()
    }

    /// The next contiguous piece of arrived data after the first `skip` bytes: where in the ring, and how long.
    #[must_use]
    pub fn peek(&self, skip: u32, want: usize) -> Option<(u32, u32)> {
        self.receiving.peek(skip, want)
    }

    /// The program has read so many bytes.
    pub fn consume(&mut self, len: u32) {
        self.receiving.consume(len);
    }

    /// Shuts one or both halves.
    pub fn shut(&mut self, how: How) {
        if self.ended {
            return;
        }
        if how != How::Write {
            self.reads = false;
            self.receiving.discard();
        }
        let wrote = self.writes;
        if how != How::Read {
            self.is_shut = true;
            self.writes = false;
        }
        let words = match (self.writes, self.reads) {
            (true, _) => return,
            (false, true) if wrote => Message::Shutdown,
            (false, true) => return,
            (false, false) => Message::Disconnect,
        };
        self.last_words = Some(words);
    }

    /// The next control that is due: credits, or the end.
    #[must_use]
    pub fn due(&mut self) -> Option<Write> {
        if self.controls == 0 || self.ended {
            return None;
        }
        let write = match self.last_words.take() {
            Some(message) => {
                if message == Message::Disconnect {
                    self.end();
                }
                Write {
                    source: Source::Nothing,
                    to: 0,
                    key: 0,
                    message: Some(message),
                    work: Work::Control,
                }
            }
            None => self.receiving.credits()?,
        };
        self.controls -= 1;
        Some(write)
    }
}

//! One end of a stream, as a state machine without memory, queue pair or thread.
//!
//! Each end has a ring that the other end writes with RDMA. Its owner grants the ring to the peer in halves, called *targets*, and
//! grants *credits*: how many messages the peer may send. It renews both after the program has read the data. To send something, the
//! state machine returns a [`Write`]; its caller posts it, and reports the immediate values and the completions that arrive.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sending`], [`receiving`] | the two directions |

pub mod receiving;
pub mod sending;
#[cfg(test)]
mod tests;

use super::wire::{Message, Offer, RemoteSge, Violation};
use receiving::Receiving;
use sending::Sending;

/// The maximum number of control messages, those without data, that an end may have outstanding.
pub const CONTROLS: u32 = 4;
/// The number of targets that an end has room for.
pub const TARGETS: u32 = 2;

/// The sizes of one end.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The number of work requests for data in the send queue.
    pub send_requests: u32,
    /// The number of messages that the peer may send before this end grants more credits.
    pub credits: u16,
    /// The size of the send ring, in bytes.
    pub send_bytes: u32,
    /// The size of the receive ring, which the peer writes, in bytes. Even.
    pub receive_bytes: u32,
    /// The number of areas that the peer may map.
    pub iomaps: u16,
}

/// What the completion of a work request frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A work request for data, and this many bytes of the send ring.
    Data(u32),
    /// A work request for a control message.
    Control,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The send ring.
    Ring {
        /// The offset in the ring.
        at: u32,
        /// The length.
        len: u32,
    },
    /// The record of a target.
    Target([u8; RemoteSge::SIZE]),
    /// The record of a mapped area.
    Iomap([u8; super::wire::Iomap::SIZE]),
    /// No bytes: only the immediate value matters.
    Nothing,
}

/// An RDMA write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where the bytes of the write come from.
    pub source: Source,
    /// The address in the peer's memory.
    pub to: u64,
    /// The remote key.
    pub key: u32,
    /// The immediate value, if there is one.
    pub message: Option<Message>,
    /// What the completion of the write frees.
    pub work: Work,
}

/// Which directions to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Receiving.
    Read,
    /// Sending.
    Write,
    /// Both.
    Both,
}

/// One end of a stream.
#[derive(Debug)]
pub struct Stream {
    sending: Sending,
    receiving: Receiving,
    /// How many more control messages may be outstanding.
    controls: u32,
    /// `Shutdown` or `Disconnect`, until it is sent.
    final_control: Option<Message>,
    /// Whether more data may come.
    reads: bool,
    /// Whether the program may send.
    writes: bool,
    /// Whether the connection has ended.
    ended: bool,
    /// Whether the program has shut down sending.
    is_shut: bool,
}

impl Stream {
    /// Creates an end from its sizes, its receive ring as the peer addresses it, and the peer's offer.
    #[must_use]
    pub fn new(sizes: &Sizes, ring: RemoteSge, offer: &Offer) -> Self {
        Self {
            sending: Sending::new(sizes, offer),
            receiving: Receiving::new(sizes, ring, offer),
            controls: CONTROLS,
            final_control: None,
            reads: true,
            writes: true,
            ended: false,
            is_shut: false,
        }
    }

    /// Handles an immediate value that arrived. `target` reads and clears a slot for targets.
    ///
    /// # Errors
    /// The peer violated the protocol. The caller must end the connection.
    pub fn received(
        &mut self,
        immediate: u32,
        target: impl FnOnce(u32) -> RemoteSge,
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
                    // The program has shut down receiving, and will not read the data.
                    self.receiving.discard();
                }
            }
            Message::Credits(up_to) => {
                self.sending.add_credits(up_to)?;
                self.sending.read_target(target)?;
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

    /// Handles the completion of a work request.
    pub fn completed(&mut self, work: Work) {
        match work {
            Work::Data(len) => self.sending.completed(len),
            Work::Control => self.controls += 1,
        }
    }

    /// Ends the connection. The program can still read what has arrived.
    pub fn end(&mut self) {
        self.ended = true;
        self.reads = false;
        self.writes = false;
        self.final_control = None;
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

    /// Whether the program has shut down sending.
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

    /// Whether all work requests have completed, and no control message is pending.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sending.is_idle() && self.controls == CONTROLS && self.final_control.is_none()
    }

    /// Whether a call that sends would not wait: there is room, or the call fails at once.
    #[must_use]
    pub fn accepts_data(&self) -> bool {
        self.has_room() || !self.writes
    }

    /// The offset in the ring, and the length, of the bytes of the next [`send`](Self::send).
    #[must_use]
    pub fn room(&self, want: usize) -> Option<(u32, u32)> {
        match self.writes {
            true => self.sending.room(want),
            false => None,
        }
    }

    /// The offset in the ring, and the length, of the bytes of the next [`send_to`](Self::send_to).
    #[must_use]
    pub fn direct_room(&self, want: u32) -> Option<(u32, u32)> {
        match self.writes {
            true => self.sending.direct_room(want),
            false => None,
        }
    }

    /// Returns the next write of data, of up to `want` bytes. The caller copies the bytes into the send ring, and posts the write.
    #[must_use]
    pub fn send(&mut self, want: usize) -> Option<Write> {
        match self.writes {
            true => self.sending.data(want),
            false => None,
        }
    }

    /// Returns a write of data to memory that the peer has mapped, of up to `to.len` bytes.
    #[must_use]
    pub fn send_to(&mut self, to: RemoteSge) -> Option<Write> {
        match self.writes {
            true => self.sending.direct(to),
            false => None,
        }
    }

    /// Returns the write that sends the record of a mapped area.
    #[must_use]
    pub fn map(&mut self, index: u16, area: super::wire::Iomap) -> Option<Write> {
        match self.writes {
            true => self.sending.map(index, area),
            false => None,
        }
    }

    /// How many areas this end may map.
    #[must_use]
    pub fn iomaps_of_peer(&self) -> u16 {
        self.sending.iomaps()
    }

    /// The next contiguous part of the received data after the first `skip` bytes: its offset in the ring, and its length.
    #[must_use]
    pub fn peek(&self, skip: u32, want: usize) -> Option<(u32, u32)> {
        self.receiving.peek(skip, want)
    }

    /// Frees the next `len` received bytes, which the program has read.
    pub fn consume(&mut self, len: u32) {
        self.receiving.consume(len);
    }

    /// Shuts down one or both directions.
    pub fn shut(&mut self, how: Shutdown) {
        if self.ended {
            return;
        }
        if how != Shutdown::Write {
            self.reads = false;
            self.receiving.discard();
        }
        let wrote = self.writes;
        if how != Shutdown::Read {
            self.is_shut = true;
            self.writes = false;
        }
        let words = match (self.writes, self.reads) {
            (true, _) => return,
            (false, true) if wrote => Message::Shutdown,
            (false, true) => return,
            (false, false) => Message::Disconnect,
        };
        self.final_control = Some(words);
    }

    /// Returns the next control message that is due: credits, `Shutdown` or `Disconnect`.
    #[must_use]
    pub fn due(&mut self) -> Option<Write> {
        if self.controls == 0 || self.ended {
            return None;
        }
        let write = match self.final_control.take() {
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

//! A receive of the program, the place of a message in it, and a message that has no receive yet.

use super::Host;
use crate::header::Header;
use crate::matching::AfterMatch;
use crate::sges::{Sges, part};
use core::net::SocketAddr;
use rkey_engine::Sge;
use smallvec::smallvec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A receive that waits for a message, or for several.
pub struct Receive<H: Host> {
    sges: Sges,
    room: usize,
    /// The host's data for reports to the program.
    pub attached: H::Receive,
    /// For a buffer that takes several messages: how many bytes are used, and what the messages share.
    multi: Option<(usize, Arc<Buffer>)>,
}

impl<H: Host> Receive<H> {
    /// A receive into `room` bytes, for one message or several.
    #[must_use]
    pub fn new(sges: Sges, room: usize, several: bool, attached: H::Receive) -> Self {
        Self {
            sges,
            room,
            attached,
            multi: several.then(Default::default),
        }
    }

    /// A receive into one contiguous buffer, for one message.
    #[inline]
    pub(super) fn of_one(sge: Sge, attached: H::Receive) -> Self {
        Self {
            sges: smallvec![sge],
            room: sge.len as usize,
            attached,
            multi: None,
        }
    }

    /// Whether the receive is for one message, and a message of this length fits.
    #[inline]
    pub(super) fn takes_whole(&self, len: usize) -> bool {
        self.multi.is_none() && len <= self.room
    }

    /// The memory of the receive.
    #[inline]
    pub(super) fn sges(&self) -> &[Sge] {
        &self.sges
    }

    /// Cancels the receive and reports that to the program.
    pub fn cancel(self, host: &H, tagged: bool) {
        host.canceled(self.attached, tagged, self.multi.is_some());
    }

    /// Where a message is stored in this receive, and whether the receive takes more messages.
    pub(super) fn landing(
        &mut self,
        host: &H,
        source: &SocketAddr,
        header: &Header,
    ) -> (Landing<H>, AfterMatch) {
        let attached = &mut self.attached;
        let Some((used, buffer)) = &mut self.multi else {
            let landing = Landing {
                sges: std::mem::take(&mut self.sges),
                room: self.room,
                len: 0,
                overflow: 0,
                matched: host.matched(attached, 0, false, source, header),
                buffer: None,
                turn: None,
            };
            return (landing, AfterMatch::Remove);
        };
        let room = self.room - *used;
        let len = room.min(header.len as usize);
        buffer.pending.fetch_add(1, Ordering::AcqRel);
        let landing = Landing {
            sges: part(&self.sges, *used, len),
            room: len,
            len: 0,
            overflow: 0,
            matched: host.matched(attached, *used, true, source, header),
            buffer: Some(Arc::clone(buffer)),
            turn: None,
        };
        *used += len;
        if self.room - *used >= host.least_room().max(1) {
            return (landing, AfterMatch::Keep);
        }
        buffer.full.store(true, Ordering::Release);
        (landing, AfterMatch::Remove)
    }
}

/// What messages in the same buffer share. Endpoints that share receives share it as well.
#[derive(Default)]
pub(super) struct Buffer {
    /// How many messages still wait for their payload.
    pending: AtomicU32,
    /// Whether the buffer takes no more messages.
    full: AtomicBool,
}

/// The destination of a message in its receive.
pub(super) struct Landing<H: Host> {
    pub(super) sges: Sges,
    /// How many bytes fit.
    pub(super) room: usize,
    /// How many bytes were received.
    pub(super) len: usize,
    /// How many bytes do not fit.
    pub(super) overflow: usize,
    matched: H::Matched,
    /// Set if other messages may share the buffer.
    buffer: Option<Arc<Buffer>>,
    /// The receive's turn, if reports to the program are ordered.
    pub(super) turn: Option<u64>,
}

impl<H: Host> Landing<H> {
    /// Ends the message; also returns whether it is the last one of a full buffer.
    #[inline]
    pub(super) fn finish(self) -> (H::Matched, bool) {
        let last = self.buffer.is_some_and(|buffer| {
            let last = buffer.pending.fetch_sub(1, Ordering::AcqRel) == 1;
            last && buffer.full.load(Ordering::Acquire)
        });
        (self.matched, last)
    }
}

/// A message that has no receive yet, or is about to be delivered to one.
pub enum Unexpected {
    /// With its payload.
    Eager {
        /// The header.
        header: Header,
        /// The payload.
        payload: Vec<u8>,
        /// The connection that the message arrived on.
        connection: usize,
    },
    /// An RTS: the payload will be read under this key.
    Rts {
        /// The header.
        header: Header,
        /// The key of the sender's region.
        key: u32,
        /// The connection that the message arrived on.
        connection: usize,
    },
}

impl Unexpected {
    /// The header of the message.
    #[must_use]
    pub fn header(&self) -> &Header {
        match self {
            Self::Eager { header, .. } | Self::Rts { header, .. } => header,
        }
    }

    pub(super) fn connection(&self) -> usize {
        let (Self::Eager { connection, .. } | Self::Rts { connection, .. }) = self;
        *connection
    }
}

//! Messages straight from the link to where they belong: what is short, asks for no answer and finds its receive (or
//! finds none, and is kept) needs no buffer in between. Everything else comes through a buffer.
//!
//! This runs while the device is locked. Nothing here may post to it, or ask it anything.

use super::*;
use rkey_device::base::memory::ProcessMemory;
use rkey_device::core::{Denial, NamedKey, Reason};
use rkey_device::engine::{Inbox, Message};
use rkey_rdm::header::{self, Header};

/// The inbox of an endpoint during one look at its completion queue.
pub(super) struct Direct<'a> {
    pub(super) ep: &'a Endpoint,
    pub(super) live: &'a Live,
    pub(super) state: &'a mut State,
    /// Receives into memory that may not be written: told when the device is no longer locked.
    pub(super) refused: Vec<Denial>,
}

impl Inbox<ProcessMemory> for Direct<'_> {
    fn take(&mut self, message: &Message<'_, ProcessMemory>) -> bool {
        self.ep.take_directly(self, message).is_some()
    }
}

impl Endpoint {
    /// Takes a message, or leaves it, and everything else, as it is.
    #[inline]
    fn take_directly(
        &self,
        inbox: &mut Direct<'_>,
        message: &Message<'_, ProcessMemory>,
    ) -> Option<()> {
        let (live, state) = (inbox.live, &mut *inbox.state);
        // Receives that are shared are matched together with messages of other endpoints.
        if live.srx.is_some() {
            return None;
        }
        let connection = state.connections.find(message.qpn())?;
        let bytes = message.bytes();
        let payload = bytes.slice(header::LEN, bytes.len().checked_sub(header::LEN)?)?;
        let mut head = [0; header::LEN];
        bytes.slice(0, header::LEN)?.get(0, &mut head);
        let header = Header::of_message(&head, payload.len())?;
        let it = &mut state.connections[connection];
        let limited = self.ep_type != FI_EP_DGRAM;
        if !it.state().hears() {
            return None;
        }
        // An answer has to be posted, and a peer without credit loses its connection.
        if header.confirm || limited && !it.window.has_room(header.len) {
            return None;
        }
        let source = it.peer;
        let find = |receive: &mut Receive| self.landing(live, receive, &source, &header);
        let queue = state.queue(header.tagged);
        let landing = queue.receive_for(&source, header.tag, find);
        if landing.is_none() && !limited && queue.unexpected() >= DATAGRAMS_MAX {
            return None;
        }
        if limited {
            state.connections[connection].window.arrive(header.len);
        }
        let Some(landing) = landing else {
            let payload = payload.to_vec();
            self.keep(state, connection, header, payload);
            return Some(());
        };
        self.place_with(live, state, landing, payload.len(), |sges, fits| {
            let fitting = payload.slice(0, fits).unwrap_or(payload);
            let placed = message.place(self.group.id, sges, fitting);
            placed.map_err(|denial| self.why_not(*denial, &mut inbox.refused))
        });
        if limited {
            let window = &mut state.connections[connection].window;
            window.taken(header.len);
            // It is given back when the device can be used again.
            state.owing |= window.is_due();
        }
        Some(())
    }

    /// Why memory could not be written.
    #[cold]
    fn why_not(&self, denial: Denial, refused: &mut Vec<Denial>) -> FiError {
        // What the program names without a region is there or is not.
        let unnamed = matches!(denial.key, NamedKey::Local(key) if key == self.group.everything());
        if unnamed || matches!(denial.reason, Reason::Fault { .. }) {
            return FiError::FAULT;
        }
        refused.push(denial);
        FiError::ACCES
    }
}

//! Credit as the endpoint uses it: whom it lets send, and when it gives credit back.
//!
//! Messages by rendezvous are bounded by what a sender may have under way. A peer that takes more than its credit loses the
//! connection. What peers leave unread when they go is bounded for all of them together: beyond that no new peer is
//! let in.

use super::receive::Kept;
use super::*;
use rkey_rdm::header::{Header, Kind};

/// Messages by rendezvous that one peer may have here; no sender has so much under way.
pub(super) const RENDEZVOUS_MAX: u32 = 2 * OPERATIONS_MAX as u32;

impl Endpoint {
    /// A message of a peer has come; without credit for it, the connection ends.
    #[inline]
    pub(super) fn admit(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        len: u32,
    ) -> bool {
        let admitted = state.connections[connection].window.arrive(len);
        if !admitted {
            self.exceeded(live, state, connection);
        }
        admitted
    }

    /// A peer does not keep the rules.
    #[cold]
    pub(super) fn exceeded(&self, live: &Live, state: &mut State, connection: usize) {
        self.cut_off(live, state, connection, "it sends more than it may");
    }

    /// The program has taken a message of a peer.
    #[inline]
    pub(super) fn taken(&self, live: &Live, state: &mut State, connection: usize, len: u32) {
        let it = &mut state.connections[connection];
        it.window.taken(len);
        if it.window.is_due() && !it.state().is_lost() {
            self.pay(live, state, connection);
        }
    }

    #[cold]
    fn pay(&self, live: &Live, state: &mut State, connection: usize) {
        if live
            .rx
            .as_ref()
            .is_some_and(|rx| rx.cq.holds_answers_back())
        {
            state.owing = true;
            return;
        }
        let (messages, bytes) = state.connections[connection].window.give_back();
        let header = Header {
            data: messages.into(),
            len: bytes,
            ..Header::new(Kind::Credit)
        };
        self.say(state, connection, &header, &[]);
    }

    /// A message that was kept goes to its receive.
    pub(super) fn unkeep(&self, live: &Live, state: &mut State, kept: &Kept) {
        let connection = kept.connection();
        let it = &mut state.connections[connection];
        it.kept -= 1;
        match kept {
            Kept::Rts { .. } => it.rendezvous -= 1,
            Kept::Here { header, .. } if self.ep_type != FI_EP_DGRAM => {
                self.taken(live, state, connection, header.len);
            }
            Kept::Here { .. } => {}
        }
    }

    /// Tells a peer that an operation of its is done: later, if nobody reads of it.
    pub(super) fn send_fin(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        id: u64,
        error: u64,
    ) {
        let done = Header {
            id,
            data: error,
            ..Header::new(Kind::Fin)
        };
        if state.connections[connection].state().is_lost() {
            return;
        }
        if live
            .rx
            .as_ref()
            .is_some_and(|rx| rx.cq.holds_answers_back())
        {
            state.owing = true;
            state.connections[connection].kept += 1;
            state.owed.push((connection, done));
        } else {
            self.say(state, connection, &done, &[]);
        }
    }

    /// Gives peers what had to wait for room in the completion queue.
    #[cold]
    pub(super) fn give_back(&self, live: &Live, state: &mut State) {
        if live
            .rx
            .as_ref()
            .is_some_and(|rx| rx.cq.holds_answers_back())
        {
            return;
        }
        state.owing = false;
        self.answer_owed(state);
        for connection in 0..state.connections.places() {
            let it = &state.connections[connection];
            if !it.state().is_lost() && it.window.is_due() {
                self.pay(live, state, connection);
            }
        }
    }

    /// The program has read entries of a queue that was full: peers get what they wait for, though nobody may look
    /// for more.
    #[cold]
    pub(crate) fn give_answers(&self) {
        let Some(live) = self.live.get() else { return };
        let mut state = live.state.lock();
        if state.owing {
            self.give_back(live, &mut state);
        }
    }

    /// Gives the answers that were held back.
    pub(super) fn answer_owed(&self, state: &mut State) {
        for (connection, done) in std::mem::take(&mut state.owed) {
            state.connections[connection].kept -= 1;
            if !state.connections[connection].state().is_lost() {
                self.say(state, connection, &done, &[]);
            }
        }
    }
}

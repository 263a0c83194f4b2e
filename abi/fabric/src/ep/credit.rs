//! How much one peer may have in our memory that the program has not asked for.
//!
//! A sender has credit for so many messages and bytes with each peer, and gets it back as the peer's
//! program takes them. What goes beyond is announced instead: the payload stays at the sender until a
//! receive matches, so that every receive is served, whatever waits before it. Announcements are bounded by
//! what a sender may have under way. A peer that takes more than its credit loses the connection. What peers leave
//! unread when they go is bounded for all of them together: beyond that no new peer is let in.

use super::receive::Kept;
use super::*;
use rkey_rdm::header::{Header, Kind};

/// Messages that one peer may have here.
pub(super) const MESSAGES: u32 = 4096;
/// Bytes of them.
pub(super) const BYTES: u32 = 4 << 20;
/// Announced messages that one peer may have here; no sender has so much under way.
pub(super) const ANNOUNCED: u32 = 2 * OPERATIONS_MAX as u32;

/// Unread messages of peers that have gone, and their bytes: with more of them nobody new is let in.
const LEFT_MESSAGES: u64 = 16 * 1024;
const LEFT_BYTES: u64 = 64 << 20;

/// What we may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    messages: u32,
    bytes: u32,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            messages: MESSAGES,
            bytes: BYTES,
        }
    }
}

impl Credit {
    /// Takes what a message of this length needs; `false` if there is not so much.
    #[inline]
    pub(super) fn take(&mut self, len: u32) -> bool {
        if self.messages == 0 || self.bytes < len {
            return false;
        }
        self.messages -= 1;
        self.bytes -= len;
        true
    }

    /// Whether it may be too little for the next message.
    pub(super) fn is_used_up(mut self) -> bool {
        !self.take(EAGER_MAX as u32)
    }

    /// The peer gives back. It cannot give more than there is.
    pub(super) fn add(&mut self, messages: u32, bytes: u32) {
        self.messages = self.messages.saturating_add(messages).min(MESSAGES);
        self.bytes = self.bytes.saturating_add(bytes).min(BYTES);
    }
}

/// What a peer has here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Debt {
    /// That the program has not taken.
    held: (u32, u32),
    /// That it has taken, and the peer does not know.
    back: (u32, u32),
}

impl Debt {
    /// Whether the peer has credit for a message of this length.
    #[inline]
    pub(super) fn has_room(&self, len: u32) -> bool {
        let mut then = *self;
        then.arrive(len)
    }

    /// A message has come; `false` if the peer had no credit for it.
    #[inline]
    pub(super) fn arrive(&mut self, len: u32) -> bool {
        let bytes = self.held.1.saturating_add(len);
        self.held = (self.held.0 + 1, bytes);
        self.held.0 + self.back.0 <= MESSAGES && bytes.saturating_add(self.back.1) <= BYTES
    }

    /// The program has taken it.
    #[inline]
    pub(super) fn taken(&mut self, len: u32) {
        self.held = (
            self.held.0.saturating_sub(1),
            self.held.1.saturating_sub(len),
        );
        self.back = (self.back.0 + 1, self.back.1 + len);
    }

    /// Whether it is worth a message to give back: half of all that the peer could use.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let half = |back: u32, held: u32, all: u32| back > 0 && 2 * back >= all - held.min(all);
        half(self.back.0, self.held.0, MESSAGES) || half(self.back.1, self.held.1, BYTES)
    }

    /// Bytes that the program has not taken.
    fn unread(&self) -> u64 {
        self.held.1.into()
    }

    /// What is given back: messages and bytes.
    pub(super) fn give_back(&mut self) -> (u32, u32) {
        std::mem::take(&mut self.back)
    }
}

impl State {
    /// Whether so much that the program has not read is left of peers that have gone that no other peer may come
    /// and leave more.
    pub(super) fn is_littered(&self) -> bool {
        let gone = self.connections.iter().filter(|it| it.lost && !it.buried);
        let (messages, bytes) = gone.fold((0, 0), |(messages, bytes), it| {
            (messages + u64::from(it.kept), bytes + it.debt.unread())
        });
        messages >= LEFT_MESSAGES || bytes >= LEFT_BYTES
    }
}

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
        let admitted = state.connections[connection].debt.arrive(len);
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
        it.debt.taken(len);
        if it.debt.is_due() && !it.lost {
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
        let (messages, bytes) = state.connections[connection].debt.give_back();
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
            Kept::Announced { .. } => it.announced -= 1,
            Kept::Here { header, .. } if self.ep_type != FI_EP_DGRAM => {
                self.taken(live, state, connection, header.len);
            }
            Kept::Here { .. } => {}
        }
    }

    /// Tells a peer that an operation of its is done: later, if nobody reads of it.
    pub(super) fn done(
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
            ..Header::new(Kind::Done)
        };
        if state.connections[connection].lost {
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
        for connection in 0..state.connections.len() {
            let it = &state.connections[connection];
            if !it.lost && it.debt.is_due() {
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
            if !state.connections[connection].lost {
                self.say(state, connection, &done, &[]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_ends_and_comes_back() {
        let (mut credit, mut debt) = (Credit::default(), Debt::default());
        let mut sent = 0;
        while credit.take(8192) {
            assert!(debt.arrive(8192));
            sent += 1;
        }
        assert_eq!(sent, BYTES / 8192);
        assert!(!debt.is_due(), "nothing was taken");
        // All is held but one: that one is half of what the peer could use.
        debt.taken(8192);
        assert!(debt.is_due());
        let (messages, bytes) = debt.give_back();
        credit.add(messages, bytes);
        assert!(credit.take(8192) && !credit.take(1));
        assert!(debt.arrive(8192));
        assert!(!debt.arrive(1), "without credit");
    }

    #[test]
    fn short_messages_are_counted() {
        let (mut credit, mut debt) = (Credit::default(), Debt::default());
        let mut told = 0;
        for _ in 0..10 * MESSAGES {
            assert!(credit.take(0) && debt.arrive(0));
            debt.taken(0);
            if debt.is_due() {
                let (messages, bytes) = debt.give_back();
                credit.add(messages, bytes);
                told += 1;
            }
        }
        assert_eq!(told, 20, "half of all at a time");
        credit.add(u32::MAX, u32::MAX);
        assert_eq!((credit.messages, credit.bytes), (MESSAGES, BYTES));
    }
}

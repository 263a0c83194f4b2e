//! Looking for messages that have come: `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD` (fi_tagged(3)).

use super::receive::{Wanted, prepare, rx_entry};
use super::*;
use crate::cq::Entry;
use rkey_rdm::header::Header;
use rkey_rdm::matching::Pattern;

impl State {
    /// Takes the first message that was claimed with a context.
    fn unclaim(&mut self, context: usize) -> Option<(SocketAddr, u64, Kept)> {
        let claimed = self.claimed.get_mut(&context)?;
        let first = claimed.pop_front();
        if claimed.is_empty() {
            self.claimed.remove(&context);
        }
        first
    }
}

impl Endpoint {
    /// `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD` (fi_tagged(3)).
    pub(super) fn look(
        &self,
        live: &Live,
        wanted: &Wanted<'_>,
        pattern: &Pattern<SocketAddr>,
    ) -> Result<()> {
        match self.try_look(live, wanted, pattern)? {
            true => Ok(()),
            false => Self::nothing_there(live, wanted),
        }
    }

    /// The same, as far as a message is there; whether there is one.
    pub(super) fn try_look(
        &self,
        live: &Live,
        wanted: &Wanted<'_>,
        pattern: &Pattern<SocketAddr>,
    ) -> Result<bool> {
        let (peek, claim, discard) = (
            wanted.flags & FI_PEEK != 0,
            wanted.flags & FI_CLAIM != 0,
            wanted.flags & FI_DISCARD != 0,
        );
        let context = wanted.context as usize;
        let mut state = live.state.lock();
        self.advance(live, &mut state);
        if !peek {
            if !claim {
                return Err(FiError::BADFLAGS);
            }
            return self.take_claimed(live, &mut state, wanted);
        }
        let queue = state.queue(wanted.tag.is_some());
        if !(claim || discard) {
            let Some((source, _, kept)) = queue.peek(pattern) else {
                return Ok(false);
            };
            self.tell(live, context, source, kept.header());
            return Ok(true);
        }
        let Some((source, tag, kept)) = queue.message_for(pattern) else {
            return Ok(false);
        };
        if let Some(srx) = &live.srx {
            srx.forget(1);
        }
        if claim {
            self.tell(live, context, &source, kept.header());
            let claimed = state.claimed.entry(context).or_default();
            claimed.push_back((source, tag, kept));
        } else {
            self.discard(live, &mut state, context, &source, &kept);
        }
        Ok(true)
    }

    /// Receives or discards the first message that was claimed with this context; whether there is one.
    fn take_claimed(&self, live: &Live, state: &mut State, wanted: &Wanted<'_>) -> Result<bool> {
        let context = wanted.context as usize;
        let Some((source, tag, kept)) = state.unclaim(context) else {
            return Ok(false);
        };
        if wanted.flags & FI_DISCARD != 0 {
            self.discard(live, state, context, &source, &kept);
            return Ok(true);
        }
        match prepare(&self.domain, &self.group, self.caps, wanted) {
            Ok(mut receive) => {
                let (landing, _) = self.landing(live, &mut receive, &source, kept.header());
                self.deliver(live, state, landing, kept);
                Ok(true)
            }
            Err(error) => {
                let claimed = state.claimed.entry(context).or_default();
                claimed.push_front((source, tag, kept));
                Err(error)
            }
        }
    }

    /// Says that no message is there, in the way of the call.
    pub(super) fn nothing_there(live: &Live, wanted: &Wanted<'_>) -> Result<()> {
        if wanted.flags & FI_PEEK == 0 {
            return Err(FiError::INVAL);
        }
        let (kind, tag) = match wanted.tag {
            Some((tag, _)) => (FI_TAGGED, tag),
            None => (FI_MSG, 0),
        };
        let entry = Entry {
            context: wanted.context as usize,
            flags: FI_RECV | kind,
            tag,
            ..Entry::default()
        };
        if let Some(rx) = &live.rx {
            rx.cq.push(entry.failed(FiError::NOMSG));
        }
        Ok(())
    }

    /// Completes a call that looked for a message, or threw one away.
    fn tell(&self, live: &Live, context: usize, source: &SocketAddr, header: &Header) {
        let source = self.number_of(live, source);
        if let Some(rx) = &live.rx {
            rx.cq.push(Entry {
                context,
                source,
                len: header.len as usize,
                ..rx_entry(header)
            });
        }
    }

    /// Throws a message away, and completes the call that asked for it.
    fn discard(
        &self,
        live: &Live,
        state: &mut State,
        context: usize,
        source: &SocketAddr,
        kept: &Kept,
    ) {
        self.unkeep(live, state, kept);
        self.confirm(live, state, kept.connection(), kept.header());
        self.tell(live, context, source, kept.header());
    }
}

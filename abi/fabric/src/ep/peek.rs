//! Peeking at messages that have arrived: `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD` (fi_tagged(3)).

use super::receive::{Wanted, prepare, rx_entry};
use super::*;
use crate::cq::Entry;
use rkey_rdm::header::Header;
use rkey_rdm::matching::Pattern;

impl Endpoint {
    /// Peeks at, claims, discards or receives a message, as the flags request. If there is none, reports that.
    pub(super) fn peek(
        &self,
        live: &Live,
        wanted: &Wanted<'_>,
        pattern: &Pattern<SocketAddr>,
    ) -> Result<()> {
        match self.try_peek(live, wanted, pattern)? {
            true => Ok(()),
            false => Self::report_no_message(live, wanted),
        }
    }

    /// Does what the flags request, if a message matches (or, without `FI_PEEK`, was claimed with this context). Returns
    /// whether there was such a message.
    pub(super) fn try_peek(
        &self,
        live: &Live,
        wanted: &Wanted<'_>,
        pattern: &Pattern<SocketAddr>,
    ) -> Result<bool> {
        let has = |flag| wanted.flags & flag != 0;
        let (context, tagged) = (wanted.context as usize, wanted.tag.is_some());
        let mut state = live.state.lock();
        live.advance(&mut state);
        if !has(FI_PEEK) {
            if !has(FI_CLAIM) {
                return Err(FiError::BADFLAGS);
            }
            return self.take_claimed(live, &mut state, wanted);
        }
        let (host, rdm) = (&live.host, &mut state.rdm);
        if !has(FI_CLAIM | FI_DISCARD) {
            let seen = rdm.receives().peek(tagged, pattern);
            if let Some((source, header)) = &seen {
                Self::report(live, context, source, header);
            }
            return Ok(seen.is_some());
        }
        let Some(found) = rdm.receives_mut().find(host, tagged, pattern) else {
            return Ok(false);
        };
        let (source, header) = (*found.source(), *found.header());
        match has(FI_CLAIM) {
            true => rdm.claims().add(context, found),
            false => rdm.discard(host, &found),
        }
        Self::report(live, context, &source, &header);
        Ok(true)
    }

    /// Receives or discards the first message that was claimed with this context; returns whether there
    /// was one.
    fn take_claimed(&self, live: &Live, state: &mut State, wanted: &Wanted<'_>) -> Result<bool> {
        let (context, rdm) = (wanted.context as usize, &mut state.rdm);
        let Some(found) = rdm.claims().take(context) else {
            return Ok(false);
        };
        if wanted.flags & FI_DISCARD != 0 {
            rdm.discard(&live.host, &found);
            Self::report(live, context, found.source(), found.header());
            return Ok(true);
        }
        match prepare(&self.domain, &self.pd, self.caps, wanted) {
            Ok(receive) => {
                rdm.receive_found(&live.host, receive, found);
                Ok(true)
            }
            Err(error) => {
                rdm.claims().put_back(context, found);
                Err(error)
            }
        }
    }

    /// Reports that no message was found: for `FI_PEEK` by an error entry, otherwise by an error of the call.
    pub(super) fn report_no_message(live: &Live, wanted: &Wanted<'_>) -> Result<()> {
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
        if let Some(rx) = &live.host.rx {
            rx.cq.push(entry.failed(FiError::NOMSG));
        }
        Ok(())
    }

    /// Completes a call that peeked at, claimed or discarded a message.
    fn report(live: &Live, context: usize, source: &SocketAddr, header: &Header) {
        let source = live.host.number_of(source);
        if let Some(rx) = &live.host.rx {
            rx.cq.push(Entry {
                context,
                source,
                len: header.len as usize,
                ..rx_entry(header)
            });
        }
    }
}

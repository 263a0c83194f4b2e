//! The program's receives: checked, posted and canceled, and their completions.

use super::host::EpHost;
use super::payload::sges;
use super::peer_connection::no_peer;
use super::report::Deferred;
use super::send::{Descriptors, total};
use super::*;
use crate::cq::Entry;
use crate::mr::buffers::Held;
use libc::iovec;
use rkey_device::core::LocalUse;
use rkey_rdm::endpoint::ReceiveOutcome;
use rkey_rdm::header::Header;
use rkey_rdm::matching::Pattern;
use std::ffi::c_void;

/// A receive that is waiting for a message.
pub(super) type Receive = rkey_rdm::endpoint::Receive<EpHost>;

/// The data of a receive.
pub(crate) struct PostedReceive {
    pub(super) context: usize,
    pub(super) buffer: usize,
    pub(super) flags: u64,
    /// Set for deferred work.
    pub(super) deferred: Option<Deferred>,
    /// The registrations of its buffers, if the provider made them.
    pub(super) held: Held,
}

impl PostedReceive {
    pub(super) fn is_of(&self, context: usize) -> bool {
        self.context == context
    }

    /// The completion of a canceled receive.
    pub(super) fn canceled(&self, tagged: bool, multi: bool) -> Entry {
        let kind = if tagged { FI_TAGGED } else { FI_MSG };
        let multi = if multi { FI_MULTI_RECV } else { 0 };
        let entry = Entry {
            context: self.context,
            flags: FI_RECV | kind | multi,
            buf: self.buffer,
            ..Entry::default()
        };
        entry.failed(FiError::CANCELED)
    }
}

/// The data of a message that has matched its receive.
pub(crate) struct Matched {
    pub(super) entry: Entry,
    pub(super) report: bool,
    /// Set for deferred work.
    pub(super) deferred: Option<Deferred>,
    /// The registrations of the receive's buffers, if the provider made them.
    pub(super) held: Held,
}

/// A receive, as the program requests it.
pub(super) struct Wanted<'a> {
    pub(super) iov: &'a [iovec],
    pub(super) desc: Descriptors<'a>,
    pub(super) from: u64,
    /// The tag and its ignore mask.
    pub(super) tag: Option<(u64, u64)>,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) deferred: Option<&'a Deferred>,
}

impl Wanted<'_> {
    /// The pattern of messages that it accepts, in a context with these capabilities, this authorization key and this
    /// address vector.
    pub(super) fn pattern(
        &self,
        caps: u64,
        pd: &ProtectionDomain,
        av: Option<&Av>,
    ) -> Result<Pattern<SocketAddr>> {
        let (tag, ignore) = self.tag.unwrap_or((0, 0));
        let source = match self.from {
            FI_ADDR_UNSPEC => None,
            _ if caps & FI_DIRECTED_RECV == 0 => None,
            number if self.flags & FI_AUTH_KEY != 0 => {
                // All peers of an endpoint have its key, because the endpoint refuses others.
                let key = av.and_then(|av| av.auth_key(number));
                key.filter(|key| key.bytes == pd.key)
                    .ok_or(FiError::INVAL)?;
                None
            }
            number => {
                let av = av.ok_or(FiError::NOAV)?;
                Some(av.get(number).ok_or_else(|| no_peer(number))?)
            }
        };
        Ok(Pattern {
            source,
            tag,
            ignore,
        })
    }
}

/// Checks a receive in a context with these capabilities, and resolves its memory.
pub(super) fn prepare(
    domain: &Domain,
    pd: &ProtectionDomain,
    caps: u64,
    wanted: &Wanted<'_>,
) -> Result<Receive> {
    let kind = match wanted.tag {
        Some(_) => FI_TAGGED,
        None => FI_MSG,
    };
    let multi = wanted.flags & FI_MULTI_RECV;
    check_caps(caps, FI_RECV | kind | multi)?;
    let room = total(wanted.iov)?;
    let mut held = Held::default();
    let sges = sges(
        domain,
        pd,
        wanted.iov,
        wanted.desc,
        LocalUse::Recv,
        &mut held,
    )?;
    let buffer = wanted.iov.first();
    let waiting = PostedReceive {
        context: wanted.context as usize,
        buffer: buffer.map_or(0, |it| it.iov_base as usize),
        flags: wanted.flags,
        deferred: wanted.deferred.cloned(),
        held,
    };
    Ok(Receive::new(sges, room, multi != 0, waiting))
}

impl Endpoint {
    /// Posts a receive, or peeks at a message, depending on the flags.
    pub(super) fn receive(&self, wanted: &Wanted<'_>) -> Result<()> {
        let live = self.live()?;
        let host = &live.host;
        if host.rx.is_none() {
            self.check_caps(FI_RECV)?;
            return Err(FiError::NOCQ);
        }
        if host.srx.is_some() {
            tracing::warn!(
                "the endpoint has a shared receive context: post its receives to that context"
            );
            return Err(FiError::OPNOTSUPP);
        }
        let pattern = wanted.pattern(self.caps, &self.pd, host.av.as_deref())?;
        if wanted.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) != 0 {
            return self.peek(live, wanted, &pattern);
        }
        let receive = prepare(&self.domain, &self.pd, self.caps, wanted)?;
        let mut state = live.state.lock();
        let tagged = wanted.tag.is_some();
        state.rdm.receive(host, tagged, pattern, receive);
        Ok(())
    }

    /// `fi_cancel`: completes a triggered operation that has not started, or a waiting receive, with `FI_ECANCELED`.
    pub(super) fn cancel(&self, context: *mut c_void) -> Result<()> {
        let live = self.live()?;
        let context = context as usize;
        if self.domain.work.cancel(self.number, context) {
            return Ok(());
        }
        let rdm = &mut live.state.lock().rdm;
        match rdm
            .receives_mut()
            .cancel(&live.host, |receive| receive.is_of(context))
        {
            true => Ok(()),
            // A receive with a message cannot be canceled, and completes normally.
            false => Err(FiError::NOENT),
        }
    }
}

impl EpHost {
    /// Completes a receive for one message with a whole message.
    #[inline]
    pub(super) fn report_whole(
        &self,
        receive: &mut PostedReceive,
        source: &SocketAddr,
        header: &Header,
    ) {
        // The registrations end before the program learns of the completion.
        drop(std::mem::take(&mut receive.held));
        let counter = match &receive.deferred {
            Some(own) => own.counter.as_ref(),
            None => self.counters[RECEIVED].get(),
        };
        if let Some(counter) = counter {
            counter.count();
        }
        let Some(rx) = &self.rx else { return };
        if BoundCq::reports(Some(rx), receive.flags) {
            rx.cq.push(Entry {
                context: receive.context,
                buf: receive.buffer,
                len: header.len as usize,
                source: self.number_of(source),
                ..rx_entry(header)
            });
        }
    }

    /// Completes a receive.
    #[inline]
    pub(super) fn report_received(&self, matched: Matched, how: ReceiveOutcome) {
        let Matched {
            mut entry,
            mut report,
            deferred,
            held,
        } = matched;
        drop(held);
        entry.len = how.len;
        if how.last {
            entry.flags |= FI_MULTI_RECV;
            report = true;
        }
        let counter = match &deferred {
            Some(own) => own.counter.as_ref(),
            None => self.counters[RECEIVED].get(),
        };
        match (how.error, counter) {
            (Some(_), Some(counter)) => counter.count_error(),
            (None, Some(counter)) => counter.count(),
            _ => {}
        }
        let Some(rx) = &self.rx else { return };
        match how.error {
            Some(error) if deferred.is_none() || report => {
                let entry = entry.failed_with(error.into(), how.overflow, Vec::new());
                rx.cq.push(entry);
            }
            None if report => rx.cq.push(entry),
            _ => {}
        }
    }
}

/// The completion entry for a message that arrived.
#[inline]
pub(super) fn rx_entry(header: &Header) -> Entry {
    let kind = if header.tagged { FI_TAGGED } else { FI_MSG };
    let data = if header.has_data {
        FI_REMOTE_CQ_DATA
    } else {
        0
    };
    Entry {
        flags: FI_RECV | kind | data,
        data: header.data,
        tag: header.tag,
        ..Entry::default()
    }
}

//! Messages in: receives that are posted and cancelled, and messages that find theirs or are kept.

use super::deferred::Deferred;
use super::elements::{elements, part};
use super::order::Arrival;
use super::reach::no_peer;
use super::send::{Descriptors, total};
use super::*;
use crate::cq::Entry;
use libc::iovec;
use rkey_device::core::LocalUse;
use rkey_rdm::header::{Header, Kind};
use rkey_rdm::matching::{Keep, Pattern};
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

/// A receive that waits for a message.
pub(super) struct Receive {
    sges: Sges,
    room: usize,
    context: usize,
    buffer: usize,
    flags: u64,
    /// It is of deferred work.
    deferred: Option<Deferred>,
    /// The buffer takes several messages: bytes that are used, and what they share.
    multi: Option<(usize, Arc<Shared>)>,
}

impl Receive {
    pub(super) fn is_of(&self, context: usize) -> bool {
        self.context == context
    }

    /// The completion of a receive that was called back.
    pub(super) fn canceled(&self, tagged: bool) -> Entry {
        let kind = if tagged { FI_TAGGED } else { FI_MSG };
        let multi = if self.multi.is_some() {
            FI_MULTI_RECV
        } else {
            0
        };
        let entry = Entry {
            context: self.context,
            flags: FI_RECV | kind | multi,
            buf: self.buffer,
            ..Entry::default()
        };
        entry.failed(FiError::CANCELED)
    }
}

/// What messages in the same buffer share.
pub(crate) struct Shared {
    /// Messages whose payload is not there yet.
    pending: AtomicU32,
    /// No more messages go there.
    full: AtomicBool,
}

/// A message that nobody waited for.
pub(super) enum Kept {
    Here {
        header: Header,
        payload: Vec<u8>,
        connection: usize,
    },
    Rts {
        header: Header,
        key: u32,
        connection: usize,
    },
}

impl Kept {
    pub(super) fn header(&self) -> &Header {
        match self {
            Self::Here { header, .. } | Self::Rts { header, .. } => header,
        }
    }

    pub(super) fn connection(&self) -> usize {
        let (Self::Here { connection, .. } | Self::Rts { connection, .. }) = self;
        *connection
    }
}

/// A receive, as the program asks for it.
pub(super) struct Wanted<'a> {
    pub(super) iov: &'a [iovec],
    pub(super) desc: Descriptors<'a>,
    pub(super) from: u64,
    /// Tag and the bits of it that do not count.
    pub(super) tag: Option<(u64, u64)>,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) deferred: Option<&'a Deferred>,
}

impl Wanted<'_> {
    /// Which messages it is for, at a context with these capabilities, this authorization key and this address vector.
    pub(super) fn pattern(
        &self,
        caps: u64,
        group: &Group,
        av: Option<&Av>,
    ) -> Result<Pattern<SocketAddr>> {
        let (tag, ignore) = self.tag.unwrap_or((0, 0));
        let source = match self.from {
            FI_ADDR_UNSPEC => None,
            _ if caps & FI_DIRECTED_RECV == 0 => None,
            number if self.flags & FI_AUTH_KEY != 0 => {
                // Whoever reaches an endpoint has its key: others are refused as peers.
                let key = av.and_then(|av| av.auth_key(number));
                key.filter(|key| key.bytes == group.key)
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

/// Checks a receive of a context with these capabilities, and names its memory.
pub(super) fn prepare(
    domain: &Domain,
    group: &Group,
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
    let sges = elements(domain, group, wanted.iov, wanted.desc, LocalUse::Recv)?;
    let shared = || Shared {
        pending: AtomicU32::new(0),
        full: AtomicBool::new(false),
    };
    Ok(Receive {
        sges,
        room,
        context: wanted.context as usize,
        buffer: wanted
            .iov
            .first()
            .map_or(0, |piece| piece.iov_base as usize),
        flags: wanted.flags,
        deferred: wanted.deferred.cloned(),
        multi: (multi != 0).then(|| (0, Arc::new(shared()))),
    })
}

impl Endpoint {
    /// Posts a receive, or looks for a message, as the flags say.
    pub(super) fn receive(&self, wanted: &Wanted<'_>) -> Result<()> {
        let live = self.live()?;
        if live.rx.is_none() {
            return Err(FiError::NOCQ);
        }
        if live.srx.is_some() {
            tracing::warn!(
                "receives of an endpoint with a shared receive context are posted to the context"
            );
            return Err(FiError::OPNOTSUPP);
        }
        let pattern = wanted.pattern(self.caps, &self.group, live.av.as_deref())?;
        if wanted.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) != 0 {
            return self.look(live, wanted, &pattern);
        }
        let receive = prepare(&self.domain, &self.group, self.caps, wanted)?;
        let mut state = live.state.lock();
        self.start(live, &mut state, wanted.tag.is_some(), pattern, receive);
        if state.shut {
            self.flush_receives(live, &mut state);
        }
        Ok(())
    }

    /// Gives a receive the messages that wait for it, then lets it wait for more.
    fn start(
        &self,
        live: &Live,
        state: &mut State,
        tagged: bool,
        pattern: Pattern<SocketAddr>,
        mut receive: Receive,
    ) {
        loop {
            let queue = state.queue(tagged);
            let Some((source, _, kept)) = queue.message_for(&pattern) else {
                queue.post(pattern, receive);
                return;
            };
            let (landing, keep) = self.landing(live, &mut receive, &source, kept.header());
            self.deliver(live, state, landing, kept);
            if keep == Keep::No {
                return;
            }
        }
    }

    /// By what the program knows who sent a message, if it wants to know.
    pub(super) fn number_of(&self, live: &Live, source: &SocketAddr) -> u64 {
        match &live.av {
            Some(av) if self.caps & FI_SOURCE != 0 => av.reported(source),
            _ => FI_ADDR_NOTAVAIL,
        }
    }

    /// Where in a receive a message goes, and whether the receive takes more.
    pub(super) fn landing(
        &self,
        live: &Live,
        receive: &mut Receive,
        source: &SocketAddr,
        header: &Header,
    ) -> (Landing, Keep) {
        let entry = Entry {
            context: receive.context,
            source: self.number_of(live, source),
            ..rx_entry(header)
        };
        let report = Self::reports(live.rx.as_ref(), receive.flags);
        let Some((used, shared)) = &mut receive.multi else {
            let landing = Landing {
                sges: std::mem::take(&mut receive.sges),
                room: receive.room,
                entry: Entry {
                    buf: receive.buffer,
                    ..entry
                },
                report,
                overflow: 0,
                deferred: receive.deferred.take(),
                shared: None,
                turn: None,
            };
            return (landing, Keep::No);
        };
        let room = receive.room - *used;
        let len = room.min(header.len as usize);
        shared.pending.fetch_add(1, Ordering::AcqRel);
        let landing = Landing {
            sges: part(&receive.sges, *used, len),
            room: len,
            entry: Entry {
                // A program may name memory that does not exist; that is an error when something goes there.
                buf: receive.buffer.wrapping_add(*used),
                ..entry
            },
            report,
            overflow: 0,
            deferred: receive.deferred.clone(),
            shared: Some(Arc::clone(shared)),
            turn: None,
        };
        *used += len;
        // The least room that another message may need is the program's to say.
        let least = match &live.srx {
            Some(srx) => &srx.min_multi_recv,
            None => &self.min_multi_recv,
        };
        let least = least.load(Ordering::Relaxed).max(1);
        if receive.room - *used >= least {
            return (landing, Keep::Yes);
        }
        shared.full.store(true, Ordering::Release);
        (landing, Keep::No)
    }

    /// A message arrived over a connection.
    #[inline]
    pub(super) fn arrived(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        header: Header,
        payload: &[u8],
    ) {
        let rendezvous = matches!(header.kind, Kind::Rts { .. });
        let limited = self.ep_type != FI_EP_DGRAM && !rendezvous;
        if rendezvous && state.connections[connection].rendezvous >= credit::RENDEZVOUS_MAX {
            return self.exceeded(live, state, connection);
        }
        if limited && !self.admit(live, state, connection, header.len) {
            return;
        }
        let source = state.connections[connection].peer;
        let find = |receive: &mut Receive| self.landing(live, receive, &source, &header);
        let landing = match &live.srx {
            Some(srx) => self.shared_receive_for(live, state, srx, &source, &header),
            None => state
                .queue(header.tagged)
                .receive_for(&source, header.tag, find),
        };
        match (landing, header.kind) {
            (Some(landing), Kind::Rts { key }) => {
                state.connections[connection].kept += 1;
                state.connections[connection].rendezvous += 1;
                let kept = Kept::Rts {
                    header,
                    key,
                    connection,
                };
                self.deliver(live, state, landing, kept);
            }
            (Some(landing), _) => {
                self.place(live, state, landing, payload);
                self.confirm(live, state, connection, &header);
                if limited {
                    self.taken(live, state, connection, header.len);
                }
            }
            (None, _)
                if self.ep_type == FI_EP_DGRAM
                    && state.queue(header.tagged).unexpected() >= DATAGRAMS_MAX =>
            {
                // It was counted as kept before anybody knew that there is no room.
                if let Some(srx) = &live.srx {
                    srx.forget(1);
                }
            }
            (None, Kind::Rts { key }) => {
                state.connections[connection].kept += 1;
                state.connections[connection].rendezvous += 1;
                state.queue(header.tagged).keep(
                    source,
                    header.tag,
                    Kept::Rts {
                        header,
                        key,
                        connection,
                    },
                );
            }
            (None, _) => {
                self.keep(state, connection, header, payload.to_vec());
            }
        }
    }

    /// Keeps a message until a receive asks for it.
    pub(super) fn keep(
        &self,
        state: &mut State,
        connection: usize,
        header: Header,
        payload: Vec<u8>,
    ) {
        let it = &mut state.connections[connection];
        it.kept += 1;
        let source = it.peer;
        let (tagged, tag) = (header.tagged, header.tag);
        let kept = Kept::Here {
            header,
            payload,
            connection,
        };
        state.queue(tagged).keep(source, tag, kept);
    }

    /// Brings a message to its receive: copies it, or starts to read it.
    pub(super) fn deliver(&self, live: &Live, state: &mut State, landing: Landing, kept: Kept) {
        self.unkeep(live, state, &kept);
        match kept {
            Kept::Here {
                header,
                payload,
                connection,
            } => {
                self.place(live, state, landing, &payload);
                self.confirm(live, state, connection, &header);
            }
            Kept::Rts {
                header,
                key,
                connection,
            } => {
                self.fetch(live, state, landing, &header, key, connection);
            }
        }
    }

    /// Tells the sender that a message was delivered, if it wants to know.
    pub(super) fn confirm(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        header: &Header,
    ) {
        if header.confirm || matches!(header.kind, Kind::Rts { .. }) {
            self.send_fin(live, state, connection, header.id, 0);
        }
    }

    /// Completes a receive, when it is its turn.
    pub(super) fn received(
        &self,
        live: &Live,
        state: &mut State,
        mut landing: Landing,
        error: Option<FiError>,
    ) {
        match landing.turn.take() {
            None => Self::complete(live, landing, error),
            turn => Self::in_turn(live, state, turn, Arrival::Message(landing, error)),
        }
    }

    pub(super) fn complete(live: &Live, mut landing: Landing, error: Option<FiError>) {
        let error = error.or_else(|| (landing.overflow > 0).then_some(FiError::TRUNC));
        if let Some(shared) = landing.shared.take() {
            // The last message of a buffer that takes no more says so.
            let last = shared.pending.fetch_sub(1, Ordering::AcqRel) == 1;
            if last && shared.full.load(Ordering::Acquire) {
                landing.entry.flags |= FI_MULTI_RECV;
                landing.report = true;
            }
        }
        let own = landing.deferred.take();
        let counter = match &own {
            Some(own) => own.counter.as_ref(),
            None => live.counters[RECEIVED].get(),
        };
        match (error, counter) {
            (Some(_), Some(counter)) => counter.count_error(),
            (None, Some(counter)) => counter.count(),
            _ => {}
        }
        let Some(rx) = &live.rx else { return };
        match error {
            Some(error) if own.is_none() || landing.report => {
                let overflow = landing.overflow;
                rx.cq
                    .push(landing.entry.failed_with(error, overflow, Vec::new()));
            }
            None if landing.report => rx.cq.push(landing.entry),
            _ => {}
        }
    }

    /// `fi_cancel`: a receive that waits ends with `FI_ECANCELED`.
    pub(super) fn cancel(&self, context: *mut c_void) -> Result<()> {
        let live = self.live()?;
        let context = context as usize;
        if self.domain.work.cancel(self.number, context) {
            return Ok(());
        }
        let mut state = live.state.lock();
        if Self::take_back(live, &mut state, |receive| receive.is_of(context)) {
            Ok(())
        } else {
            // What has started cannot be called back, and completes as it does.
            Err(FiError::NOENT)
        }
    }

    /// The connection of a connected endpoint ended: nothing will come any more.
    pub(super) fn flush_receives(&self, live: &Live, state: &mut State) {
        while Self::take_back(live, state, |_| true) {}
    }

    /// Ends the oldest receive for which `wanted` says so; whether there was one.
    fn take_back(live: &Live, state: &mut State, wanted: impl Fn(&Receive) -> bool) -> bool {
        for tagged in [false, true] {
            let queue = state.queue(tagged);
            let Some(receive) = queue.cancel(&wanted) else {
                continue;
            };
            if let Some(rx) = &live.rx {
                rx.cq.push(receive.canceled(tagged));
            }
            return true;
        }
        false
    }
}

/// What a completion says about a message that arrived.
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

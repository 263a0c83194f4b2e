//! Posting to a connection: room for requests, and what is said later when there is none.

use super::operation::Hold;
use super::*;
use rkey_device::engine::{SendFlags, SendRequest, Work};
use rkey_rdm::backlog::Later;
use rkey_rdm::header::{Header, MAX_LEN};
use rkey_rdm::operation::UNTRACKED;

impl State {
    /// Operations and other requests that are under way.
    pub(super) fn under_way(&self) -> usize {
        // Completions that operations wait for are of requests that were posted, or will be.
        let awaited = |it: &Operation| (it.left as usize).saturating_sub(it.answered.into());
        let awaited: usize = self.operations.iter().map(awaited).sum();
        let of_operation = |later: &&Later| later.operation() != UNTRACKED;
        let requests = |it: &Connection| {
            it.outstanding as usize + it.backlog.iter().filter(of_operation).count()
        };
        let requests: usize = self.connections.iter().map(requests).sum();
        // The rest is of plain operations, which are nowhere else, and of answers.
        self.operations.len() + requests.saturating_sub(awaited)
    }
}

impl Endpoint {
    /// Whether a connection takes so many more requests of the program's.
    #[inline]
    pub(super) fn check_room(state: &State, connection: usize, requests: u32) -> Result<()> {
        match state.connections[connection].has_room(requests) {
            true => Ok(()),
            false => Err(FiError::AGAIN),
        }
    }

    /// Posts so many requests of the program's, whose success is reported or not: `FI_EAGAIN` when there is no room for
    /// them or for their completions. If `post` fails, nothing of a shared transmit context is kept.
    #[inline]
    pub(super) fn in_room(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        requests: u32,
        report: bool,
        post: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<()> {
        self.make_room(live, state, connection, requests, report)?;
        post(state).inspect_err(|_| Self::free_shared_places(live, state))
    }

    /// Makes sure of room for so many requests.
    #[inline]
    fn make_room(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        requests: u32,
        report: bool,
    ) -> Result<()> {
        let Some(stx) = &live.stx else {
            return self.find_room(live, state, connection, requests, report);
        };
        // First: it may look for completions, which take room.
        self.take_shared_place(live, state, stx, connection)?;
        let room = self.find_room(live, state, connection, requests, report);
        if room.is_err() {
            Self::free_shared_places(live, state);
        }
        room
    }

    /// The same without regard to a shared transmit context.
    #[inline]
    fn find_room(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        requests: u32,
        report: bool,
    ) -> Result<()> {
        if state.operations.len() < OPERATIONS_MAX
            && Self::check_room(state, connection, requests).is_ok()
        {
            match &live.tx {
                Some(tx) if report && tx.cq.is_full() => {}
                _ => return Ok(()),
            }
        }
        self.advance(live, state);
        if !state.connections[connection].state().is_open() {
            return Err(FiError::AGAIN);
        }
        if state.operations.len() >= OPERATIONS_MAX
            || report && live.tx.as_ref().is_some_and(|tx| tx.cq.is_full())
        {
            return Err(FiError::AGAIN);
        }
        Self::check_room(state, connection, requests)
    }

    /// Posts one request. `operation` is told of its completion.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn post(
        &self,
        state: &mut State,
        connection: usize,
        work: Work,
        sges: &[Sge],
        inline: Option<&[u8]>,
        flags: SendFlags,
        operation: u64,
    ) -> Result<()> {
        let request = SendRequest {
            inline,
            flags: flags | SendFlags::SIGNALED,
            ..SendRequest::new(operation, work, sges)
        };
        Self::post_request(state, connection, &request)
    }

    /// The same for a request that is made up.
    #[inline]
    pub(super) fn post_request(
        state: &mut State,
        connection: usize,
        request: &SendRequest<'_>,
    ) -> Result<()> {
        let connection = &mut state.connections[connection];
        let qp = connection.qp.as_ref().ok_or(FiError::NOTCONN)?;
        qp.post_send(request)?;
        connection.outstanding += 1;
        Ok(())
    }

    /// Sends a message of our own making, now or when there is room.
    pub(super) fn say(
        &self,
        state: &mut State,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) {
        self.say_for(state, connection, header, payload, UNTRACKED);
    }

    /// The same for an operation, which is told of its completion.
    pub(super) fn say_for(
        &self,
        state: &mut State,
        connection: usize,
        header: &Header,
        payload: &[u8],
        operation: u64,
    ) {
        let mut head = [0; MAX_LEN];
        let len = header.encode(&mut head);
        let mut bytes = head[..len].to_vec();
        bytes.extend_from_slice(payload);
        let it = &state.connections[connection];
        if it.takes_answers() {
            self.say_now(state, connection, bytes, operation);
        } else {
            let later = Later::Message(bytes, operation);
            let waiting = &mut state.connections[connection].backlog;
            waiting.push_back(later);
            if waiting.is_too_much()
                && let Some(live) = self.live.get()
            {
                self.cut_off(live, state, connection, "it asks much and takes no answers");
            }
            self.watch_backlog(state);
        }
    }

    fn say_now(&self, state: &mut State, connection: usize, bytes: Vec<u8>, operation: u64) {
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        // Who waits for nothing but the end of the connection hears of this.
        let flags = match header::is_last(&bytes) {
            true => SendFlags::SOLICITED,
            false => SendFlags::empty(),
        };
        // A connection that fails meanwhile loses what it was to carry.
        if bytes.len() <= INLINE_MAX {
            let posted = self.post(state, connection, send, &[], Some(&bytes), flags, operation);
            if posted.is_err()
                && let Some(live) = self.live.get()
            {
                self.fail_with(live, state, operation, FiError::CONNRESET);
            }
            return;
        }
        debug_assert_eq!(operation, UNTRACKED, "what operations say is short");
        let bytes = bytes.into_boxed_slice();
        let sge = Sge {
            addr: bytes.as_ptr() as u64,
            len: bytes.len() as u32,
            key: self.group.everything(),
        };
        let id = state.operations.add(operation::Operation {
            left: 1,
            error: None,
            what: operation::What::Transmit,
            entry: crate::cq::Entry::default(),
            report: false,
            counts: None,
            connection,
            answered: false,
            turn: None,
            hold: Hold::Bytes(bytes),
        });
        if self
            .post(state, connection, send, &[sge], None, flags, id)
            .is_err()
        {
            state.operations.take(id);
        }
    }

    /// Posts what waited for room on a connection.
    pub(super) fn catch_up(&self, state: &mut State, connection: usize) {
        while state.connections[connection].outstanding < SENDS {
            match state.connections[connection].backlog.pop_front() {
                None => return,
                Some(Later::Message(bytes, operation)) => {
                    self.say_now(state, connection, bytes, operation);
                }
                Some(Later::Read(id)) => self.fetch_now(state, connection, id),
            }
        }
    }
}

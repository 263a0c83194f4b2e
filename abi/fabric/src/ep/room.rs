//! Checks for room for the program's requests: on the connection, in the completion queue, and in a shared transmit context.

use super::*;

impl Endpoint {
    /// Checks for room for this many requests and, if reported, for their completion, and then calls `post`. Returns
    /// `FI_EAGAIN` if there is no room. If `post` fails, releases the slot of a shared transmit context.
    #[inline]
    pub(super) fn with_room(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        requests: u32,
        report: bool,
        post: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<()> {
        self.make_room(live, state, connection, requests, report)?;
        post(state).inspect_err(|_| Self::free_shared_slots(live, state))
    }

    /// Checks for room, including room in a shared transmit context if the endpoint has one.
    #[inline]
    fn make_room(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        requests: u32,
        report: bool,
    ) -> Result<()> {
        let Some(shared) = &live.stx else {
            return self.find_room(live, state, connection, requests, report);
        };
        // Take the shared slot before looking for room: taking it may handle completions, which use room in the completion queue.
        self.take_shared_slot(live, state, shared, connection)?;
        let room = self.find_room(live, state, connection, requests, report);
        if room.is_err() {
            Self::free_shared_slots(live, state);
        }
        room
    }

    /// Checks for room without regard to a shared transmit context.
    #[inline]
    fn find_room(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        requests: u32,
        report: bool,
    ) -> Result<()> {
        let is_full = || report && live.host.tx.as_ref().is_some_and(|tx| tx.cq.is_full());
        if state.rdm.outbox().has_room(connection, requests) && !is_full() {
            return Ok(());
        }
        live.advance(state);
        let open = state.rdm.connections()[connection].state().is_open();
        match open && state.rdm.outbox().has_room(connection, requests) && !is_full() {
            true => Ok(()),
            false => Err(FiError::AGAIN),
        }
    }
}

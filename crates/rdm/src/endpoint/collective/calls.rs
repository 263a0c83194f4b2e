//! Calls of the rest of the endpoint: groups are joined and left, operations begin, and chunks arrive.

use super::super::operation::Operation;
use super::super::{Endpoint, Host};
use super::carrier::Carrier;
use super::{Groups, Loaded, Members};
use crate::error::{Error, Result};
use crate::header::Header;
use std::time::Instant;

impl<H: Host> Endpoint<H> {
    /// The groups; `None` if there is none, and no peer has named one.
    #[must_use]
    pub fn groups(&self) -> Option<&Groups<H>> {
        self.groups.as_deref()
    }

    /// Calls the groups with what carries their messages, and ends the connections of peers that violated the protocol.
    fn with_groups<T>(
        &mut self,
        host: &H,
        call: impl FnOnce(&mut Groups<H>, &mut Carrier<'_, H>) -> T,
    ) -> T {
        let groups = self.groups.get_or_insert_default();
        let mut carrier = Carrier::new(host, &mut self.outbox, &mut self.routes);
        let result = call(groups, &mut carrier);
        for (connection, why) in carrier.into_violations() {
            self.cut_off(host, connection, why);
        }
        result
    }

    /// Joins a group, and starts a barrier that completes when the other members have joined too. With `by_itself`
    /// there is no barrier, and the group counts as joined at once: the program must ensure that the others join.
    pub fn join(
        &mut self,
        host: &H,
        members: Members,
        address: u64,
        attached: H::Group,
        by_itself: bool,
        now: Instant,
    ) {
        self.with_groups(host, |groups, carrier| {
            groups.join(carrier, members, address, attached, by_itself, now);
        });
    }

    /// Leaves a group. Its operations in flight end.
    pub fn leave(&mut self, host: &H, address: u64, now: Instant) {
        if self.groups.is_some() {
            self.with_groups(host, |groups, carrier| groups.leave(carrier, address, now));
        }
    }

    /// Begins a collective operation.
    ///
    /// # Errors
    /// [`Error::Invalid`]: unknown group; [`Error::NotConnected`]: not all members have joined; or why the group has
    /// ended.
    pub fn collective(
        &mut self,
        host: &H,
        it: Loaded,
        attached: H::Operation,
        now: Instant,
    ) -> Result<()> {
        if self.groups.is_none() {
            return Err(Error::Invalid);
        }
        self.with_groups(host, |groups, carrier| {
            groups.begin(it, attached)?;
            groups.carry_on(carrier, now);
            Ok(())
        })
    }

    /// Advances all collective operations as far as possible. Returns whether it is time to check for peers that ended
    /// without a message.
    #[cold]
    pub(in crate::endpoint) fn carry_on_groups(&mut self, host: &H, now: Instant) -> bool {
        self.with_groups(host, |groups, carrier| {
            let look = groups.is_look_due(now);
            groups.carry_on(carrier, now);
            look
        })
    }

    /// Handles the end of a chunk: our chunk was answered, or the read of a peer's chunk has ended.
    #[cold]
    pub(in crate::endpoint) fn chunk_over(&mut self, host: &H, operation: Operation<H>) {
        self.with_groups(host, |groups, carrier| {
            groups.chunk_over(carrier, operation);
        });
    }

    /// Handles a chunk, or the message that a member has left a group.
    #[cold]
    pub(in crate::endpoint) fn chunk_arrived(
        &mut self,
        host: &H,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) {
        if !host.has_collectives() {
            let why = "the peer sent a collective message, which this endpoint does not support";
            return self.cut_off(host, connection, why);
        }
        if !self.connections()[connection].state().is_lost() {
            self.with_groups(host, |groups, carrier| {
                groups.chunk_arrived(carrier, connection, header, payload);
            });
        }
    }
}

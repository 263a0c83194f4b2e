//! Groups: joining, leaving and ending.

use super::super::{Endpoint, Host, Note};
use super::chunks::named;
use super::run::{End, Run};
use crate::collective::early_chunks::{Body, Chunk, Key, LEFT};
use crate::collective::kind::Kind;
use crate::collective::names::{self, Name};
use crate::collective::plan::Plan;
use crate::error::{Error, Result};
use crate::header::{Header, Kind as HeaderKind};
use crate::peers::Route;
use core::net::SocketAddr;
use std::time::Instant;

/// The members of a group, and our rank.
#[derive(Clone, Debug)]
pub struct Members {
    /// Their addresses, in the order that all members agree on, without duplicates.
    pub addresses: Vec<SocketAddr>,
    /// Our rank.
    pub rank: usize,
}

/// A group that the endpoint is in.
pub(super) struct Group<G> {
    /// The program's number for the group.
    pub(super) address: u64,
    pub(super) name: Name,
    pub(super) members: Vec<Member>,
    /// Our rank.
    pub(super) rank: usize,
    /// The number of the next operation.
    pub(super) next: u32,
    /// Whether all members have joined.
    pub(super) joined: bool,
    /// Why the group has ended.
    pub(super) broken: Option<Error>,
    /// The host's data for reports to the program.
    pub(super) attached: G,
}

pub(super) struct Member {
    pub(super) address: SocketAddr,
    /// Whether the member has left, or its connection is lost.
    pub(super) left: bool,
}

impl<G> Group<G> {
    /// A group that only we have joined so far.
    pub(super) fn new(
        address: u64,
        name: Name,
        members: Vec<SocketAddr>,
        rank: usize,
        attached: G,
    ) -> Self {
        let member = |address| Member {
            address,
            left: false,
        };
        Self {
            address,
            name,
            members: members.into_iter().map(member).collect(),
            rank,
            next: 1,
            joined: false,
            broken: None,
            attached,
        }
    }

    pub(super) fn rank_of(&self, address: SocketAddr) -> Option<usize> {
        self.members.iter().position(|it| it.address == address)
    }

    /// The other members.
    fn others(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.iter().enumerate();
        members.filter_map(|(index, member)| (index != self.rank).then_some(member))
    }
}

/// The message that notifies a member that we have left (no error), or that the group failed.
fn leave(name: Name, error: Option<Error>) -> Header {
    let error = error.map_or(0, |error| u64::from(error.number()));
    Header {
        tag: name.members,
        data: u64::from(name.instance) << 32 | error,
        ..Header::new(HeaderKind::Leave)
    }
}

impl<H: Host> Endpoint<H> {
    /// How many members a group has, and our rank.
    #[must_use]
    pub fn seat(&mut self, group: u64) -> Option<(usize, usize)> {
        let group = self.collective.as_mut()?.group(group)?;
        Some((group.members.len(), group.rank))
    }

    /// Whether all members of a group have joined.
    #[must_use]
    pub fn has_joined(&mut self, group: u64) -> bool {
        let it = self.collective.as_mut();
        it.and_then(|it| it.group(group))
            .is_some_and(|it| it.joined)
    }

    /// The rank of a member of a group.
    #[must_use]
    pub fn rank_of(&mut self, group: u64, address: SocketAddr) -> Option<usize> {
        self.collective.as_mut()?.group(group)?.rank_of(address)
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
        let Members { addresses, rank } = members;
        let hash = names::members(addresses.iter().copied());
        let n = addresses.len();
        let it = self.collective.get_or_insert_default();
        let instance = it.instances.entry(hash).or_default();
        let name = Name {
            members: hash,
            instance: *instance,
        };
        *instance += 1;
        let mut group = Group::new(address, name, addresses, rank, attached);
        // Members that have already left the group or failed in it.
        let mut early = None;
        for member in &mut group.members {
            let key = Key {
                from: member.address,
                group: name,
                seq: LEFT,
            };
            while let Some(chunk) = it.early.take(&key) {
                if let Body::Left(error) = chunk.body {
                    member.left = true;
                    early = early.or(Error::reported(error.into()));
                }
            }
        }
        it.groups.push(group);
        if by_itself {
            self.joined(host, address, Ok(()));
        }
        if let Some(error) = early {
            self.break_up(host, address, error);
        }
        if by_itself {
            return;
        }
        let plan = Plan::new(Kind::Barrier, n, rank, 0);
        let it = self.collective.get_or_insert_default();
        it.add(Run::new(address, plan, End::Join));
        self.carry_on(host, now);
    }

    /// Whether a group is still being joined, or could not be joined and has members that must still be notified.
    #[must_use]
    pub fn is_joining(&mut self, address: u64) -> bool {
        let Some(it) = &mut self.collective else {
            return false;
        };
        let told = it.telling.is_empty();
        it.group(address)
            .is_some_and(|group| !group.joined && (group.broken.is_none() || !told))
    }

    /// Reports that all members have joined, or why the group cannot be joined.
    pub(super) fn joined(&mut self, host: &H, address: u64, result: Result<()>) {
        let it = self.collective.as_mut();
        if let Some(group) = it.and_then(|it| it.group(address)) {
            group.joined |= result.is_ok();
            host.joined(&group.attached, result);
        }
    }

    /// Leaves a group. Its operations in flight end.
    pub fn leave(&mut self, host: &H, address: u64, now: Instant) {
        let Some(it) = &mut self.collective else {
            return;
        };
        if it.runs.iter().any(|run| run.group == address) {
            self.break_up(host, address, Error::Canceled);
            self.carry_on(host, now);
        }
        let Some(it) = &mut self.collective else {
            return;
        };
        let Some(index) = it.groups.iter().position(|it| it.address == address) else {
            return;
        };
        let group = it.groups.remove(index);
        it.early.forget_group(group.name);
        if group.broken.is_some() {
            return;
        }
        for member in group.others() {
            if let Route::Open(connection) = self.routes.route_of(member.address) {
                self.answer(host, connection, &leave(group.name, None), &[]);
            }
        }
    }

    /// Ends a group after a failure; notifies all members, once.
    pub(super) fn break_up(&mut self, host: &H, address: u64, error: Error) {
        let Some(it) = &mut self.collective else {
            return;
        };
        let mut groups = it.groups.iter_mut();
        let group = groups.find(|group| group.address == address && group.broken.is_none());
        let Some(group) = group else {
            return;
        };
        group.broken = Some(error);
        let members = group.members.len();
        host.note(Note::GroupBroken { members, error });
        let header = leave(group.name, Some(error));
        let others = group.others().map(|member| (member.address, header));
        it.telling.extend(others);
    }

    /// Handles the message that a member has left a group or failed in it.
    pub(super) fn heard_leave(&mut self, host: &H, connection: usize, header: &Header) {
        let from = self.connections()[connection].peer;
        let (name, error) = named(header);
        let it = self.collective.get_or_insert_default();
        let was = it.was(name);
        let Some(group) = it.named(name) else {
            if was {
                return;
            }
            let key = Key {
                from,
                group: name,
                seq: LEFT,
            };
            let chunk = Chunk {
                connection,
                id: 0,
                signature: 0,
                body: Body::Left(error),
            };
            return self.keep_chunk(host, key, chunk);
        };
        let Some(rank) = group.rank_of(from) else {
            return;
        };
        let address = group.address;
        match Error::reported(error.into()) {
            None => group.members[rank].left = true,
            Some(error) => self.break_up(host, address, error),
        }
    }

    /// Answers a chunk of an ended group.
    pub(super) fn refuse_chunk(&mut self, host: &H, connection: usize, name: Name, error: Error) {
        if !self.connections()[connection].state().is_lost() {
            self.answer(host, connection, &leave(name, Some(error)), &[]);
        }
    }
}

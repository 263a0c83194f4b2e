//! Groups: joining, leaving and ending.

use super::super::{Host, Note};
use super::Groups;
use super::carrier::Carrier;
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
pub(super) fn leave(name: Name, error: Option<Error>) -> Header {
    let error = error.map_or(0, |error| u64::from(error.number()));
    Header {
        tag: name.members,
        data: u64::from(name.instance) << 32 | error,
        ..Header::new(HeaderKind::Leave)
    }
}

impl<H: Host> Groups<H> {
    /// Joins a group, and starts a barrier that completes when the other members have joined too. With `by_itself`
    /// there is no barrier, and the group counts as joined at once: the program must ensure that the others join.
    pub(super) fn join(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        members: Members,
        address: u64,
        attached: H::Group,
        by_itself: bool,
        now: Instant,
    ) {
        let Members { addresses, rank } = members;
        let hash = names::members(addresses.iter().copied());
        let n = addresses.len();
        let instance = self.instances.entry(hash).or_default();
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
            while let Some(chunk) = self.early.take(&key) {
                if let Body::Left(error) = chunk.body {
                    member.left = true;
                    early = early.or(Error::reported(error.into()));
                }
            }
        }
        self.groups.push(group);
        if by_itself {
            self.joined(carrier.host, address, Ok(()));
        }
        if let Some(error) = early {
            self.break_up(carrier.host, address, error);
        }
        if by_itself {
            return;
        }
        let plan = Plan::new(Kind::Barrier, n, rank, 0);
        self.add(Run::new(address, plan, End::Join));
        self.carry_on(carrier, now);
    }

    /// Reports that all members have joined, or why the group cannot be joined.
    pub(super) fn joined(&mut self, host: &H, address: u64, result: Result<()>) {
        if let Some(group) = self.group_mut(address) {
            group.joined |= result.is_ok();
            host.joined(&group.attached, result);
        }
    }

    /// Leaves a group. Its operations in flight end.
    pub(super) fn leave(&mut self, carrier: &mut Carrier<'_, H>, address: u64, now: Instant) {
        if self.runs.iter().any(|run| run.group == address) {
            self.break_up(carrier.host, address, Error::Canceled);
            self.carry_on(carrier, now);
        }
        let Some(index) = self.groups.iter().position(|it| it.address == address) else {
            return;
        };
        let group = self.groups.remove(index);
        self.early.forget_group(group.name);
        if group.broken.is_some() {
            return;
        }
        for member in group.others() {
            if let Route::Open(connection) = carrier.route_of(member.address) {
                carrier.tell(connection, &leave(group.name, None));
            }
        }
    }

    /// Ends a group after a failure; notifies all members, once.
    pub(super) fn break_up(&mut self, host: &H, address: u64, error: Error) {
        let mut groups = self.groups.iter_mut();
        let group = groups.find(|group| group.address == address && group.broken.is_none());
        let Some(group) = group else {
            return;
        };
        group.broken = Some(error);
        let members = group.members.len();
        host.note(Note::GroupBroken { members, error });
        let header = leave(group.name, Some(error));
        let others = group.others().map(|member| (member.address, header));
        self.telling.extend(others);
    }

    /// Handles the message that a member has left a group or failed in it.
    pub(super) fn heard_leave(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        connection: usize,
        header: &Header,
    ) {
        let from = carrier.connections()[connection].peer;
        let (name, error) = named(header);
        let was = self.was(name);
        let Some(group) = self.named(name) else {
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
            return self.keep_chunk(carrier, key, chunk);
        };
        let Some(rank) = group.rank_of(from) else {
            return;
        };
        let address = group.address;
        match Error::reported(error.into()) {
            None => group.members[rank].left = true,
            Some(error) => self.break_up(carrier.host, address, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::flow::EXCEEDED;
    use super::super::super::test_host::{TestHost, address, outbox};
    use super::*;
    use crate::routes::Routes;

    const GROUP: u64 = 40;

    /// Calls new groups, in which we have joined a group with the peers at these ports; returns them, and why peers lose
    /// their connections.
    fn joined(
        host: &TestHost,
        ports: &[u16],
        call: impl FnOnce(&mut Groups<TestHost>, &mut Carrier<'_, TestHost>),
    ) -> (Groups<TestHost>, Vec<(usize, &'static str)>) {
        let (mut outbox, mut routes) = (outbox(host), Routes::default());
        routes.accepted(address(1).into(), 0);
        let mut carrier = Carrier::new(host, &mut outbox, &mut routes);
        let mut groups = Groups::default();
        let ports = [9].iter().chain(ports);
        let members = Members {
            addresses: ports.map(|&port| address(port)).collect(),
            rank: 0,
        };
        groups.join(&mut carrier, members, GROUP, 5, true, Instant::now());
        call(&mut groups, &mut carrier);
        (groups, carrier.into_violations())
    }

    /// A header of the group's messages.
    fn of_group(groups: &Groups<TestHost>, kind: HeaderKind, low: u32) -> Header {
        let name = groups.groups[0].name;
        Header {
            tag: name.members,
            data: u64::from(name.instance) << 32 | u64::from(low),
            ..Header::new(kind)
        }
    }

    const CHUNK: HeaderKind = HeaderKind::Chunk { signature: 1 };

    #[test]
    fn the_members_of_a_failed_group_are_told_once() {
        let host = TestHost::default();
        let (groups, _) = joined(&host, &[1, 2], |groups, carrier| {
            assert!(groups.has_joined(GROUP) && groups.seat(GROUP) == Some((3, 0)));
            assert_eq!(groups.rank_of(GROUP, address(2)), Some(2));
            host.take();
            for _ in 0..2 {
                groups.break_up(&host, GROUP, Error::Remote);
                groups.tell_members(carrier);
            }
            assert_eq!(host.take().len(), 1, "only one member has a connection");
        });
        assert!(groups.is_idle() && groups.under_way() == 0);
        assert!(!groups.is_joining(GROUP), "the group was joined");
    }

    #[test]
    fn a_chunk_of_an_ended_group_is_answered() {
        let host = TestHost::default();
        let (_, violations) = joined(&host, &[1], |groups, carrier| {
            let chunk = of_group(groups, CHUNK, 1);
            groups.chunk_arrived(carrier, 0, &chunk, &[]);
            groups.leave(carrier, GROUP, Instant::now());
            assert_eq!(groups.seat(GROUP), None);
            host.take();
            groups.chunk_arrived(carrier, 0, &chunk, &[]);
            assert_eq!(host.take().len(), 1, "the sender waits for us");
        });
        assert!(violations.is_empty());
    }

    #[test]
    fn only_members_may_send_to_a_group_and_only_so_much() {
        let host = TestHost::default();
        let (_, violations) = joined(&host, &[2], |groups, carrier| {
            let chunk = of_group(groups, CHUNK, 1);
            groups.chunk_arrived(carrier, 0, &chunk, &[]);
        });
        assert_eq!(violations.len(), 1, "the peer at port 1 is no member");
        let (_, violations) = joined(&host, &[1], |groups, carrier| {
            for seq in 1..=4097 {
                let chunk = of_group(groups, CHUNK, seq);
                groups.chunk_arrived(carrier, 0, &chunk, &[]);
            }
        });
        assert_eq!(violations, [(0, EXCEEDED)]);
    }

    #[test]
    fn a_member_that_leaves_without_an_error_ends_no_group() {
        let host = TestHost::default();
        for (error, broken) in [(0, None), (125, Some(Error::Canceled))] {
            let (groups, _) = joined(&host, &[1], |groups, carrier| {
                let leave = of_group(groups, HeaderKind::Leave, error);
                groups.heard_leave(carrier, 0, &leave);
            });
            assert_eq!(groups.groups[0].broken, broken);
            assert_eq!(groups.groups[0].members[1].left, error == 0);
        }
    }
}

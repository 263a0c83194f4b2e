//! Collective operations of groups of endpoints.
//!
//! Members send each other chunks, which are a separate kind of message: no receive of the program ever matches one. A
//! chunk identifies its group by the members and a count of the earlier groups with the same members, so members need
//! not agree on a number. It identifies the operation by its position in the group. Short chunks carry their payload;
//! long ones are read from the sender's memory. The receiver answers a chunk when it uses it, and an operation ends
//! when its chunks are answered. So a chunk that is still in flight when its sender leaves belongs to a failed
//! operation.
//!
//! When an operation fails, the whole group ends: each member that learns of the failure notifies the others.
//!
//! | module | what it is |
//! | --- | --- |
//! | `calls` | what the rest of the endpoint calls |
//! | `carrier` | what carries the messages of groups |
//! | `group` | joining and leaving |
//! | `run` | operations in flight |
//! | `chunks` | sending and receiving chunks |
//!
//! Plans, names and waiting chunks are in [`crate::collective`].

mod calls;
mod carrier;
mod chunks;
mod group;
mod run;

pub use group::Members;
pub use run::{Call, Loaded};

use super::Host;
use crate::collective::RUNS_MAX;
use crate::collective::early_chunks::EarlyChunks;
use crate::collective::names::Name;
use crate::error::{Error, Result};
use crate::header::Header;
use core::net::SocketAddr;
use group::Group;
use run::{Finished, Run};
use std::collections::HashMap;
use std::time::Instant;

/// A buffer with capacity for `len` bytes, unless no memory is left.
fn reserved(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(len);
    reserved.map_err(|_| Error::NoMemory).map(|()| bytes)
}

/// Like [`reserved`], but filled with zeros.
fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = reserved(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// The groups of an endpoint, and their operations in flight.
pub struct Groups<H: Host> {
    groups: Vec<Group<H::Group>>,
    /// How many groups were joined with the same members, by the hash of the members.
    instances: HashMap<u64, u32>,
    early: EarlyChunks,
    runs: Vec<Run<H::Operation>>,
    /// Chunks that have been answered or read, for the runs that wait for them.
    finished: Vec<Finished>,
    /// Messages to members that have no connection yet.
    telling: Vec<(SocketAddr, Header)>,
    /// How many runs have been started.
    started: u64,
    /// When to check peers next.
    look: Option<Instant>,
}

impl<H: Host> Default for Groups<H> {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            instances: HashMap::new(),
            early: EarlyChunks::default(),
            runs: Vec::new(),
            finished: Vec::new(),
            telling: Vec::new(),
            started: 0,
            look: None,
        }
    }
}

impl<H: Host> Groups<H> {
    /// How many members a group has, and our rank.
    #[must_use]
    pub fn seat(&self, group: u64) -> Option<(usize, usize)> {
        let group = self.group(group)?;
        Some((group.members.len(), group.rank))
    }

    /// Whether all members of a group have joined.
    #[must_use]
    pub fn has_joined(&self, group: u64) -> bool {
        self.group(group).is_some_and(|group| group.joined)
    }

    /// Whether a group is still being joined, or could not be joined and has members that must still be notified.
    #[must_use]
    pub fn is_joining(&self, group: u64) -> bool {
        let told = self.telling.is_empty();
        self.group(group)
            .is_some_and(|group| !group.joined && (group.broken.is_none() || !told))
    }

    /// The rank of a member of a group.
    #[must_use]
    pub fn rank_of(&self, group: u64, address: SocketAddr) -> Option<usize> {
        self.group(group)?.rank_of(address)
    }

    /// How many operations are not complete.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.runs.len()
    }

    /// Whether no more operations can begin now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.runs.len() >= RUNS_MAX
    }

    /// Whether the collective operations have no work to do.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.finished.is_empty() && self.telling.is_empty()
    }

    /// Handles a lost connection. If the connection was in use, its peer counts as having left all groups, because messages
    /// between the two may be lost.
    pub(super) fn forget_connection(&mut self, connection: usize, peer: SocketAddr, was_up: bool) {
        if !self.early.forget_connection(connection) && !was_up {
            return;
        }
        for group in &mut self.groups {
            if let Some(rank) = group.rank_of(peer) {
                group.members[rank].left = true;
            }
        }
    }

    fn group(&self, address: u64) -> Option<&Group<H::Group>> {
        self.groups.iter().find(|group| group.address == address)
    }

    fn group_mut(&mut self, address: u64) -> Option<&mut Group<H::Group>> {
        self.groups
            .iter_mut()
            .find(|group| group.address == address)
    }

    fn named(&mut self, name: Name) -> Option<&mut Group<H::Group>> {
        self.groups.iter_mut().find(|group| group.name == name)
    }

    /// Whether this endpoint has ever joined a group with this name.
    fn was(&self, name: Name) -> bool {
        let joined = self.instances.get(&name.members);
        joined.is_some_and(|&joined| name.instance < joined)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_host::TestHost;
    use super::*;
    use crate::collective::early_chunks::{Body, Chunk, Key};

    /// A peer that we accepted may send chunks before we know that it is ready.
    #[test]
    fn a_member_is_lost_with_a_connection_that_was_up_or_brought_chunks() {
        let [ours, theirs] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let name = Name {
            members: 7,
            instance: 0,
        };
        for (brought, was_up) in [(false, false), (true, false), (false, true)] {
            let mut it = Groups::<TestHost>::default();
            it.groups
                .push(Group::new(1, name, vec![ours, theirs], 0, 9));
            let key = Key {
                from: theirs,
                group: name,
                seq: 1,
            };
            let chunk = Chunk {
                connection: 3,
                id: 1,
                signature: 0,
                body: Body::Here(Vec::new()),
            };
            if brought {
                assert!(it.early.keep(key, chunk));
                assert!(it.early.take(&key).is_some(), "no trace of it is left");
            }
            it.forget_connection(3, theirs, was_up);
            let left = it.groups[0].members.iter().map(|member| member.left);
            assert_eq!(left.collect::<Vec<_>>(), [false, brought || was_up]);
        }
    }
}

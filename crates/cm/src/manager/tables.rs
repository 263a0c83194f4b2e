//! Indexes connections by the identifiers in messages.

use crate::address::Guid;
use crate::connection::{Connection, ConnectionId};
use core::net::IpAddr;
use core::ops::RangeInclusive;
use std::collections::{BTreeMap, BTreeSet};

/// An identifier of a peer: its address, its device instance, and its communication id or queue pair number. The address
/// is included so that no other host can speak for the peer.
type Named = (IpAddr, Guid, u32);

/// The tables. They are ordered trees: no choice of keys makes a lookup slow, and they shrink.
#[derive(Debug, Default)]
pub(super) struct Tables {
    local: BTreeMap<u32, ConnectionId>,
    remote: BTreeMap<Named, ConnectionId>,
    queue_pairs: BTreeMap<Named, ConnectionId>,
    resolutions: BTreeMap<(IpAddr, u32), ConnectionId>,
    /// The connections, by the peer's communication id.
    peers: BTreeSet<(u32, ConnectionId)>,
}

impl Tables {
    /// Adds a connection's identifiers. They replace those of an ended connection that are equal.
    pub(super) fn add(&mut self, id: ConnectionId, it: &Connection) {
        self.local.insert(it.local_id, id);
        let (Some(remote), peer) = (it.remote_id, it.peer) else {
            return;
        };
        self.peers.insert((remote, id));
        let Some(guid) = it.guid else {
            self.resolutions.insert((peer, remote), id);
            return;
        };
        self.remote.insert((peer, guid, remote), id);
        if let Some(qpn) = it.remote_qpn {
            self.queue_pairs.insert((peer, guid, qpn), id);
        }
    }

    pub(super) fn remove(&mut self, id: ConnectionId, it: &Connection) {
        self.local.remove(&it.local_id);
        let (Some(remote), peer) = (it.remote_id, it.peer) else {
            return;
        };
        self.peers.remove(&(remote, id));
        let Some(guid) = it.guid else {
            remove_own(&mut self.resolutions, (peer, remote), id);
            return;
        };
        remove_own(&mut self.remote, (peer, guid, remote), id);
        if let Some(qpn) = it.remote_qpn {
            remove_own(&mut self.queue_pairs, (peer, guid, qpn), id);
        }
    }

    pub(super) fn ids_in_use(&self) -> usize {
        self.local.len()
    }

    pub(super) fn by_local(&self, id: u32) -> Option<ConnectionId> {
        self.local.get(&id).copied()
    }

    pub(super) fn by_remote(&self, peer: IpAddr, guid: Guid, id: u32) -> Option<ConnectionId> {
        self.remote.get(&(peer, guid, id)).copied()
    }

    pub(super) fn by_queue_pair(&self, peer: IpAddr, guid: Guid, qpn: u32) -> Option<ConnectionId> {
        self.queue_pairs.get(&(peer, guid, qpn)).copied()
    }

    pub(super) fn by_resolution(&self, peer: IpAddr, request: u32) -> Option<ConnectionId> {
        self.resolutions.get(&(peer, request)).copied()
    }

    /// The connections whose peers have communication ids in this range.
    pub(super) fn with_remote(
        &self,
        ids: RangeInclusive<u32>,
    ) -> impl Iterator<Item = ConnectionId> {
        let (first, last) = (ids.start(), ids.end());
        let from = (*first, ConnectionId(0));
        let found = self.peers.range(from..=(*last, ConnectionId(u64::MAX)));
        found.map(|(_, id)| *id)
    }

    pub(super) fn len(&self) -> usize {
        self.local.len()
            + self.remote.len()
            + self.queue_pairs.len()
            + self.resolutions.len()
            + self.peers.len()
    }
}

/// Removes an entry if it belongs to this connection.
fn remove_own<K: Ord>(table: &mut BTreeMap<K, ConnectionId>, key: K, id: ConnectionId) {
    if table.get(&key) == Some(&id) {
        table.remove(&key);
    }
}

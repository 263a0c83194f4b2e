//! Peers by destination and by the program's number, and the route of messages to each. Each receive context of a scalable
//! endpoint is a separate peer.

use crate::address::Destination;
use crate::connection::NumberHasher;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

/// How long after a failed attempt its error can be reported to a program that retries.
pub const REMEMBERED: Duration = Duration::from_secs(10);

/// A peer. `E` is the error if it cannot be reached; `C` identifies a caller that must retry.
#[derive(Debug)]
pub struct Peer<E, C> {
    /// The destination of messages to the peer.
    pub destination: Destination,
    /// The route of messages to it.
    pub route: Route,
    /// The error of the last attempt to reach it, until it is reported to the program.
    pub failed: Option<(E, Instant)>,
    /// Callers that got [`Error::Again`](crate::error::Error::Again), and for which the result of the connection attempt is not known yet.
    pub retrying: Vec<C>,
}

/// The route of messages to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// There is no connection.
    None,
    /// A connection is being made.
    Connecting,
    /// Messages go over this connection.
    Open(usize),
}

/// The peers of an endpoint.
#[derive(Debug)]
pub struct Peers<E, C> {
    list: Vec<Peer<E, C>>,
    by_destination: HashMap<Destination, usize>,
    /// Index of the peer with each number in the address vector, plus one; 0 is none.
    by_number: Vec<u32>,
    /// The index of the peer with each number that names a receive context.
    by_context: HashMap<u64, usize, BuildHasherDefault<NumberHasher>>,
    /// The count of removals from the address vector at which both maps are valid.
    removals: u64,
    /// Free entries of `list`.
    free: Vec<usize>,
    /// The peer that [`Peers::at`] returned last, if it has not been forgotten since.
    last: Option<usize>,
}

impl<E, C> Default for Peers<E, C> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            by_destination: HashMap::new(),
            by_number: Vec::new(),
            by_context: HashMap::default(),
            removals: 0,
            free: Vec::new(),
            last: None,
        }
    }
}

impl<E, C> Peers<E, C> {
    /// The peer at a destination, which is added if it is new.
    #[inline]
    pub fn at(&mut self, destination: impl Into<Destination>) -> usize {
        let destination = destination.into();
        match self.last {
            Some(last) if self.list[last].destination == destination => last,
            _ => self.find_or_add(destination),
        }
    }

    fn find_or_add(&mut self, destination: Destination) -> usize {
        let peer = match self.find(destination) {
            Some(peer) => peer,
            None => self.add(destination),
        };
        self.last = Some(peer);
        peer
    }

    fn add(&mut self, destination: Destination) -> usize {
        let new = Peer {
            destination,
            route: Route::None,
            failed: None,
            retrying: Vec::new(),
        };
        let peer = match self.free.pop() {
            Some(peer) => {
                self.list[peer] = new;
                peer
            }
            None => {
                self.list.push(new);
                self.list.len() - 1
            }
        };
        self.by_destination.insert(destination, peer);
        peer
    }

    /// The peer at a destination, if it is known.
    pub fn find(&self, destination: impl Into<Destination>) -> Option<usize> {
        self.by_destination.get(&destination.into()).copied()
    }

    /// The peer with this number in the address vector; `None` if it is unknown or has been forgotten.
    #[inline]
    pub fn numbered(&self, number: u64) -> Option<usize> {
        let Some(known) = self.by_number.get(usize::try_from(number).ok()?) else {
            return self.by_context.get(&number).copied();
        };
        Some(known.checked_sub(1)? as usize)
    }

    /// Whether no address has been removed from the address vector since numbers were recorded.
    #[inline]
    pub fn has_seen(&self, removals: u64) -> bool {
        self.removals == removals
    }

    /// Forgets all numbers if addresses have been removed from the address vector since they were recorded.
    #[inline]
    pub fn see_removals(&mut self, removals: u64) {
        if removals != self.removals {
            self.removals = removals;
            self.by_number.clear();
            self.by_context.clear();
        }
    }

    /// Records the number of a peer in the address vector.
    pub fn set_number(&mut self, number: u64, peer: usize) {
        // Numbers count up from 0; the highest bits of larger ones name a receive context.
        let Ok(index) = u32::try_from(number).map(|number| number as usize) else {
            self.by_context.insert(number, peer);
            return;
        };
        if self.by_number.len() <= index {
            self.by_number.resize(index + 1, 0);
        }
        self.by_number[index] = peer as u32 + 1;
    }

    /// Forgets a peer, unless it has a route or a failure to report.
    pub fn forget(&mut self, destination: impl Into<Destination>) {
        let destination = destination.into();
        let Some(peer) = self.find(destination) else {
            return;
        };
        if self.list[peer].route == Route::None && self.list[peer].failed.is_none() {
            self.by_destination.remove(&destination);
            self.by_context.retain(|_, known| *known != peer);
            let number = peer as u32 + 1;
            for known in self.by_number.iter_mut().filter(|known| **known == number) {
                *known = 0;
            }
            self.last = self.last.filter(|&last| last != peer);
            self.free.push(peer);
        }
    }

    /// All peers.
    pub fn iter(&self) -> impl Iterator<Item = &Peer<E, C>> {
        self.by_destination.values().map(|&peer| &self.list[peer])
    }
}

impl<E, C> Peer<E, C> {
    /// Takes the error of the last attempt to reach it, for a program that retries. Reported once, and only for
    /// [`REMEMBERED`].
    pub fn take_failure(&mut self, now: Instant) -> Option<E> {
        let (error, at) = self.failed.take()?;
        (now.saturating_duration_since(at) < REMEMBERED).then_some(error)
    }
}

impl<E, C> Index<usize> for Peers<E, C> {
    type Output = Peer<E, C>;

    #[inline]
    fn index(&self, peer: usize) -> &Peer<E, C> {
        &self.list[peer]
    }
}

impl<E, C> IndexMut<usize> for Peers<E, C> {
    #[inline]
    fn index_mut(&mut self, peer: usize) -> &mut Peer<E, C> {
        &mut self.list[peer]
    }
}

/// Callers that got [`Error::Again`](crate::error::Error::Again), and for which the result of the connection attempt is known
/// now. They have neither retried nor been woken yet.
#[derive(Debug)]
pub struct Callers<C> {
    /// For each: the peer, the caller, and when the result became known.
    list: Vec<(usize, C, Instant)>,
    /// Whether no waiting caller has been notified of the last result. The caller that waits need not be the one that must retry.
    untold: bool,
}

impl<C> Default for Callers<C> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            untold: false,
        }
    }
}

impl<C: Copy + PartialEq> Callers<C> {
    /// Whether there are no such callers.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// For a caller that is about to wait: whether a call may be retried now, so that it should not wait.
    pub fn may_retry(&mut self, caller: C, now: Instant) -> bool {
        let before = self.list.len();
        // Forget old results: some callers never retry.
        self.list
            .retain(|it| it.1 != caller && now.saturating_duration_since(it.2) < REMEMBERED);
        std::mem::take(&mut self.untold) || self.list.len() < before
    }

    /// Records that this caller retried for a peer, so it need not be woken for this peer.
    pub fn retried(&mut self, peer: usize, caller: C) {
        self.list.retain(|it| (it.0, it.1) != (peer, caller));
        self.untold &= !self.is_empty();
    }

    /// Records that the result of an attempt to reach a peer is known: callers that must retry may do so now.
    pub fn connect_finished<E>(&mut self, peers: &mut Peers<E, C>, peer: usize, now: Instant) {
        let retrying = std::mem::take(&mut peers[peer].retrying);
        self.untold |= !retrying.is_empty();
        let retrying = retrying.into_iter().map(|caller| (peer, caller, now));
        self.list.extend(retrying);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    type Table = Peers<&'static str, u8>;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn peers_are_found_by_address_and_by_number() {
        let mut peers = Table::default();
        let (a, b) = (peers.at(address(1)), peers.at(address(2)));
        assert_eq!((peers.at(address(1)), peers.find(address(3))), (a, None));
        peers.set_number(5, b);
        assert_eq!((peers.numbered(5), peers.numbered(4)), (Some(b), None));
        assert_eq!((peers.numbered(6), peers.numbered(u64::MAX)), (None, None));
        peers.see_removals(0);
        assert_eq!(peers.numbered(5), Some(b), "no address was removed");
        peers.see_removals(1);
        assert_eq!(peers.numbered(5), None, "the number may be reused by now");
    }

    #[test]
    fn each_receive_context_of_an_address_is_a_peer() {
        let mut peers = Table::default();
        let context = |context| Destination {
            address: address(1),
            context,
        };
        let numbers = [0, 1 << 63, 3 << 32 | 5];
        let all = [0, 1, 255].map(|it| peers.at(context(it)));
        for (number, peer) in numbers.into_iter().zip(all) {
            peers.set_number(number, peer);
        }
        assert_eq!(numbers.map(|it| peers.numbered(it)), all.map(Some));
        assert_eq!(
            peers.find(address(1)),
            Some(all[0]),
            "an address names its first context"
        );
        assert_eq!(peers.numbered(1 << 62), None);
        peers.forget(context(1));
        assert_eq!(peers.numbered(1 << 63), None);
        assert_eq!(
            peers.numbered(0),
            Some(all[0]),
            "a lookup found another context"
        );
        peers.see_removals(1);
        assert_eq!(peers.numbered(3 << 32 | 5), None);
    }

    #[test]
    fn an_unreachable_peer_is_forgotten() {
        let mut peers = Table::default();
        let it = peers.at(address(1));
        peers.set_number(0, it);
        peers[it].route = Route::Connecting;
        peers.forget(address(1));
        assert_eq!(
            peers.find(address(1)),
            Some(it),
            "a connection is being made"
        );
        peers[it].route = Route::None;
        peers[it].failed = Some(("why", Instant::now()));
        peers.forget(address(1));
        assert_eq!(
            peers.find(address(1)),
            Some(it),
            "an unreported failure is forgotten"
        );
        peers[it].failed = None;
        peers.forget(address(1));
        assert_eq!((peers.find(address(1)), peers.numbered(0)), (None, None));
        assert_eq!(peers.at(address(2)), it, "the free slot is not reused");
        assert_eq!(peers.iter().count(), 1);
        let back = peers.at(address(1));
        assert_ne!(back, it, "another peer has the slot");
        peers.forget(address(1));
        assert_eq!(peers.at(address(1)), back);
        let known: Vec<_> = peers.iter().map(|peer| peer.destination).collect();
        assert_eq!(known.len(), 2, "the peer was added again: {known:?}");
    }

    #[test]
    fn a_failure_to_connect_is_reported_once_and_then_forgotten() {
        let (mut peers, now) = (Table::default(), Instant::now());
        let it = peers.at(address(1));
        peers[it].failed = Some(("why", now));
        assert_eq!(peers[it].take_failure(now), Some("why"));
        assert_eq!(peers[it].take_failure(now), None);
        peers[it].failed = Some(("why", now));
        assert_eq!(peers[it].take_failure(now + REMEMBERED), None);
    }

    #[test]
    fn callers_are_notified_once_that_they_may_retry() {
        let (mut peers, mut callers) = (Table::default(), Callers::default());
        let now = Instant::now();
        let it = peers.at(address(1));
        peers[it].retrying = vec![1, 2];
        assert!(!callers.may_retry(1, now), "the attempt has not ended");
        callers.connect_finished(&mut peers, it, now);
        assert!(peers[it].retrying.is_empty());
        assert!(
            callers.may_retry(3, now),
            "the first waiting caller is not told"
        );
        assert!(!callers.may_retry(3, now));
        assert!(callers.may_retry(1, now) && !callers.may_retry(1, now));
        assert!(!callers.is_empty(), "the other caller is forgotten");
        callers.retried(it, 2);
        assert!(
            callers.is_empty() && !callers.may_retry(2, now),
            "the caller retried without being woken"
        );
    }

    #[test]
    fn callers_that_never_retry_are_forgotten() {
        let (mut peers, mut callers) = (Table::default(), Callers::default());
        let now = Instant::now();
        let it = peers.at(address(1));
        peers[it].retrying = vec![1];
        callers.connect_finished(&mut peers, it, now);
        callers.may_retry(2, now + REMEMBERED);
        assert!(callers.is_empty());
    }
}

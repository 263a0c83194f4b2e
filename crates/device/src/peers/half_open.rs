//! Clients that have connected but not sent a request yet.
//!
//! These clients are untrusted: each has one second to send its request, and each list holds at most 64. The owner of the list
//! drops clients that are overdue. If there is no room for a new client, the owner drops one of the party that has the most.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

use crate::peers::link_limits::Party;

/// The maximum number of clients at a time.
pub(crate) const MAX: usize = 64;
/// How long a client may stay silent.
const TIME: Duration = Duration::from_secs(1);

/// Clients, in the order in which they connected.
#[derive(Debug)]
pub(crate) struct HalfOpen<C, P = Party>(Vec<Entry<C, P>>);

#[derive(Debug)]
struct Entry<C, P> {
    client: C,
    party: P,
    until: Instant,
}

impl<C, P: Copy + Eq + Hash> HalfOpen<C, P> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a client of a party that has just connected.
    pub(crate) fn push(&mut self, party: P, client: C) {
        self.0.push(Entry {
            client,
            party,
            until: Instant::now() + TIME,
        });
    }

    pub(crate) fn remove(&mut self, index: usize) -> C {
        self.0.remove(index).client
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is no room for another client.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= MAX
    }

    /// The first client for which `is_it` returns `true`.
    pub(crate) fn position(&self, is_it: impl Fn(&C) -> bool) -> Option<usize> {
        self.0.iter().position(|entry| is_it(&entry.client))
    }

    /// Whether a client has been silent for too long.
    pub(crate) fn is_overdue(&self, index: usize, now: Instant) -> bool {
        self.0[index].until <= now
    }

    /// The first client that has been silent for too long.
    pub(crate) fn overdue(&self, now: Instant) -> Option<usize> {
        self.0.iter().position(|entry| entry.until <= now)
    }

    /// The time at which the next client is overdue.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().map(|entry| entry.until).min()
    }

    /// The client to drop for a new one: the oldest one of the party with the most clients.
    pub(crate) fn greediest(&self) -> Option<usize> {
        let mut counts: HashMap<P, usize> = HashMap::new();
        for entry in &self.0 {
            *counts.entry(entry.party).or_default() += 1;
        }
        let most = *counts.values().max()?;
        self.0
            .iter()
            .position(|entry| counts.get(&entry.party) == Some(&most))
    }
}

impl<C, P> Index<usize> for HalfOpen<C, P> {
    type Output = C;

    fn index(&self, index: usize) -> &C {
        &self.0[index].client
    }
}

impl<C, P> IndexMut<usize> for HalfOpen<C, P> {
    fn index_mut(&mut self, index: usize) -> &mut C {
        &mut self.0[index].client
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::link_limits::tests::who;
    use rkey_link::peer::Credentials;

    fn greediest(clients: &[Credentials]) -> Option<usize> {
        let mut all = HalfOpen::new();
        (clients.iter()).for_each(|client| all.push(Party::of(*client), ()));
        all.greediest()
    }

    #[test]
    fn the_oldest_client_of_the_party_with_the_most_clients_is_dropped() {
        let processes = |of: &[u32]| {
            let clients: Vec<_> = of.iter().map(|pid| who(*pid, true)).collect();
            greediest(&clients)
        };
        assert_eq!(processes(&[]), None);
        assert_eq!(processes(&[1, 2, 3]), Some(0));
        assert_eq!(processes(&[1, 2, 3, 2]), Some(1));
        // All processes of another user are one party.
        let others = [who(1, true), who(2, false), who(3, false)];
        assert_eq!(greediest(&others), Some(1));
    }

    #[test]
    fn clients_become_overdue_in_order_of_arrival() {
        let mut all = HalfOpen::new();
        assert_eq!(all.next_deadline(), None);
        let before = Instant::now();
        for name in ["a", "b"] {
            all.push(Party::of(who(1, true)), name);
        }
        assert_eq!(all.overdue(before), None);
        let next = all.next_deadline().unwrap();
        assert!(next >= before + TIME);
        assert_eq!(all.overdue(next), Some(0));
        assert!(all.is_overdue(0, next) && all.is_overdue(1, next + TIME));
        assert_eq!(all.remove(0), "a");
        assert_eq!((all[0], all.len()), ("b", 1));
    }
}

//! Assigns a number to each peer address. A region that serves only one peer identifies the peer by this number (FI-212), and so
//! do the queue pairs that are connected to the peer.

use crate::domain::number;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// A peer that a region or a connection refers to.
pub(crate) struct Identity {
    pub(crate) number: u32,
}

/// The peers of a domain, by address.
#[derive(Default)]
pub(crate) struct Identities(Mutex<HashMap<SocketAddr, Weak<Identity>>>);

impl Identities {
    /// The peer with an address. All callers get the same peer as long as one of them holds it; after that, it gets a new number.
    pub(crate) fn of(&self, address: SocketAddr) -> Arc<Identity> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, identity| identity.strong_count() > 0);
        let identity = Arc::new(Identity { number: number() });
        all.insert(address, Arc::downgrade(&identity));
        identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_a_number_that_is_not_reused() {
        let (all, address) = (Identities::default(), |port| {
            SocketAddr::from(([127, 0, 0, 1], port))
        });
        let (one, other) = (all.of(address(1)), all.of(address(2)));
        assert_ne!(one.number, other.number);
        assert_eq!(all.of(address(1)).number, one.number);
        let before = one.number;
        drop(one);
        assert_ne!(all.of(address(1)).number, before);
        assert_eq!(all.0.lock().len(), 2, "unused peers are removed");
    }
}

//! Numbers of peers by their addresses: regions that serve one peer only know it by such a number (FI-212), and so
//! do the queue pairs that lead to it.

use crate::domain::number;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// A peer, as long as a region or a connection is about it.
pub(crate) struct Identity {
    pub(crate) number: u32,
}

/// The peers of a domain.
#[derive(Default)]
pub(crate) struct Identities(Mutex<HashMap<SocketAddr, Weak<Identity>>>);

impl Identities {
    /// The peer with an address: the same one for everybody who asks while anybody has it.
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
    fn a_number_is_one_peers_and_is_not_given_out_again() {
        let (all, address) = (Identities::default(), |port| {
            SocketAddr::from(([127, 0, 0, 1], port))
        });
        let (one, other) = (all.of(address(1)), all.of(address(2)));
        assert_ne!(one.number, other.number);
        assert_eq!(all.of(address(1)).number, one.number);
        let before = one.number;
        drop(one);
        assert_ne!(all.of(address(1)).number, before);
        assert_eq!(all.0.lock().len(), 2, "what nobody has is forgotten");
    }
}

//! Caches which addresses belong to this host: each check opens a socket.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::names;

/// How long a result is valid.
const TIME: Duration = Duration::from_secs(1);
/// The maximum number of addresses.
const MAX: usize = 64;

/// Recent results of [`names::is_of_this_host`].
#[derive(Debug, Default)]
pub(crate) struct KnownAddresses(BTreeMap<IpAddr, (Instant, bool)>);

impl KnownAddresses {
    /// Whether an address belongs to this host, or did within the last second.
    pub(crate) fn is_of_this_host(&mut self, address: IpAddr) -> bool {
        if address.is_loopback() {
            return true;
        }
        let now = crate::time::now();
        if let Some((since, is_ours)) = self.0.get(&address)
            && now - *since < TIME
        {
            return *is_ours;
        }
        let is_ours = names::is_of_this_host(address);
        if self.0.len() >= MAX {
            self.0.clear();
        }
        self.0.insert(address, (now, is_ours));
        is_ours
    }
}

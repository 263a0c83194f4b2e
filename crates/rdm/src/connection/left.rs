//! The messages that peers have left: they have exited, and the program has not received all of their messages.

use core::net::IpAddr;
use std::collections::HashMap;

/// An endpoint that keeps this many unread messages of exited peers admits no new peer.
pub(super) const LEFT_MESSAGES: u64 = 16 * 1024;
/// An endpoint that keeps this many unread bytes of exited peers admits no new peer.
pub(super) const LEFT_BYTES: u64 = 64 << 20;

/// How many unread messages and bytes exited peers have left, by address.
#[derive(Clone, Debug, Default)]
pub struct Left(HashMap<IpAddr, (u64, u64)>);

impl Left {
    pub(super) fn add(&mut self, from: IpAddr, messages: u64, bytes: u64) {
        let sum = self.0.entry(from).or_default();
        *sum = (sum.0 + messages, sum.1 + bytes);
    }

    /// Whether a new peer at an address must not be admitted. `host` returns the host of an address, if that is another one. A host is
    /// kept out if its peers have left a quarter of the limit, or those of all hosts together all of it. What they have left does not
    /// concern peers on this host.
    #[must_use]
    pub fn keeps_out<H: PartialEq>(&self, new: IpAddr, host: impl Fn(IpAddr) -> Option<H>) -> bool {
        let (mut of_host, mut of_group) = ((0, 0), (0, 0));
        let new = host(new);
        for (ip, (messages, bytes)) in &self.0 {
            let host = host(*ip);
            let add = |sum: &mut (u64, u64), counts: bool| {
                if counts {
                    *sum = (sum.0 + messages, sum.1 + bytes);
                }
            };
            add(&mut of_host, host == new);
            add(&mut of_group, host.is_some() == new.is_some());
        }
        let quarters =
            |(messages, bytes)| u64::max(messages * 4 / LEFT_MESSAGES, bytes * 4 / LEFT_BYTES);
        quarters(of_group) >= 4 || new.is_some() && quarters(of_host) >= 1
    }
}

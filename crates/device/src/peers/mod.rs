//! Other devices: how links to and from them are established and lost, and which processes they belong to.
//!
//! A link is established in one of two ways: another device connects to one of our sockets ([`Reception`]), or one of
//! our queue pairs or groups needs a link ([`Discovery`], [`GroupSearch`]). From then on [`Links`] watches it. The
//! engine thread owns all four as [`Peers`].
//!
//! | module | what it is |
//! | --- | --- |
//! | [`names`] | abstract socket names, which devices of one host use to find each other |
//! | `known_addresses` | caches which addresses belong to this host |
//! | `qp_numbers` | the blocks of queue pair numbers that this device has claimed |
//! | `reception` | accepts clients, and makes links for those that request one |
//! | `half_open` | clients that have connected but not yet sent a request |
//! | `handshake` | how links are made; names the kind of link |
//! | `discovery` | finds the device that has a queue pair number, and connects to it |
//! | `group_search` | finds the devices with members of a multicast group |
//! | `links` | watches the links, and takes down those that broke |
//! | `link_limits` | how many links and descriptors other processes may use |
//! | `identity` | which process a device belongs to |
//! | `process` | what the kernel reports about other processes |
//! | `streams` | TCP connections that show whether peers on other hosts still exist |
//! | `unresponsive` | whether a peer that does not respond had the processor time to do so |

pub(crate) mod discovery;
pub(crate) mod group_search;
pub(crate) mod half_open;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod known_addresses;
pub(crate) mod link_limits;
pub(crate) mod links;
pub mod names;
pub(crate) mod process;
pub(crate) mod qp_numbers;
pub(crate) mod reception;
pub(crate) mod streams;
pub(crate) mod unresponsive;

use std::time::Instant;

use crate::progress::reactor::Token;
use crate::shared::Shared;
use discovery::Discovery;
use group_search::GroupSearch;
use handshake::LocalNode;
use links::Links;
use reception::Reception;

/// Establishes links and takes them down. Owned by the engine thread.
pub(crate) struct Peers {
    reception: Reception,
    discovery: Discovery,
    groups: GroupSearch,
    links: Links,
}

impl Peers {
    /// No links yet.
    pub(crate) fn new(local: LocalNode) -> Self {
        Self {
            reception: Reception::new(local.clone()),
            discovery: Discovery::new(local),
            groups: GroupSearch::default(),
            links: Links::default(),
        }
    }

    /// Handles a readable descriptor. Returns whether the engine thread should drive.
    pub(crate) fn handle(&mut self, shared: &Shared, token: Token) -> bool {
        self.links.handle(shared, token)
            || self.reception.handle(shared, &mut self.links, token)
            || self.discovery.handle(shared, &mut self.links, token)
            || (shared.streams).handle(&shared.reactor, &shared.driver, token, Instant::now())
    }

    /// Handles the requests of other threads, and everything that is due at `now`. Returns whether the engine thread
    /// should drive.
    pub(crate) fn tidy(&mut self, shared: &Shared, now: Instant) -> bool {
        self.links.tidy(shared, now);
        shared.streams.tidy(&shared.driver, now);
        self.reception.tidy(shared, now);
        self.groups
            .start(shared, &mut self.discovery, &self.links, now);
        let connected = self.discovery.tidy(shared, &mut self.links, now);
        let found = self.groups.end(shared, &self.discovery, &self.links, now);
        shared.reclaim.ask_for_warrants(&shared.driver);
        unresponsive::judge(shared, &self.links, &self.discovery);
        connected || found
    }

    /// The latest time at which [`Peers::tidy`] must be called; `None` if there is no deadline.
    pub(crate) fn next_deadline(&self, shared: &Shared) -> Option<Instant> {
        let deadlines = [
            shared.streams.next_deadline(),
            self.reception.next_deadline(),
            self.discovery.next_deadline(),
            self.groups.next_deadline(),
            self.links.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Closes everything, so that peers notice the end of the device.
    pub(crate) fn close(&mut self, shared: &Shared) {
        self.discovery.close(shared);
        self.reception.close(shared);
        self.links.close(shared);
        shared.streams.close(&shared.reactor);
    }
}

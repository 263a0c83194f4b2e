//! Memory that a queue pair's requests named, given back.
//!
//! A request by reference that has ended here (by a time-out, a flush, or because its queue pair was
//! destroyed) may not have ended at the peer, which reaches into our memory by a call of its own. Whoever
//! registers memory is safe from that: closing the region waits for it. Whoever uses memory that has no
//! region of its own asks here before the program gets it back.

use std::time::{Duration, Instant};

use rkey_engine::{LinkId, QpAttributes, QpState};

use crate::device::Device;
use crate::objects::qp::Qp;
use crate::progress::Backoff;
use crate::reclaim::remote_copies::CopyScope;
use crate::shared::Shared;

impl Shared {
    /// The links over which something is under way that a queue pair does not wait for any more.
    fn links_with_orphans(&self, qpn: u32) -> Vec<LinkId> {
        match self.has_failed() {
            // All links count as lost.
            true => Vec::new(),
            false => self.engine.lock().orphaned_links(qpn),
        }
    }

    fn wait_until_quiet(&self, qpn: u32, deadline: Instant) {
        let (mut backoff, mut cut) = (Backoff::new(), Vec::new());
        loop {
            let links = self.links_with_orphans(qpn);
            if links.is_empty() {
                break;
            }
            if Instant::now() >= deadline && links != cut {
                self.cut_links("the end of a queue pair", &links);
                cut = links;
            }
            self.drive_now();
            backoff.sleep();
        }
        let scope = CopyScope::Qp(qpn);
        if !self.has_no_lost_peers(scope) {
            self.wait_for_lost_peers(scope);
        }
    }

    /// Whether no peer of a lost link is in the middle of a call that touches memory of this scope.
    pub(crate) fn has_no_lost_peers(&self, scope: CopyScope) -> bool {
        let lost_peers = self.remote_copies.has_lost_peers(&self.engine.lock());
        !lost_peers || self.settle_remote_copies(scope)
    }
}

impl Qp {
    /// Whether no peer touches memory any more because of requests of this queue pair that have ended with
    /// an error. It never waits.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let shared = self.device().shared();
        shared.is_forked()
            || shared.links_with_orphans(self.qpn()).is_empty()
                && shared.has_no_lost_peers(CopyScope::Qp(self.qpn()))
    }

    /// Gives up the links over which a peer may still touch such memory, because it has not answered for a
    /// long time. [`Qp::is_quiet`] says when that is done.
    pub fn cut_off(&self) {
        let shared = self.device().shared();
        if !shared.is_forked() {
            shared.cut_links(
                "a queue pair that failed",
                &shared.links_with_orphans(self.qpn()),
            );
        }
    }

    /// Ends the queue pair: everything that is posted is flushed, and when this returns no peer touches
    /// memory that any of its requests named. A peer that does not answer until `deadline` loses its link to
    /// this device; calls of the kernel that have begun are then waited for as [`Device::close_region`] does.
    pub fn quiesce(&self, deadline: Instant) {
        let shared = self.device().shared();
        if !shared.is_usable() {
            return;
        }
        // It goes there from every state.
        let _ = self.modify(&QpAttributes::to(QpState::Error));
        shared.wait_until_quiet(self.qpn(), deadline);
    }
}

impl Device {
    /// Waits until no peer touches memory any more because of requests that the queue pair of this number does not wait
    /// for: one that was reset, destroyed or put into the error state. A peer that does not answer until `patience` is
    /// over loses its link to this device; calls of the kernel that have begun are then waited for as [`Device::close_region`] does.
    pub fn wait_until_quiet(&self, qpn: u32, patience: Duration) {
        let shared = self.shared();
        if shared.is_usable() {
            shared.wait_until_quiet(qpn, Instant::now() + patience);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A long transfer of a device to itself may take longer than a peer may be silent.
    #[test]
    fn the_link_to_ourselves_is_never_given_up() {
        let device = Device::open(Config::default()).unwrap();
        let shared = device.shared();
        let link = *shared.loopback.get().unwrap();
        shared.cut_links("a test", &[link]);
        assert!(shared.thread_requests.take_cut().is_empty());
        assert!(shared.engine.lock().link(link).is_some());
    }
}

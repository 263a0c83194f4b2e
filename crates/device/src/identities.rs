//! Which process a device belongs to.
//!
//! A device says by itself who it is: a number that is printed in logs and known to everybody who ever
//! connected to it. Queue pairs recognise their peer's requests by it, so it must not be enough to say
//! somebody else's. The kernel says who is at the other end of a socket, and the first process that a
//! device was seen to belong to is the one that it belongs to: links and connections that say the same
//! from another process are refused, as long as anything of ours has to do with that device.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_link::shm::Credentials;
use rkey_link::{Link, NodeId};

use crate::error::DeviceError;
use crate::shared::Shared;

/// When so many devices are known, those that are not needed any more are forgotten.
const TIDY_AT: usize = 1024;
/// One that was seen so recently may be about to be needed.
const RECENT: Duration = Duration::from_secs(60);

/// Devices that were seen, and the processes that they belong to.
#[derive(Debug, Default)]
pub(crate) struct Identities(Mutex<HashMap<NodeId, Owner>>);

#[derive(Debug)]
struct Owner {
    uid: u32,
    /// `None`: a process that has no number in our process namespace.
    pid: Option<u32>,
    seen: Instant,
}

impl Identities {
    /// Whether the device is of this process, as far as we know. `in_use` says which devices our links
    /// and queue pairs are connected to.
    fn agree(
        &self,
        node: NodeId,
        uid: u32,
        pid: Option<u32>,
        in_use: impl FnOnce() -> HashSet<NodeId>,
    ) -> bool {
        let now = Instant::now();
        let mut known = self.0.lock();
        if let Some(owner) = known.get_mut(&node) {
            let same = (owner.uid, owner.pid) == (uid, pid);
            if same {
                owner.seen = now;
            }
            return same;
        }
        if known.len() >= TIDY_AT {
            let in_use = in_use();
            known.retain(|node, owner| {
                in_use.contains(node) || now.duration_since(owner.seen) < RECENT
            });
        }
        known.insert(
            node,
            Owner {
                uid,
                pid,
                seen: now,
            },
        );
        true
    }
}

impl Shared {
    /// Whether the device at the other end of a link may be the one that it says it is. Of other users we
    /// also demand that it says the number of its own process; those of our own may have a process
    /// namespace of their own. It is never this device: to itself it has no such link.
    pub(crate) fn is_credible(&self, node: NodeId, who: Credentials) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        node != self.node
            && (who.uid == ours || who.pid == Some(node.pid))
            && self.belongs(node, who.uid, who.pid)
    }

    /// As [`Shared::is_credible`], about a peer that was met by its address.
    ///
    /// # Errors
    /// [`DeviceError::Handshake`]: the device is another process's.
    pub(crate) fn check_identity(
        &self,
        node: NodeId,
        uid: u32,
        pid: Option<u32>,
    ) -> Result<(), DeviceError> {
        let known = if node == self.node {
            pid == Some(std::process::id())
        } else {
            self.belongs(node, uid, pid)
        };
        if known {
            return Ok(());
        }
        tracing::warn!(%node, uid, "a process says that it is another process's device");
        Err(DeviceError::Handshake(
            "the peer says that it is the device of another process",
        ))
    }

    fn belongs(&self, node: NodeId, uid: u32, pid: Option<u32>) -> bool {
        self.identities.agree(node, uid, pid, || {
            let engine = self.engine.lock();
            let links = engine.links().map(|(_, link)| link.node());
            links
                .chain(engine.snapshot().qps.iter().filter_map(|qp| qp.peer))
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(nonce: u64) -> NodeId {
        NodeId { pid: 1, nonce }
    }

    #[test]
    fn the_first_process_has_it() {
        let known = Identities::default();
        let none = HashSet::new;
        assert!(known.agree(node(1), 1000, Some(7), none));
        assert!(known.agree(node(1), 1000, Some(7), none));
        for (uid, pid) in [(1000, Some(8)), (1001, Some(7)), (1000, None)] {
            assert!(!known.agree(node(1), uid, pid, none));
        }
        // Nobody else's attempt has changed anything.
        assert!(known.agree(node(1), 1000, Some(7), none));
    }

    #[test]
    fn who_is_not_needed_is_forgotten_in_time() {
        let known = Identities::default();
        for n in 0..TIDY_AT as u64 {
            assert!(known.agree(node(n), 1, Some(1), HashSet::new));
        }
        let old = Instant::now().checked_sub(2 * RECENT);
        let Some(old) = old else {
            eprintln!("SKIP: the clock of this machine has just begun");
            return;
        };
        for (node, owner) in known.0.lock().iter_mut() {
            if node.nonce >= 10 {
                owner.seen = old;
            }
        }
        let in_use = || HashSet::from([node(500)]);
        assert!(known.agree(node(1 << 20), 1, Some(1), in_use));
        // Ten recent ones, one that is in use, and the new one are left.
        assert_eq!(known.0.lock().len(), 12);
        assert!(!known.agree(node(500), 2, Some(2), HashSet::new));
        assert!(known.agree(node(501), 2, Some(2), HashSet::new));
    }
}

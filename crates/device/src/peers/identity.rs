//! Which process a device belongs to.
//!
//! A device's name is the PID of its process and a random number. Logs contain that number, and every process that ever
//! connected to the device knows it. Queue pairs recognise their peer's requests by this name, so another process must not
//! be able to use it. The kernel reports which process is at the other end of a socket, and that process must have the PID
//! in the name ([`Claim`]). If we cannot see its PID (a peer in a PID namespace that encloses ours), the first process of
//! our user that uses a name owns it, until the kernel confirms another one: links and connections under the same name from
//! other processes are refused.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::Origin;
use rkey_link::NodeId;
use rkey_link::peer::Credentials;

use crate::config::Explain;
use crate::error::DeviceError;
use crate::peers::process::{self, Departed};

/// How many known devices trigger the first cleanup of unneeded ones.
const TIDY_AT: usize = 1024;
/// A device that was seen this recently may be needed soon.
const RECENT: Duration = Duration::from_secs(60);
/// The maximum number of known devices of one process. If it claims more, its oldest ones are forgotten.
const MAX_PER_PROCESS: usize = 256;

/// The devices that were seen, and the processes that own them.
#[derive(Debug)]
pub(crate) struct Identities {
    /// This device.
    own: NodeId,
    explain: Explain,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    owners: HashMap<NodeId, Owner>,
    /// The devices of each process, oldest first.
    of_process: HashMap<Process, VecDeque<NodeId>>,
    /// How many known devices trigger the next cleanup.
    tidy_at: usize,
}

#[derive(Debug)]
struct Owner {
    claim: Claim,
    seen: Instant,
    /// The name of the process's program when the device was first seen, to log the exit.
    program: Option<String>,
}

/// A process, as a socket's credentials identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process {
    uid: u32,
    /// `None`: it has no PID in our PID namespace.
    pid: Option<u32>,
    /// The start time of the process, which distinguishes it from a later one with the same PID; 0 if unknown.
    started: u64,
}

/// What the kernel reports about a process that claims a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    process: Process,
    /// The process has the PID in the device's name, in our own PID namespace: no other process can have that PID.
    sure: bool,
}

impl Claim {
    /// `None` if the process cannot be the one in the device's name.
    fn of(node: NodeId, uid: u32, pid: Option<u32>) -> Option<Self> {
        let ours = uid == rustix::process::geteuid().as_raw();
        let sure = pid == Some(node.pid);
        // A process of our own user may be in its own PID namespace, and give its PID there.
        let inner = pid.filter(|_| ours && !sure).map(process::innermost_pid);
        let may_be = match inner {
            Some(Some(number)) => number == node.pid,
            Some(None) | None => ours,
        };
        let started = pid.and_then(process::start_time).unwrap_or(0);
        let process = Process { uid, pid, started };
        (sure || may_be).then_some(Self { process, sure })
    }
}

impl Identities {
    /// Creates the identities for a new device. `explain` determines which peers learn why an access was refused.
    pub(crate) fn new(own: NodeId, explain: Explain) -> Self {
        Self {
            own,
            explain,
            known: Mutex::default(),
        }
    }

    /// The origin of requests from the process at the other end of a link, as the engine needs it.
    pub(crate) fn origin_of(&self, who: Credentials) -> Origin {
        let ours = rustix::process::geteuid().as_raw();
        let pid = who.pid.unwrap_or(0);
        let here = pid == std::process::id();
        let explain = match self.explain {
            Explain::User => who.uid == ours,
            Explain::All => true,
            Explain::None => false,
        };
        Origin {
            process: rkey_engine::Process {
                user: who.uid,
                pid,
                started: who.pid.and_then(process::start_time).unwrap_or(0),
                host: None,
            },
            here,
            explain: here || explain,
        }
    }

    /// Whether the device at the other end of a link may use its claimed name. This device's own name is never credible,
    /// because this device reaches itself by a loopback. `in_use` returns the devices that our links and queue pairs are
    /// connected to.
    pub(crate) fn is_credible(
        &self,
        node: NodeId,
        who: Credentials,
        in_use: impl FnOnce() -> HashSet<NodeId>,
    ) -> bool {
        node != self.own && self.belongs(node, who.uid, who.pid, in_use)
    }

    /// [`Identities::is_credible`] for a peer that connected by address, which may be this device.
    ///
    /// # Errors
    /// [`DeviceError::Handshake`]: the device belongs to another process.
    pub(crate) fn check(
        &self,
        node: NodeId,
        uid: u32,
        pid: Option<u32>,
        in_use: impl FnOnce() -> HashSet<NodeId>,
    ) -> Result<(), DeviceError> {
        let known = if node == self.own {
            pid == Some(std::process::id())
        } else {
            self.belongs(node, uid, pid, in_use)
        };
        if known {
            return Ok(());
        }
        tracing::warn!(%node, uid, ?pid, "a process claims the device of another process");
        Err(DeviceError::Handshake(
            "the peer claims another process's device",
        ))
    }

    /// The process of a known device, if it has exited.
    pub(crate) fn exited(&self, node: NodeId) -> Option<Departed> {
        let (process, program) = {
            let known = self.known.lock();
            let owner = known.owners.get(&node)?;
            (owner.claim.process, owner.program.clone())
        };
        let pid = process.pid?;
        let reused = process::start_time(pid).unwrap_or(0) != process.started;
        (reused || process::is_exiting(pid)).then_some(Departed {
            node,
            pid: Some(pid),
            program,
        })
    }

    fn belongs(
        &self,
        node: NodeId,
        uid: u32,
        pid: Option<u32>,
        in_use: impl FnOnce() -> HashSet<NodeId>,
    ) -> bool {
        Claim::of(node, uid, pid).is_some_and(|claim| self.agree(node, claim, in_use))
    }

    /// Whether the device may belong to the process of `claim`. If so, records the process as its owner.
    fn agree(&self, node: NodeId, claim: Claim, in_use: impl FnOnce() -> HashSet<NodeId>) -> bool {
        let now = Instant::now();
        let mut known = self.known.lock();
        let known = &mut *known;
        if let Some(owner) = known.owners.get_mut(&node) {
            if owner.claim.process == claim.process {
                owner.seen = now;
                return true;
            }
            // If both have the same PID, the earlier process has ended.
            let ended = owner.claim.process.pid == claim.process.pid;
            // An unconfirmed owner belongs to our own user, and only that user's processes can replace it.
            let is_other_user = !owner.claim.sure && claim.process.uid != owner.claim.process.uid;
            if !claim.sure || is_other_user || owner.claim.sure && !ended {
                return false;
            }
            let before = owner.claim.process;
            known.forget(node, before);
        } else if !known.make_room(claim.process, now, in_use) {
            return false;
        }
        let program = claim.process.pid.and_then(process::program);
        let owner = Owner {
            claim,
            seen: now,
            program,
        };
        known.owners.insert(node, owner);
        let of_process = known.of_process.entry(claim.process).or_default();
        of_process.push_back(node);
        true
    }
}

impl Known {
    fn forget(&mut self, node: NodeId, process: Process) {
        self.owners.remove(&node);
        if let Some(nodes) = self.of_process.get_mut(&process) {
            nodes.retain(|other| *other != node);
            if nodes.is_empty() {
                self.of_process.remove(&process);
            }
        }
    }

    /// Makes room for one more device of a process. Returns whether there is room.
    fn make_room(
        &mut self,
        process: Process,
        now: Instant,
        in_use: impl FnOnce() -> HashSet<NodeId>,
    ) -> bool {
        let own = self.of_process.get(&process).map_or(0, VecDeque::len);
        if own >= MAX_PER_PROCESS {
            // Forget half of them at once, so that a flood causes few lookups.
            let in_use = in_use();
            let nodes = self.of_process.remove(&process).unwrap_or_default();
            let mut surplus = MAX_PER_PROCESS / 2;
            let (gone, rest): (VecDeque<_>, VecDeque<_>) = nodes.into_iter().partition(|node| {
                let goes = surplus > 0 && !in_use.contains(node);
                surplus -= usize::from(goes);
                goes
            });
            for node in &gone {
                self.owners.remove(node);
            }
            let room = rest.len() < MAX_PER_PROCESS;
            self.of_process.insert(process, rest);
            return room;
        }
        if self.owners.len() >= self.tidy_at.max(TIDY_AT) {
            let in_use = in_use();
            self.owners.retain(|node, owner| {
                in_use.contains(node) || now.duration_since(owner.seen) < RECENT
            });
            let owners = &self.owners;
            self.of_process.retain(|_, nodes| {
                nodes.retain(|node| owners.contains_key(node));
                !nodes.is_empty()
            });
            // The next cleanup comes only when the number of known devices has doubled.
            self.tidy_at = 2 * self.owners.len();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(nonce: u64) -> NodeId {
        NodeId { pid: 1, nonce }
    }

    fn identities() -> Identities {
        Identities::new(node(u64::MAX), Explain::User)
    }

    fn claim(uid: u32, pid: u32, sure: bool) -> Claim {
        let process = Process {
            uid,
            pid: Some(pid),
            started: 5,
        };
        Claim { process, sure }
    }

    #[test]
    fn an_unconfirmed_device_belongs_to_the_first_process_that_claims_it() {
        let known = identities();
        let none = HashSet::new;
        let first = claim(1000, 7, false);
        assert!(known.agree(node(1), first, none));
        assert!(known.agree(node(1), first, none));
        for other in [claim(1000, 8, false), claim(1001, 7, false)] {
            assert!(!known.agree(node(1), other, none));
        }
        // The attempts of other processes changed nothing.
        assert!(known.agree(node(1), first, none));
    }

    /// A confirmed process replaces an unconfirmed one that came first.
    #[test]
    fn a_confirmed_process_replaces_an_unconfirmed_one() {
        let known = identities();
        let none = HashSet::new;
        let (squatter, owner) = (claim(1000, 7, false), claim(1000, 1, true));
        assert!(known.agree(node(1), squatter, none));
        assert!(known.agree(node(1), owner, none));
        assert!(!known.agree(node(1), squatter, none));
        assert!(known.agree(node(1), owner, none));
        // A later process with the same PID.
        let mut later = owner;
        later.process.started += 1;
        assert!(known.agree(node(1), later, none));
    }

    /// The claims that the kernel's credentials allow.
    #[test]
    fn a_process_cannot_claim_the_device_of_another_process() {
        let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
        let of = |number| NodeId {
            pid: number,
            nonce: 9,
        };
        assert!(Claim::of(of(pid), uid, Some(pid)).unwrap().sure);
        assert_eq!(Claim::of(of(pid + 1), uid, Some(pid)), None);
        assert_eq!(Claim::of(of(pid), uid + 1, Some(pid + 1)), None);
        assert_eq!(Claim::of(of(pid), uid + 1, None), None);
        // A process that we do not see.
        assert!(!Claim::of(of(pid), uid, None).unwrap().sure);
    }

    #[test]
    fn a_process_that_exits_after_it_was_seen_is_named() {
        let known = identities();
        let own = std::process::id();
        let uid = rustix::process::geteuid().as_raw();
        let running = NodeId { pid: own, nonce: 1 };
        assert!(known.check(running, uid, Some(own), HashSet::new).is_ok());
        let gone = claim(uid, u32::MAX, true);
        let outside = Claim {
            process: Process {
                pid: None,
                ..gone.process
            },
            sure: false,
        };
        let later = claim(uid, own, true);
        for (nonce, claim) in [(2, gone), (3, outside), (4, later)] {
            assert!(known.agree(node(nonce), claim, HashSet::new));
        }
        let exited = |node| known.exited(node).map(|one| one.pid);
        assert_eq!(exited(running), None);
        assert_eq!(exited(node(2)), Some(Some(u32::MAX)));
        assert_eq!(exited(node(3)), None, "it has no PID here");
        let reused = "another process has the PID now";
        assert_eq!(exited(node(4)), Some(Some(own)), "{reused}");
        assert_eq!(exited(node(5)), None, "it was never seen");
    }

    #[test]
    fn no_link_may_use_the_identity_of_this_device() {
        let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
        let own = NodeId { pid, nonce: 9 };
        let identities = Identities::new(own, Explain::User);
        let who = Credentials {
            pid: Some(pid),
            uid,
            gid: 0,
        };
        assert!(!identities.is_credible(own, who, HashSet::new));
        assert!(identities.check(own, uid, Some(pid), HashSet::new).is_ok());
        let other = identities.check(own, uid, Some(pid + 1), HashSet::new);
        assert!(matches!(other, Err(DeviceError::Handshake(_))));
    }

    #[test]
    fn rkey_explain_determines_which_peers_learn_the_reason() {
        let uid = rustix::process::geteuid().as_raw();
        let told = |explain, uid, pid| {
            let who = Credentials { pid, uid, gid: 0 };
            Identities::new(node(1), explain).origin_of(who).explain
        };
        let elsewhere = Some(u32::MAX);
        assert!(told(Explain::User, uid, elsewhere));
        assert!(!told(Explain::User, uid + 1, elsewhere));
        assert!(told(Explain::All, uid + 1, elsewhere));
        assert!(!told(Explain::None, uid, elsewhere));
        // This process itself always learns the reason.
        assert!(told(Explain::None, uid, Some(std::process::id())));
    }

    /// A process that keeps naming new devices costs bounded memory, and few lookups of our own queue pairs.
    #[test]
    fn a_flood_of_claimed_devices_uses_bounded_memory() {
        let known = identities();
        let mut looks = 0;
        let flood = claim(1000, 7, true);
        for n in 0..100_000 {
            assert!(known.agree(node(n), flood, || {
                looks += 1;
                HashSet::from([node(0)])
            }));
        }
        let state = known.known.lock();
        assert!(
            state.owners.len() <= MAX_PER_PROCESS,
            "{}",
            state.owners.len()
        );
        assert!(state.owners.contains_key(&node(0)), "the device is in use");
        assert!(looks <= 2 * 100_000 / MAX_PER_PROCESS, "{looks}");
    }

    #[test]
    fn devices_neither_recent_nor_in_use_are_forgotten() {
        let known = identities();
        let process = |n: u64| claim(1, n as u32, true);
        for n in 0..TIDY_AT as u64 {
            assert!(known.agree(node(n), process(n), HashSet::new));
        }
        let old = Instant::now().checked_sub(2 * RECENT);
        let Some(old) = old else {
            eprintln!("SKIP: the clock of this machine has just begun");
            return;
        };
        for (node, owner) in &mut known.known.lock().owners {
            if node.nonce >= 10 {
                owner.seen = old;
            }
        }
        let in_use = || HashSet::from([node(500)]);
        assert!(known.agree(node(1 << 20), claim(1, 1, true), in_use));
        // Ten recent ones, one that is in use, and the new one are left.
        assert_eq!(known.known.lock().owners.len(), 12);
        assert!(!known.agree(node(500), claim(2, 2, false), HashSet::new));
        assert!(known.agree(node(501), claim(2, 2, false), HashSet::new));
    }
}

//! Other processes, as messages name them, and those that have exited.

use std::collections::{HashSet, VecDeque};
use std::fs;

use parking_lot::Mutex;
use rkey_base::process::stat_field;
use rkey_link::NodeId;
use serde::{Deserialize, Serialize};

/// So many processes that have exited are remembered.
const REMEMBERED: usize = 256;

/// A process that has exited while it had a link to this device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// Its device.
    pub node: NodeId,
    /// Its number, if it had one in our process namespace.
    pub pid: Option<u32>,
    /// The name of its program, if that was known.
    pub program: Option<String>,
}

impl std::fmt::Display for Departed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PID {}", self.pid.unwrap_or(self.node.pid))?;
        match &self.program {
            Some(program) => write!(f, " ({program})"),
            None => Ok(()),
        }
    }
}

/// The processes that have exited lately.
#[derive(Debug, Default)]
pub(crate) struct DepartedPeers {
    exited: Mutex<VecDeque<Departed>>,
    /// Peers that connected a queue pair with ours. One that exits before there is a link is named from here.
    met: Mutex<VecDeque<Departed>>,
}

impl DepartedPeers {
    /// Notes who a peer is while its process is there to be asked.
    pub(crate) fn meet(&self, node: NodeId, pid: Option<u32>) {
        let one = || Departed {
            node,
            pid,
            program: pid.and_then(program),
        };
        remember(&mut self.met.lock(), node, one);
    }

    /// The process of a peer that was met and has exited; `None` if it is there, or never was met.
    pub(crate) fn exited_since_met(&self, node: NodeId) -> Option<Departed> {
        let met = self.met.lock();
        let one = met.iter().find(|one| one.node == node)?;
        one.pid.is_some_and(is_exiting).then(|| one.clone())
    }

    /// Remembers one that has exited; returns whether it is news.
    pub(crate) fn add(&self, one: Departed) -> bool {
        remember(&mut self.exited.lock(), one.node, || one)
    }

    /// Those whose devices are among these.
    pub(crate) fn of(&self, nodes: &HashSet<NodeId>) -> Vec<Departed> {
        let all = self.exited.lock();
        let named = all.iter().filter(|one| nodes.contains(&one.node));
        named.cloned().collect()
    }
}

/// Adds an entry for a device that is not in the list, at the cost of the oldest; returns whether it did.
fn remember(list: &mut VecDeque<Departed>, node: NodeId, one: impl FnOnce() -> Departed) -> bool {
    if list.iter().any(|known| known.node == node) {
        return false;
    }
    if list.len() >= REMEMBERED {
        list.pop_front();
    }
    list.push_back(one());
    true
}

/// Whether a process has ended, or is about to: its descriptors are closed a moment before it has.
pub(crate) fn is_exiting(pid: u32) -> bool {
    // include/linux/sched.h
    const PF_EXITING: u64 = 4;
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    let ended = matches!(stat_field(&stat, 3), Some("Z" | "X"));
    let flags = stat_field(&stat, 9).and_then(|flags| flags.parse::<u64>().ok());
    ended || flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

/// The number and the name of a process that is there, for people.
pub(crate) fn name_of(pid: Option<u32>) -> String {
    let Some(pid) = pid else {
        return "a process outside of our process namespace".to_owned();
    };
    match program(pid) {
        Some(program) => format!("PID {pid} ({program})"),
        None => format!("PID {pid}"),
    }
}

/// The name of the program that a process runs, made fit to be printed: the process chooses it.
pub(crate) fn program(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let name = name.trim_end_matches('\n');
    Some(name.chars().filter(|c| !c.is_control()).collect())
}

/// When a process was started, in the kernel's unit: a number is given to another process when its owner is gone.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat_field(&stat, 22)?.parse().ok()
}

/// The number that a process has for itself: in its own process namespace. `None` if `/proc` does not tell.
pub(crate) fn innermost_pid(pid: u32) -> Option<u32> {
    // It may be mounted from another process namespace, where numbers mean other processes.
    let own = fs::read_link("/proc/self").ok()?;
    if own.to_str()?.parse() != Ok(std::process::id()) {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_exits_after_it_was_met_is_named() {
        let peers = DepartedPeers::default();
        let node = |nonce| NodeId { pid: 1, nonce };
        peers.meet(node(1), Some(std::process::id()));
        peers.meet(node(2), Some(u32::MAX));
        peers.meet(node(3), None);
        let exited = |nonce| peers.exited_since_met(node(nonce));
        assert_eq!((exited(1), exited(3), exited(4)), (None, None, None));
        assert_eq!(exited(2).and_then(|one| one.pid), Some(u32::MAX));
        for nonce in 5..5 + REMEMBERED as u64 {
            peers.meet(node(nonce), None);
        }
        assert_eq!(exited(2), None);
    }

    #[test]
    fn what_is_said_of_this_process() {
        let pid = std::process::id();
        assert!(start_time(pid).is_some_and(|started| started > 0));
        assert_eq!(innermost_pid(pid), Some(pid));
        assert!(!is_exiting(pid) && is_exiting(u32::MAX));
        assert_eq!(start_time(u32::MAX), None);
        assert_eq!(innermost_pid(u32::MAX), None);
        let name = name_of(Some(pid));
        assert!(
            name.contains(&pid.to_string()) && name.contains('('),
            "{name}"
        );
        assert_eq!(name_of(Some(u32::MAX)), format!("PID {}", u32::MAX));
    }
}

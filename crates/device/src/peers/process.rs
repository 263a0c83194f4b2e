//! Other processes, as messages name them, and those that have exited.

use std::collections::{HashSet, VecDeque};
use std::fs;

use parking_lot::Mutex;
use rkey_base::process::stat_field;
use rkey_link::NodeId;
use serde::{Deserialize, Serialize};

/// So many processes that have exited are remembered.
const REMEMBERED: usize = 256;

/// A process that has exited while it was connected with this device.
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
pub(crate) struct DepartedPeers(Mutex<VecDeque<Departed>>);

impl DepartedPeers {
    /// Remembers one; returns whether it is news.
    pub(crate) fn add(&self, one: Departed) -> bool {
        let mut all = self.0.lock();
        if all.iter().any(|known| known.node == one.node) {
            return false;
        }
        if all.len() >= REMEMBERED {
            all.pop_front();
        }
        all.push_back(one);
        true
    }

    /// Those whose devices are among these.
    pub(crate) fn of(&self, nodes: &HashSet<NodeId>) -> Vec<Departed> {
        let all = self.0.lock();
        let named = all.iter().filter(|one| nodes.contains(&one.node));
        named.cloned().collect()
    }
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

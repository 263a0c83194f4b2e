//! Other processes: their names in messages, and a list of those that have exited.

use std::collections::{HashSet, VecDeque};
use std::fs;

use parking_lot::Mutex;
use rkey_base::process::stat_field;
use rkey_link::NodeId;
use serde::{Deserialize, Serialize};

/// The maximum number of exited processes that are remembered.
const MAX_REMEMBERED: usize = 256;

/// A process that has exited while it was connected to this device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// The device of the process.
    pub node: NodeId,
    /// The PID, if the process had one in our PID namespace.
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

/// The processes that have exited recently.
#[derive(Debug, Default)]
pub(crate) struct DepartedPeers(Mutex<VecDeque<Departed>>);

impl DepartedPeers {
    /// Adds a process. Returns whether it is new.
    pub(crate) fn add(&self, one: Departed) -> bool {
        let mut all = self.0.lock();
        if all.iter().any(|known| known.node == one.node) {
            return false;
        }
        if all.len() >= MAX_REMEMBERED {
            all.pop_front();
        }
        all.push_back(one);
        true
    }

    /// The exited processes among the owners of these devices.
    pub(crate) fn of(&self, nodes: &HashSet<NodeId>) -> Vec<Departed> {
        let all = self.0.lock();
        let named = all.iter().filter(|one| nodes.contains(&one.node));
        named.cloned().collect()
    }
}

/// Whether a process has ended or is ending. Its descriptors are closed while it is ending.
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

/// Whether a process is stopped, by a signal or a debugger.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(stat_field(&stat, 3), Some("T" | "t"))
}

/// The PID and the program name of a live process, for messages.
pub(crate) fn name_of(pid: Option<u32>) -> String {
    let Some(pid) = pid else {
        return "a process outside our PID namespace".to_owned();
    };
    match program(pid) {
        Some(program) => format!("PID {pid} ({program})"),
        None => format!("PID {pid}"),
    }
}

/// The name of a process's program. The process chooses it, so control characters are removed.
pub(crate) fn program(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let name = name.trim_end_matches('\n');
    Some(name.chars().filter(|c| !c.is_control()).collect())
}

/// When a process was started, in the kernel's unit. Distinguishes processes that had the same PID.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat_field(&stat, 22)?.parse().ok()
}

/// The PID of a process in its own PID namespace. `None` if `/proc` does not show it.
pub(crate) fn innermost_pid(pid: u32) -> Option<u32> {
    // `/proc` may be mounted from another PID namespace, where PIDs mean other processes.
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

/// The command line of this process, shortened.
pub(crate) fn own_command() -> String {
    let raw = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let text = String::from_utf8_lossy(&raw);
    let words: Vec<&str> = text.split('\0').filter(|w| !w.is_empty()).collect();
    words.join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_read_from_proc() {
        let pid = std::process::id();
        assert!(start_time(pid).is_some_and(|started| started > 0));
        assert_eq!(innermost_pid(pid), Some(pid));
        assert!(!is_exiting(pid) && is_exiting(u32::MAX));
        assert!(!is_stopped(pid) && !is_stopped(u32::MAX));
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

//! Other processes, as messages name them.

use std::fs;

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
    let (_, after_name) = stat.rsplit_once(')')?;
    // Field 22 of proc(5); the state, field 3, is the first one here.
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
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

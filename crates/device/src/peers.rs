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

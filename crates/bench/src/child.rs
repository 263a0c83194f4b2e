//! Programs that the benchmark starts. Each gets a process group of its own, because Ctrl-C is for us, who have
//! results to print, and is killed when this process ends, in whatever way.

// UNSAFETY: what a child does before it runs its program can only be said through `pre_exec`.
#![allow(unsafe_code)]

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process_group, set_parent_process_death_signal,
};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts `command` in a process group of its own. The kernel kills it when the calling thread ends: call this from
/// a thread that lives as long as the child may.
pub(crate) fn start(command: &mut Command) -> io::Result<Child> {
    let us = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // We may have ended before the line above.
        match getppid() == Some(us) {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    };
    // SAFETY: between `fork` and `exec` the closure makes two system calls; it takes no lock and no memory. An
    // error of a simple kind, and one from a number, hold no memory either.
    unsafe { command.process_group(0).pre_exec(tie) }.spawn()
}

/// Kills a program that [`start`] started with everything it has started, and waits for its end.
pub(crate) fn kill(child: &mut Child) {
    // Until we have waited for it, its number is its own, and its group's.
    if matches!(child.try_wait(), Ok(None)) {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        let _ = child.wait();
    }
}

/// A child that is killed when this value goes.
pub(crate) struct Guard(pub(crate) Child);

impl Drop for Guard {
    fn drop(&mut self) {
        kill(&mut self.0);
    }
}

//! Programs that the benchmark starts. Each has its own process group, so Ctrl-C reaches only the benchmark, which then
//! prints its results. The kernel kills each program when this process ends for any reason.

// UNSAFETY: only `pre_exec` can change a child before it runs its program.
#![allow(unsafe_code)]

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process_group, set_parent_process_death_signal,
};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts `command` in its own process group. The kernel kills it when the calling thread ends: call this from
/// a thread that lives as long as the child may.
pub(crate) fn start(command: &mut Command) -> io::Result<Child> {
    let us = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The benchmark may have ended before the line above.
        match getppid() == Some(us) {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    };
    // SAFETY: between `fork` and `exec` the closure makes two system calls; it takes no lock and allocates nothing, and
    // neither do its two kinds of error.
    unsafe { command.process_group(0).pre_exec(tie) }.spawn()
}

/// Kills a program from [`start`] with all of its children, and waits until it has exited.
pub(crate) fn kill(child: &mut Child) {
    // Until it is reaped, its PID and its group's cannot be reused.
    if matches!(child.try_wait(), Ok(None)) {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        let _ = child.wait();
    }
}

/// A child, killed on drop.
pub(crate) struct Guard(pub(crate) Child);

impl Drop for Guard {
    fn drop(&mut self) {
        kill(&mut self.0);
    }
}

//! The two processes: this one is the initiator, a copy of this program the target. The copy inherits the
//! descriptor of the control page, and exits on command or when this process ends.

use super::child::{self, Guard};
use super::control::{Command, Control};
use super::machine;
use super::measure;
use super::rig::Rig;
use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The parameters of the target, passed as the value of the hidden option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetSpec {
    descriptor: i32,
    core: usize,
    length: u64,
}

impl std::fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{},{}", self.descriptor, self.core, self.length)
    }
}

impl std::str::FromStr for TargetSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut numbers = text.split(',').map(str::parse::<u64>);
        let mut next = || {
            numbers
                .next()
                .context("fewer than three numbers, separated by commas")?
                .context("a word that is not a number")
        };
        let (descriptor, core, length) = (next()?, next()?, next()?);
        Ok(Self {
            descriptor: i32::try_from(descriptor)?,
            core: usize::try_from(core)?,
            length,
        })
    }
}

/// The initiator's side with its target process.
pub(crate) struct Pair {
    pub(crate) rig: Rig,
    target: Guard,
}

impl Pair {
    /// Starts the target and connects to it. The calling thread is pinned to the first core.
    pub(crate) fn start(cores: (usize, usize), length: u64) -> Result<Self> {
        let control = Control::create()?;
        let spec = TargetSpec {
            descriptor: control.number(),
            core: cores.1,
            length,
        };
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut command = std::process::Command::new(&program);
        command
            .args(["bench", "--target", &spec.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let target = child::start(&mut command)
            .with_context(|| format!("cannot start {}", program.display()))?;
        let target = Guard(target);
        // On kernels without pidfd, only a timeout ends waits for the target.
        let ends = pidfd_open(Pid::from_child(&target.0), PidfdFlags::empty()).ok();
        let rig = Rig::open(control, 0, length, ends)?;
        Ok(Self { rig, target })
    }

    /// Nanoseconds of processor time that the target has used so far.
    pub(crate) fn target_cpu_ns(&self) -> Result<u64> {
        // `schedstat` is the scheduler's own account, exact to the nanosecond, with one file per thread.
        let mut total = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.target.0.id()))? {
            // A thread that has just ended no longer has such a file.
            let file = task?.path().join("schedstat");
            let text = std::fs::read_to_string(file).unwrap_or_default();
            total += text
                .split_whitespace()
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0);
        }
        Ok(total)
    }

    /// The target's exit status, if it has exited.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.target.0.try_wait().ok().flatten()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.rig.control.command(Command::Exit, 0, 0);
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end && self.ended().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The target process: connects, and serves until the command to exit.
pub(crate) fn run_target(spec: TargetSpec) -> Result<()> {
    machine::pin(spec.core);
    let control = Control::inherit(spec.descriptor)?;
    let mut rig = Rig::open(control, 1, spec.length, None)?;
    measure::serve(&mut rig)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_the_target_round_trip() {
        let spec = TargetSpec {
            descriptor: 7,
            core: 1,
            length: 1 << 20,
        };
        assert_eq!(spec.to_string().parse::<TargetSpec>().ok(), Some(spec));
        assert!("7,x,1".parse::<TargetSpec>().is_err());
        assert!("7".parse::<TargetSpec>().is_err());
    }
}

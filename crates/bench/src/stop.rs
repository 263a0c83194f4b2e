//! Decides when to stop before everything is measured: on Ctrl-C, or at the time limit. The results so far are printed.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The shell's exit status of a program that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why the benchmark ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Interrupted,
    Limit,
}

impl Reason {
    /// The reason, as part of a sentence.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::Limit => "the time limit (--limit) is reached",
        }
    }
}

/// The error of a wait that ended because the benchmark stops.
#[derive(Debug)]
pub(crate) struct Ended(Reason);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.words())
    }
}

impl std::error::Error for Ended {}

/// Checked between repetitions, and in waits for other programs.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    interrupted: Arc<AtomicBool>,
    until: Option<Instant>,
}

impl Stop {
    /// Makes the first terminating signal only set a flag; the second one terminates the process. A hangup that was
    /// ignored when this program started (`nohup`) stays ignored.
    pub(crate) fn after(limit: Duration) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            let mark = || interrupted.clone();
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), mark())
                .and_then(|_| signal_hook::flag::register(signal, mark()))
                .context("cannot install signal handlers")?;
        }
        Ok(Self {
            interrupted,
            until: Instant::now().checked_add(limit),
        })
    }

    /// Stops when `mark` is set.
    #[cfg(test)]
    pub(crate) fn at(mark: Arc<AtomicBool>) -> Self {
        Self {
            interrupted: mark,
            until: None,
        }
    }

    /// Fails as soon as the benchmark should stop.
    ///
    /// # Errors
    /// [`Ended`].
    pub(crate) fn check(&self) -> Result<(), Ended> {
        self.reason().map_or(Ok(()), |reason| Err(Ended(reason)))
    }

    /// Whether to stop, and why.
    pub(crate) fn reason(&self) -> Option<Reason> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Some(Reason::Interrupted);
        }
        self.until
            .is_some_and(|until| Instant::now() >= until)
            .then_some(Reason::Limit)
    }
}

/// Whether this process ignores a signal.
fn is_ignored(signal: c_int) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, signal)
}

/// Whether the mask in `/proc/PID/status` (proc_pid_status(5)) ignores a signal: signal 1 is the lowest bit.
fn ignores(status: &str, signal: c_int) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Parses a time such as `90`, `90s`, `10m`, `2h`.
pub(crate) fn parse_limit(text: &str) -> Result<Duration, String> {
    let (digits, factor) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(digits) if text.ends_with('m') => (digits, 60),
        Some(digits) if text.ends_with('h') => (digits, 3600),
        Some(digits) => (digits, 1),
        None => (text, 1),
    };
    let seconds = digits.parse::<u64>().ok();
    match seconds.and_then(|n| n.checked_mul(factor)) {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err("a time must be a whole number of seconds, or have a unit: 10m, 2h".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_parsed() {
        let read = |text| parse_limit(text).map(|limit| limit.as_secs());
        assert_eq!(read("90"), Ok(90));
        assert_eq!(read("90s"), Ok(90));
        assert_eq!(read("10m"), Ok(600));
        assert_eq!(read("2h"), Ok(7200));
        for bad in ["", "0", "m", "-1", "1d", "99999999999999999999h"] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ignored_signals_are_parsed() {
        let status = "Name:\trkey\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        let ignored: Vec<c_int> = (1..=64).filter(|&signal| ignores(status, signal)).collect();
        assert_eq!(ignored, [SIGHUP, 13]);
        assert!(!ignores("", SIGHUP));
    }

    #[test]
    fn the_time_limit_is_a_reason_to_stop() {
        let stop = Stop::after(Duration::ZERO).unwrap();
        assert_eq!(stop.reason(), Some(Reason::Limit));
        assert_eq!(Stop::after(Duration::MAX).unwrap().reason(), None);
    }
}

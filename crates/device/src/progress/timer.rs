//! The timer that wakes the engine thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::error::DeviceError;

/// A timer of the monotonic clock. Changes need the engine's lock because the time is stored both here and in the
/// kernel.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    /// When the timer fires, in nanoseconds; `u64::MAX` while it is off.
    at: AtomicU64,
}

impl Timer {
    /// A disarmed timer.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(DeviceError::io("creating the engine's timer"))?;
        Ok(Self {
            fd,
            at: AtomicU64::new(u64::MAX),
        })
    }

    /// Makes the descriptor unreadable after it has fired.
    pub(crate) fn acknowledge(&self) {
        if rustix::io::read(&self.fd, &mut [0u8; 8]).is_ok() {
            self.at.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Makes the timer fire at `at` or earlier.
    pub(crate) fn fire_by(&self, at: u64) {
        if self.at.fetch_min(at, Ordering::Relaxed) <= at {
            return;
        }
        self.arm(at);
    }

    /// Makes the timer fire at `at` instead of the time set before (`None`: never).
    pub(crate) fn reset(&self, at: Option<u64>) {
        let at = at.unwrap_or(u64::MAX);
        if self.at.swap(at, Ordering::Relaxed) != at {
            self.arm(at);
        }
    }

    fn arm(&self, at: u64) {
        let value = Timespec {
            tv_sec: (at / 1_000_000_000).try_into().unwrap_or(i64::MAX),
            // A value of zero would disarm the timer.
            tv_nsec: (at % 1_000_000_000).max(1) as i64,
        };
        let spec = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec);
    }
}

impl AsFd for Timer {
    /// The descriptor is readable after the timer has fired.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::now_ns;
    use super::*;
    use crate::progress::reactor::{Reactor, Token};
    use std::time::Duration;

    #[test]
    fn the_timer_fires_at_the_earliest_time_until_a_reset() {
        let timer = Timer::new().unwrap();
        let reactor = Reactor::new().unwrap();
        reactor.add(&timer, Token::TIMER).unwrap();
        let hour = 3_600_000_000_000;
        timer.fire_by(now_ns() + hour);
        timer.fire_by(now_ns());
        timer.fire_by(now_ns() + hour);
        assert_eq!(reactor.wait(None), [Token::TIMER]);
        timer.acknowledge();
        assert_eq!(reactor.wait(Some(Duration::ZERO)), []);
        // The timer is disarmed now, so a later time takes effect again.
        timer.fire_by(now_ns() + hour);
        timer.reset(Some(now_ns()));
        assert_eq!(reactor.wait(None), [Token::TIMER]);
        timer.acknowledge();
        timer.fire_by(now_ns() + hour);
        timer.reset(None);
        assert_eq!(timer.at.load(Ordering::Relaxed), u64::MAX);
        assert_eq!(reactor.wait(Some(Duration::ZERO)), []);
    }
}

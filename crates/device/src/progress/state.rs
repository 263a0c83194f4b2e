//! What the pollers and the engine thread of one device tell each other: who drives, the coarse clock, timer and bell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::poll_set::PollSet;
use crate::error::DeviceError;

/// Who drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    Thread,
    Lent,
    Asleep,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Thread => "thread",
            Self::Lent => "program",
            Self::Asleep => "nobody",
        })
    }
}

/// A word on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// The part of a device's state that this module owns.
#[derive(Debug)]
pub(crate) struct ProgressState {
    /// Counts empty polls. Only ever used to see whether it moves, so lost updates do no harm.
    pub(super) stamp: Apart<AtomicU32>,
    /// A [`Mode`].
    pub(super) mode: AtomicU8,
    /// The engine asked to be driven again, whatever the rings say.
    pub(super) restless: AtomicBool,
    /// Since when pollers have found nothing; 0: they have just found something.
    pub(super) quiet_since: AtomicU64,
    /// A poller is to give the processor away.
    pub(super) tired: AtomicBool,
    /// When peers are to be woken if nothing has been found until then.
    pub(super) kick_at: AtomicU64,
    /// When a poller last looked at the clock.
    pub(super) polled_at: AtomicU64,
    /// Coarse time in nanoseconds of the monotonic clock.
    pub(super) clock: AtomicU64,
    /// When the engine wants to be driven at the latest; `u64::MAX` for never.
    pub(super) deadline: AtomicU64,
    /// When the timer will fire; `u64::MAX` while it is off.
    pub(super) timer_at: AtomicU64,
    pub(super) timer: OwnedFd,
    pub(super) bell: OwnedFd,
    pub(super) poll_set: PollSet,
    /// The device talks to itself: a post may have to be driven, and no peek shows it.
    pub(super) loops: AtomicBool,
}

impl ProgressState {
    /// Nobody drives yet; the engine thread will.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(DeviceError::io("creating the engine's bell"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(DeviceError::io("creating the engine's timer"))?;
        Ok(Self {
            stamp: Apart::default(),
            mode: AtomicU8::new(Mode::Thread as u8),
            restless: AtomicBool::new(false),
            quiet_since: AtomicU64::new(0),
            tired: AtomicBool::new(false),
            kick_at: AtomicU64::new(u64::MAX),
            polled_at: AtomicU64::new(0),
            clock: AtomicU64::new(now_ns()),
            deadline: AtomicU64::new(u64::MAX),
            timer_at: AtomicU64::new(u64::MAX),
            timer,
            bell,
            poll_set: PollSet::default(),
            loops: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Relaxed) {
            0 => Mode::Thread,
            1 => Mode::Lent,
            _ => Mode::Asleep,
        }
    }

    /// Only with the engine's lock.
    pub(super) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    pub(crate) fn stamp(&self) -> u32 {
        self.stamp.0.load(Ordering::Relaxed)
    }

    pub(crate) fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    pub(crate) fn is_restless(&self) -> bool {
        self.restless.load(Ordering::Relaxed)
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        Some(self.deadline.load(Ordering::Relaxed)).filter(|&d| d != u64::MAX)
    }

    /// Reads the real clock.
    pub(crate) fn refresh_clock(&self) -> u64 {
        let now = now_ns();
        self.clock.fetch_max(now, Ordering::Relaxed);
        now
    }

    pub(crate) fn timer_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    pub(crate) fn bell_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Wakes the engine thread. The bell is ours alone, so this cannot block.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Takes what the bell has to say; for the engine thread.
    pub(crate) fn quiet_bell(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// Takes what the timer has to say; for the engine thread.
    pub(crate) fn quiet_timer(&self) {
        if rustix::io::read(&self.timer, &mut [0u8; 8]).is_ok() {
            self.timer_at.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Lets the timer fire at `at` or earlier. Only with the engine's lock, as [`Self::quiet_timer`].
    pub(crate) fn set_timer(&self, at: u64) {
        if self.timer_at.fetch_min(at, Ordering::Relaxed) <= at {
            return;
        }
        self.arm_timer(at);
    }

    /// Forgets when the timer was to fire, and lets it fire at `at` instead (`None`: never).
    pub(super) fn reset_timer(&self, at: Option<u64>) {
        let at = at.unwrap_or(u64::MAX);
        if self.timer_at.swap(at, Ordering::Relaxed) != at {
            self.arm_timer(at);
        }
    }

    fn arm_timer(&self, at: u64) {
        let value = Timespec {
            tv_sec: (at / 1_000_000_000).try_into().unwrap_or(i64::MAX),
            // A value of zero would switch the timer off.
            tv_nsec: (at % 1_000_000_000).max(1) as i64,
        };
        let spec = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec);
    }
}

/// The monotonic clock in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

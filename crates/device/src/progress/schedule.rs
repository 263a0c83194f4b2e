//! What the pollers and the engine thread of one device tell each other: who drives, the coarse clock, the next deadline.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use super::idle::IdleTime;
use super::poll_set::PollSet;
use super::timer::Timer;
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
    pub(super) drive_again: AtomicBool,
    pub(super) idle: IdleTime,
    /// The next poller should yield the processor.
    pub(super) should_yield: AtomicBool,
    /// When a poller last looked at the clock.
    pub(super) polled_at: AtomicU64,
    /// Coarse time in nanoseconds of the monotonic clock.
    pub(super) clock: AtomicU64,
    /// When the engine wants to be driven at the latest; `u64::MAX` for never.
    pub(super) deadline: AtomicU64,
    pub(super) timer: Timer,
    pub(super) poll_set: PollSet,
    /// The device talks to itself: a post may have to be driven, and no peek shows it.
    pub(super) talks_to_itself: AtomicBool,
}

impl ProgressState {
    /// Nobody drives yet; the engine thread will.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> Result<Self, DeviceError> {
        Ok(Self {
            stamp: Apart::default(),
            mode: AtomicU8::new(Mode::Thread as u8),
            drive_again: AtomicBool::new(false),
            idle: IdleTime::default(),
            should_yield: AtomicBool::new(false),
            polled_at: AtomicU64::new(0),
            clock: AtomicU64::new(now_ns()),
            deadline: AtomicU64::new(u64::MAX),
            timer: Timer::new()?,
            poll_set: PollSet::default(),
            talks_to_itself: AtomicBool::new(false),
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

    pub(crate) fn must_drive_again(&self) -> bool {
        self.drive_again.load(Ordering::Relaxed)
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        Some(self.deadline.load(Ordering::Relaxed)).filter(|&d| d != u64::MAX)
    }

    pub(crate) fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Reads the real clock.
    pub(crate) fn refresh_clock(&self) -> u64 {
        let now = now_ns();
        self.clock.fetch_max(now, Ordering::Relaxed);
        now
    }
}

/// The monotonic clock in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

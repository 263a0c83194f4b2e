//! Who drives the engine, and when it must be driven at the latest.
//!
//! A single word, the [`Mode`], determines who drives. It changes only under the engine's lock, which is why the transitions
//! below take a reference to the engine:
//!
//! | from | transition | to | sleep words | timer |
//! | --- | --- | --- | --- | --- |
//! | asleep | [`lend`](Schedule::lend): the program polls or posts | program | awake | next tick |
//! | thread | [`give_way`](Schedule::give_way): the program polls | program | - | when to check again |
//! | thread, program | [`fall_asleep`](Schedule::fall_asleep): nothing to do | asleep | asleep | the engine's deadline |
//! | program, asleep | [`take_over`](Schedule::take_over): the program has stopped polling, or a doorbell rang | thread | awake | - |

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::DeviceEngine;
use super::poll_set::PollSet;
use super::timer::Timer;
use crate::error::DeviceError;

/// The shortest time, in nanoseconds, after which the engine thread checks a deadline while the program drives.
const SHORTEST_WAIT: u64 = 500_000;

/// Who drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// The engine thread.
    Thread,
    /// The threads of the program that poll or post.
    Program,
    /// No thread: a doorbell or the timer wakes the engine thread.
    Asleep,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Thread => "thread",
            Self::Program => "program",
            Self::Asleep => "asleep",
        })
    }
}

/// The mode, the clock and the timer of one device. Times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// A [`Mode`].
    mode: AtomicU8,
    /// The coarse clock.
    clock: AtomicU64,
    /// When the engine must be driven at the latest; `u64::MAX` for never.
    deadline: AtomicU64,
    timer: Timer,
    pub(super) poll_set: PollSet,
    /// The interval at which the engine thread checks whether the program still polls.
    tick: u64,
}

impl Schedule {
    /// A schedule in which the engine thread drives.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(super) fn new(tick: Duration) -> Result<Self, DeviceError> {
        Ok(Self {
            mode: AtomicU8::new(Mode::Thread as u8),
            clock: AtomicU64::new(now_ns()),
            deadline: AtomicU64::new(u64::MAX),
            timer: Timer::new()?,
            poll_set: PollSet::default(),
            tick: tick.as_nanos().try_into().unwrap_or(u64::MAX / 2),
        })
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Relaxed) {
            0 => Mode::Thread,
            1 => Mode::Program,
            _ => Mode::Asleep,
        }
    }

    fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// The coarse clock: the latest time that any thread has read.
    #[inline]
    pub(super) fn coarse_now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Reads the real clock.
    pub(crate) fn refresh_clock(&self) -> u64 {
        let now = now_ns();
        self.clock.fetch_max(now, Ordering::Relaxed);
        now
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.deadline.load(Ordering::Relaxed)).filter(|&d| d != u64::MAX)
    }

    #[inline]
    pub(super) fn set_deadline(&self, deadline: Option<u64>) {
        let deadline = deadline.unwrap_or(u64::MAX);
        if self.deadline.load(Ordering::Relaxed) != deadline {
            self.deadline.store(deadline, Ordering::Relaxed);
        }
    }

    pub(super) fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Makes the timer fire by the engine's deadline, if there is one.
    pub(super) fn fire_by_deadline(&self, _locked: &DeviceEngine) {
        if let Some(deadline) = self.deadline() {
            self.timer.fire_by(deadline);
        }
    }

    /// The program drives from now on; after one tick, the engine thread checks whether it still does.
    pub(super) fn lend(&self, _locked: &DeviceEngine) {
        self.set_mode(Mode::Program);
        // The program may have installed signal handlers since its last poll.
        rkey_base::copy::check();
        self.set_asleep(false);
        let now = self.refresh_clock();
        self.timer.fire_by(now + self.tick);
    }

    /// The time until the engine's deadline in nanoseconds, if that is earlier than the next tick.
    pub(super) fn time_to_deadline(&self) -> Option<u64> {
        let time = self.deadline()?.saturating_sub(self.refresh_clock());
        (time < self.tick).then_some(time.max(SHORTEST_WAIT))
    }

    /// The engine thread gives way to a program that polls, and checks again `after` this many nanoseconds (`None`: one tick).
    pub(super) fn give_way(&self, _locked: &DeviceEngine, after: Option<u64>) {
        self.set_mode(Mode::Program);
        let now = self.refresh_clock();
        self.timer.fire_by(now + after.unwrap_or(self.tick));
    }

    /// Makes all sleep words odd, so that peers ring the doorbell. The caller must then issue a heavy barrier and check
    /// again for work.
    pub(super) fn fall_asleep(&self, _locked: &DeviceEngine) {
        self.set_mode(Mode::Asleep);
        self.set_asleep(true);
        self.timer.reset(self.deadline());
    }

    /// The engine thread drives from now on.
    pub(super) fn take_over(&self, _locked: &DeviceEngine) {
        self.set_mode(Mode::Thread);
        self.set_asleep(false);
    }

    /// Writes the sleep words of all links.
    fn set_asleep(&self, asleep: bool) {
        self.poll_set.for_each(|link| {
            if asleep {
                link.announce_sleep();
            } else {
                link.awake();
            }
        });
    }
}

/// The monotonic clock in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::driver::tests::engine;
    use crate::progress::reactor::{Reactor, Token};

    #[test]
    fn mode_and_timer_follow_the_table_of_transitions() {
        let schedule = Schedule::new(Duration::from_secs(3600)).unwrap();
        let engine = engine();
        let reactor = Reactor::new().unwrap();
        reactor.add(schedule.timer(), Token::TIMER).unwrap();
        let fires = || {
            let fired = reactor.wait(Some(Duration::ZERO)) == [Token::TIMER];
            schedule.timer().acknowledge();
            fired
        };
        assert_eq!(schedule.mode(), Mode::Thread);
        schedule.set_deadline(Some(schedule.refresh_clock()));
        schedule.fall_asleep(&engine);
        assert!(schedule.mode() == Mode::Asleep && fires(), "the deadline");
        schedule.lend(&engine);
        assert!(schedule.mode() == Mode::Program && !fires(), "a long tick");
        schedule.take_over(&engine);
        assert_eq!(schedule.mode(), Mode::Thread);
        schedule.give_way(&engine, Some(0));
        assert!(schedule.mode() == Mode::Program && fires());
        schedule.set_deadline(None);
        schedule.fall_asleep(&engine);
        schedule.fire_by_deadline(&engine);
        assert!(schedule.mode() == Mode::Asleep && !fires());
    }

    #[test]
    fn the_coarse_clock_never_runs_backwards() {
        let schedule = Schedule::new(Duration::from_millis(10)).unwrap();
        let before = schedule.refresh_clock();
        assert!(schedule.coarse_now() >= before);
        schedule.clock.store(u64::MAX, Ordering::Relaxed);
        schedule.refresh_clock();
        assert_eq!(schedule.coarse_now(), u64::MAX);
    }
}

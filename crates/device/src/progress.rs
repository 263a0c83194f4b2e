//! Who drives the engine.
//!
//! The engine moves only when somebody calls `drive`. There are three situations, kept in one word
//! that changes only under the engine's lock:
//!
//! * [`Mode::Lent`]: the program polls (or has just posted). Whoever polls looks at the rings without
//!   a lock, and drives when there is something. Peers need not ring: our sleep words are even. The
//!   engine thread sleeps, and a timer lets it look every 10 ms whether the program still polls.
//! * [`Mode::Thread`]: nobody polls, and the engine thread drives.
//! * [`Mode::Asleep`]: nobody has anything to do. Our sleep words are odd, so peers ring the bell when
//!   they write to a ring, and that wakes the engine thread. No timer runs unless something is
//!   outstanding. No CPU is used.
//!
//! A program that starts to poll or post takes the device from asleep to lent by itself, without
//! waking the thread: it makes the sleep words even and sets the timer. A program that is about to
//! wait gives it back ([`Shared::hand_over`]), also by itself. The thread takes over when a tick finds
//! that no poll has happened since the last one.
//!
//! Time for pollers is the coarse clock of this module, which the thread and every 64th empty poll
//! refresh: reading the real one costs as much as a whole operation.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use rkey_base::barrier;
use rkey_base::lock::Guard;
use rkey_base::memory::ProcessMemory;
use rkey_core::LocalKey;
use rkey_engine::{CqId, Inbox, LinkId};
use rkey_link::AnyLink;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::error::DeviceError;
use crate::peeks::{Look, Peeks};
use crate::shared::{DeviceEngine, Shared};

/// The most pieces that one call of `drive` takes, so that posters get their turn.
const BUDGET: u32 = 256;
/// How often a thread that is about to wait drives for itself before it leaves the rest to the engine
/// thread.
const SETTLE: u32 = 32;
/// Every so many empty polls the clock is read.
const POLLS_PER_LOOK: u32 = 64;
/// A poller who has found nothing for so long gives the processor away whenever it looks at the clock: where there are
/// more pollers than processors, the peer that it waits for may need this very one.
const YIELD_AFTER: u64 = 5_000;
/// Every so many empty polls an acknowledgement that is held back is told.
const POLLS_PER_ACK: u32 = 64;
/// So long a request may be unacknowledged before the peer is woken whatever its sleep word says.
const KICK_AFTER: u64 = 50_000;
/// And so long it has to be quiet before it is woken once more.
const KICK_AGAIN: u64 = 10_000_000;

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
struct Apart<T>(T);

/// The part of a device's state that this module owns.
#[derive(Debug)]
pub(crate) struct ProgressState {
    /// Counts empty polls. Only ever used to see whether it moves, so lost updates do no harm.
    stamp: Apart<AtomicU32>,
    /// A [`Mode`].
    mode: AtomicU8,
    /// The engine asked to be driven again, whatever the rings say.
    restless: AtomicBool,
    /// Since when pollers have found nothing; 0: they have just found something.
    quiet_since: AtomicU64,
    /// A poller is to give the processor away.
    tired: AtomicBool,
    /// When peers are to be woken if nothing has been found until then.
    kick_at: AtomicU64,
    /// When a poller last looked at the clock.
    polled_at: AtomicU64,
    /// Coarse time in nanoseconds of the monotonic clock.
    clock: AtomicU64,
    /// When the engine wants to be driven at the latest; `u64::MAX` for never.
    deadline: AtomicU64,
    /// When the timer will fire; `u64::MAX` while it is off.
    timer_at: AtomicU64,
    timer: OwnedFd,
    bell: OwnedFd,
    peeks: Peeks,
    /// The device talks to itself: a post may have to be driven, and no peek shows it.
    loops: AtomicBool,
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
            peeks: Peeks::default(),
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
    fn set_mode(&self, mode: Mode) {
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
    fn reset_timer(&self, at: Option<u64>) {
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

impl Shared {
    /// One look on behalf of a poller that found its completion queue empty.
    #[inline]
    pub(crate) fn poll(&self) {
        self.poll_for(None);
        self.rest();
    }

    /// The same for a poller who takes the messages of a completion queue himself.
    #[inline]
    pub(crate) fn poll_for(&self, inbox: Option<(CqId, &mut dyn Inbox<ProcessMemory>)>) {
        let state = &self.progress;
        let stamp = state.stamp.0.load(Ordering::Relaxed).wrapping_add(1);
        state.stamp.0.store(stamp, Ordering::Relaxed);
        let look = state.peeks.look();
        if look == Look::Arrived || state.restless.load(Ordering::Relaxed) {
            if let Some(engine) = self.engine.try_lock()
                && self.drive_for(engine, state.clock.load(Ordering::Relaxed), inbox)
                && state.quiet_since.load(Ordering::Relaxed) != 0
            {
                state.quiet_since.store(0, Ordering::Relaxed);
            }
        } else if look == Look::Owed && stamp.is_multiple_of(POLLS_PER_ACK) {
            self.publish();
        }
        if stamp.is_multiple_of(POLLS_PER_LOOK) && self.poll_slowly() {
            state.tired.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the processor away if a poller has found nothing for a while. Not under a lock that others want.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.progress.tired.load(Ordering::Relaxed) {
            self.progress.tired.store(false, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Tells peers what has been executed: nothing more came that could have been told with it.
    #[cold]
    fn publish(&self) {
        if let Some(mut engine) = self.engine.try_lock() {
            for (_, link) in engine.links_mut() {
                if let AnyLink::Shm(link) = link {
                    link.publish();
                }
            }
        }
    }

    /// What pollers do now and then: the clock, deadlines, peers that may be asleep. Says whether the processor is
    /// better given away.
    #[cold]
    fn poll_slowly(&self) -> bool {
        let now = self.progress.refresh_clock();
        self.progress.polled_at.store(now, Ordering::Relaxed);
        let Some(engine) = self.engine.try_lock() else {
            // Its holder may be waiting for this very processor.
            return true;
        };
        if self.progress.mode() == Mode::Asleep {
            self.lend(&engine);
        }
        let state = &self.progress;
        let quiet_since = state.quiet_since.load(Ordering::Relaxed);
        let mut quiet = 0;
        if quiet_since == 0 {
            state.quiet_since.store(now, Ordering::Relaxed);
            state
                .kick_at
                .store(now.saturating_add(KICK_AFTER), Ordering::Relaxed);
        } else {
            quiet = now.saturating_sub(quiet_since);
            if now >= state.kick_at.load(Ordering::Relaxed) {
                kick_peers(&engine);
                let again = now.saturating_add(KICK_AGAIN);
                state.kick_at.store(again, Ordering::Relaxed);
            }
        }
        // Also to hear about deadlines of what was posted since.
        let did = self.drive(engine, now);
        quiet > YIELD_AFTER && !did
    }

    /// Drives once, then does what came of it, without the lock. Says whether anything was done.
    #[inline]
    pub(crate) fn drive(&self, engine: Guard<'_, DeviceEngine>, now: u64) -> bool {
        self.drive_for(engine, now, None)
    }

    #[inline]
    fn drive_for(
        &self,
        mut engine: Guard<'_, DeviceEngine>,
        now: u64,
        inbox: Option<(CqId, &mut dyn Inbox<ProcessMemory>)>,
    ) -> bool {
        let alarm = PanicAlarm(self);
        let progress = match inbox {
            Some((cq, inbox)) => engine.drive_with(now, BUDGET, cq, inbox),
            None => engine.drive(now, BUDGET),
        };
        let state = &self.progress;
        let deadline = progress.next_deadline.unwrap_or(u64::MAX);
        if state.deadline.load(Ordering::Relaxed) != deadline {
            state.deadline.store(deadline, Ordering::Relaxed);
        }
        // What only held-back acknowledgements need, pollers do without driving.
        let restless = progress.more || (progress.did && state.loops.load(Ordering::Relaxed));
        if state.restless.load(Ordering::Relaxed) != restless {
            state.restless.store(restless, Ordering::Relaxed);
        }
        std::mem::forget(alarm);
        if engine.has_events() {
            self.drain_events(engine);
        }
        progress.did || progress.more
    }

    /// Takes the events of the engine and acts on them after giving the lock back.
    #[cold]
    fn drain_events(&self, mut engine: Guard<'_, DeviceEngine>) {
        let mut events = Vec::new();
        while let Some(event) = engine.poll_event() {
            events.push(event);
        }
        drop(engine);
        self.act_on(events);
    }

    /// Runs a command on the engine, with everything that has to happen around one.
    #[inline]
    pub(crate) fn command<T>(&self, run: impl FnOnce(&mut DeviceEngine) -> T) -> T {
        let mut engine = self.engine.lock();
        let alarm = PanicAlarm(self);
        let result = run(&mut engine);
        // It may have given the engine something to do, of which no ring knows.
        self.progress.restless.store(true, Ordering::Relaxed);
        std::mem::forget(alarm);
        if engine.has_events() {
            self.drain_events(engine);
        }
        result
    }

    /// Runs a post, and sees to it that somebody will look after what was posted.
    #[inline]
    pub(crate) fn post<T>(&self, run: impl FnOnce(&mut DeviceEngine) -> T) -> T {
        let mut engine = self.engine.lock();
        let alarm = PanicAlarm(self);
        let asleep = self.progress.mode() == Mode::Asleep;
        if asleep {
            self.before_post_asleep(&mut engine);
        }
        let result = run(&mut engine);
        if self.progress.loops.load(Ordering::Relaxed) {
            self.progress.restless.store(true, Ordering::Relaxed);
        }
        std::mem::forget(alarm);
        if engine.has_events() {
            self.drain_events(engine);
        } else {
            drop(engine);
        }
        if asleep {
            self.after_post_asleep();
        }
        result
    }

    /// A post while nobody drives: tell the engine the time, because its time-outs start now. Unless the
    /// program has armed a completion queue (and so is about to wait), it will most likely poll next.
    #[cold]
    fn before_post_asleep(&self, engine: &mut DeviceEngine) {
        engine.drive(self.progress.refresh_clock(), 0);
        if self.armed.load(Ordering::Relaxed) == 0 {
            self.lend(engine);
        }
    }

    /// A program that is about to wait has posted: do what can be done at once, and leave the rest to
    /// the bell and the timer.
    #[cold]
    fn after_post_asleep(&self) {
        if self.progress.mode() == Mode::Asleep {
            self.settle();
        }
    }

    /// Drives until there is nothing to do at the moment; what is still left is the engine thread's.
    pub(crate) fn settle(&self) {
        let mut busy = true;
        for _ in 0..SETTLE {
            busy = self.drive_now();
            if !busy {
                break;
            }
        }
        let engine = self.engine.lock();
        if let Some(deadline) = self.progress.deadline() {
            self.progress.set_timer(deadline);
        }
        drop(engine);
        if busy {
            self.progress.ring();
        }
    }

    /// From asleep to lent: the program drives from now on.
    fn lend(&self, _locked: &DeviceEngine) {
        self.progress.set_mode(Mode::Lent);
        // The program may have set signal handlers of its own since it polled last.
        rkey_base::copy::check();
        self.set_asleep(false);
        let now = self.progress.refresh_clock();
        self.progress.set_timer(now + self.tick_ns());
    }

    /// Gives the engine back before the calling thread waits. Afterwards peers ring when they have
    /// something, and that wakes the engine thread.
    pub(crate) fn hand_over(&self) {
        let engine = self.engine.lock();
        match self.progress.mode() {
            Mode::Thread => return,
            Mode::Lent => self.fall_asleep(&engine),
            Mode::Asleep => {}
        }
        drop(engine);
        barrier::heavy();
        self.settle();
    }

    /// Drives once, at the real time. Says whether anything was done.
    ///
    /// This, and not a look at the rings, decides whether to sleep: a ring may hold a request that
    /// cannot be executed before its peer has taken earlier answers.
    pub(crate) fn drive_now(&self) -> bool {
        let now = self.progress.refresh_clock();
        self.drive(self.engine.lock(), now)
    }

    /// Gives up the links over which a peer may still reach into a region that is being closed: it has
    /// not answered for a long time.
    pub(crate) fn cut_off(&self, key: LocalKey) {
        let links = referencing_links(&self.engine.lock(), key);
        self.cut_links("closing a region", &links);
    }

    /// Gives up links to peers that do not answer.
    pub(crate) fn cut_links(&self, what: &str, links: &[LinkId]) {
        // We answer ourselves, however long that takes; and there is one such link in the life of a device.
        let ours = self.loopback.get();
        let others = links.iter().copied().filter(|link| Some(link) != ours);
        let links: Vec<LinkId> = others.collect();
        if !links.is_empty() {
            tracing::warn!(
                ?links,
                "{what} cuts the link to a peer that does not answer"
            );
            self.cut.lock().extend(links);
            self.progress.ring();
        }
    }

    /// Makes all sleep words odd. The caller issues a heavy barrier and then looks once more.
    pub(crate) fn fall_asleep(&self, _locked: &DeviceEngine) {
        self.progress.set_mode(Mode::Asleep);
        self.set_asleep(true);
        self.progress.reset_timer(self.progress.deadline());
    }

    /// The engine thread takes over.
    pub(crate) fn take_over(&self, _locked: &DeviceEngine) {
        self.progress.set_mode(Mode::Thread);
        self.set_asleep(false);
    }

    /// The engine thread gives way to a program that polls, and looks again after some nanoseconds.
    pub(crate) fn give_way(&self, _locked: &DeviceEngine, look_after: u64) {
        self.progress.set_mode(Mode::Lent);
        let now = self.progress.refresh_clock();
        self.progress.set_timer(now + look_after);
    }

    /// Writes the sleep words of all links. Only with the engine's lock.
    fn set_asleep(&self, asleep: bool) {
        self.progress.peeks.for_each(|peek| {
            if asleep {
                peek.announce_sleep();
            } else {
                peek.awake();
            }
        });
    }

    pub(crate) fn tick_ns(&self) -> u64 {
        self.config
            .tick
            .as_nanos()
            .try_into()
            .unwrap_or(u64::MAX / 2)
    }

    /// Whether a link has something.
    pub(crate) fn any_pending(&self) -> bool {
        self.progress.peeks.look() != Look::Nothing
    }

    /// From now on posts may be to this device itself.
    pub(crate) fn talks_to_itself(&self) {
        self.progress.loops.store(true, Ordering::Relaxed);
    }

    /// Makes the list of links to look at anew, after a link came or went. Only the engine thread does.
    ///
    /// The link to ourselves is not in it: what goes over that is of our own making, and posts say so.
    pub(crate) fn renew_peeks(&self) {
        let peek = |(_, link): (LinkId, &AnyLink)| match link {
            AnyLink::Shm(link) => Some(link.peek()),
            AnyLink::Loopback(_) => None,
        };
        let list = self.engine.lock().links().filter_map(peek).collect();
        self.progress.peeks.replace(list);
    }
}

/// Wakes peers that have not acknowledged our requests, whatever their sleep words say: their program
/// may have stopped polling without a word.
pub(crate) fn kick_peers(engine: &DeviceEngine) {
    for (_, link) in engine.links() {
        if let AnyLink::Shm(link) = link
            && link.has_unacked()
        {
            link.kick();
        }
    }
}

/// The links over which a peer may still reach into a region, because it has not acknowledged a request that named it.
fn referencing_links(engine: &DeviceEngine, key: LocalKey) -> Vec<LinkId> {
    let mut links = engine.referencing_links(key);
    links.retain(|id| matches!(engine.link(*id), Some(AnyLink::Shm(link)) if link.has_unacked()));
    links
}

/// Marks the device as failed when a panic passes by.
struct PanicAlarm<'a>(&'a Shared);

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        self.0.fail("a bug: the engine panicked".to_owned());
    }
}

/// The monotonic clock in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

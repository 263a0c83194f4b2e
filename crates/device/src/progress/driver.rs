//! Driving the engine, from whichever thread: polls, posts and commands, and the changes of who drives.

use std::sync::atomic::Ordering;

use rkey_base::barrier;
use rkey_base::lock::Guard;
use rkey_base::memory::ProcessMemory;
use rkey_core::LocalKey;
use rkey_engine::{CqId, Inbox, LinkId};
use rkey_link::Link;

use super::Mode;
use super::poll_set::Look;
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
        let look = state.poll_set.look();
        if look == Look::Arrived || state.drive_again.load(Ordering::Relaxed) {
            if let Some(engine) = self.engine.try_lock()
                && self.drive_for(engine, state.clock.load(Ordering::Relaxed), inbox)
            {
                state.idle.found();
            }
        } else if look == Look::Owed && stamp.is_multiple_of(POLLS_PER_ACK) {
            self.publish();
        }
        if stamp.is_multiple_of(POLLS_PER_LOOK) && self.poll_slowly() {
            state.should_yield.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the processor away if a poller has found nothing for a while. Not under a lock that others want.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.progress.should_yield.load(Ordering::Relaxed) {
            self.progress.should_yield.store(false, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Tells peers what has been executed: nothing more came that could have been told with it.
    #[cold]
    fn publish(&self) {
        if let Some(mut engine) = self.engine.try_lock() {
            for (_, link) in engine.links_mut() {
                link.publish();
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
        let idle = self.progress.idle.at(now);
        if idle.kick_peers {
            kick_peers(&engine);
        }
        // Also to hear about deadlines of what was posted since.
        let did = self.drive(engine, now);
        idle.ns > YIELD_AFTER && !did
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
        let drive_again =
            progress.more || (progress.did && state.talks_to_itself.load(Ordering::Relaxed));
        if state.drive_again.load(Ordering::Relaxed) != drive_again {
            state.drive_again.store(drive_again, Ordering::Relaxed);
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
        self.progress.drive_again.store(true, Ordering::Relaxed);
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
        if self.progress.talks_to_itself.load(Ordering::Relaxed) {
            self.progress.drive_again.store(true, Ordering::Relaxed);
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
        if !self.cqs.is_any_armed() {
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
            self.progress.timer.fire_by(deadline);
        }
        drop(engine);
        if busy {
            self.thread_requests.ring();
        }
    }

    /// From asleep to lent: the program drives from now on.
    fn lend(&self, _locked: &DeviceEngine) {
        self.progress.set_mode(Mode::Lent);
        // The program may have set signal handlers of its own since it polled last.
        rkey_base::copy::check();
        self.set_asleep(false);
        let now = self.progress.refresh_clock();
        self.progress.timer.fire_by(now + self.tick_ns());
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
            self.thread_requests.cut_links(&links);
        }
    }

    /// Makes all sleep words odd. The caller issues a heavy barrier and then looks once more.
    pub(crate) fn fall_asleep(&self, _locked: &DeviceEngine) {
        self.progress.set_mode(Mode::Asleep);
        self.set_asleep(true);
        self.progress.timer.reset(self.progress.deadline());
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
        self.progress.timer.fire_by(now + look_after);
    }

    /// Writes the sleep words of all links. Only with the engine's lock.
    fn set_asleep(&self, asleep: bool) {
        self.progress.poll_set.for_each(|link| {
            if asleep {
                link.announce_sleep();
            } else {
                link.awake();
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
        self.progress.poll_set.look() != Look::Nothing
    }

    /// From now on posts may be to this device itself.
    pub(crate) fn talks_to_itself(&self) {
        self.progress.talks_to_itself.store(true, Ordering::Relaxed);
    }

    /// Makes the list of links to look at anew, after a link came or went. Only the engine thread does.
    ///
    /// The link to ourselves is not in it: what goes over that is of our own making, and posts say so.
    pub(crate) fn rebuild_poll_set(&self) {
        let list = {
            let engine = self.engine.lock();
            engine
                .links()
                .filter_map(|(_, link)| link.poll_handle())
                .collect()
        };
        self.progress.poll_set.replace(list);
    }
}

/// Wakes peers that have not acknowledged our requests, whatever their sleep words say: their program
/// may have stopped polling without a word.
pub(crate) fn kick_peers(engine: &DeviceEngine) {
    for (_, link) in engine.links() {
        if link.has_unacked() {
            link.kick();
        }
    }
}

/// The links over which a peer may still reach into a region, because it has not acknowledged a request that named it.
fn referencing_links(engine: &DeviceEngine, key: LocalKey) -> Vec<LinkId> {
    let mut links = engine.referencing_links(key);
    links.retain(|id| engine.link(*id).is_some_and(Link::has_unacked));
    links
}

/// Marks the device as failed when a panic passes by.
struct PanicAlarm<'a>(&'a Shared);

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        self.0.fail("a bug: the engine panicked".to_owned());
    }
}

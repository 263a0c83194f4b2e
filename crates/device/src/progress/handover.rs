//! How the threads that drive hand over the engine: to the program, to the engine thread, or to no thread, until a doorbell or the
//! timer wakes it.

use std::os::fd::AsFd;

use rkey_base::barrier;
use rkey_link::Link;

use super::{DeviceEngine, EngineDriver, Mode};

/// The maximum number of drives by a thread that is about to wait. The rest is left to the engine thread.
const IDLE_DRIVES: u32 = 32;

impl EngineDriver {
    /// Called before a post while no thread drives: updates the engine's time, because the timeouts of the post start now.
    /// Lends the engine to the program, which will most likely poll next, unless it has armed a completion queue and so is about to
    /// wait.
    #[cold]
    pub(super) fn before_post_asleep(&self, engine: &mut DeviceEngine) {
        engine.drive(self.schedule.refresh_clock(), 0);
        if !self.router.is_any_cq_armed() {
            self.schedule.lend(engine);
        }
    }

    /// Called after a post by a program that is about to wait: does the work that is ready, and leaves the rest to the
    /// doorbell and the timer.
    #[cold]
    pub(super) fn after_post_asleep(&self) {
        if self.schedule.mode() == Mode::Asleep {
            self.drive_until_idle();
        }
    }

    /// Drives until there is no work at the moment, but not for long, and leaves the rest and later work to the engine thread.
    pub(crate) fn drive_until_idle(&self) {
        let mut busy = true;
        for _ in 0..IDLE_DRIVES {
            busy = self.drive_now();
            if !busy {
                break;
            }
        }
        self.schedule.fire_by_deadline(&self.engine.lock());
        if busy {
            self.requests.wake_engine_thread();
        }
    }

    /// Ends the program's driving before the calling thread waits. From then on peers ring the doorbell, which wakes the
    /// engine thread.
    pub(crate) fn hand_over(&self) {
        if let Some(transmitter) = &self.transmitter {
            self.send_held_packets();
            transmitter.stop_polling();
        }
        let engine = self.engine.lock();
        match self.schedule.mode() {
            Mode::Thread => return,
            Mode::Program => self.schedule.fall_asleep(&engine),
            Mode::Asleep => {}
        }
        drop(engine);
        barrier::heavy();
        self.drive_until_idle();
    }

    /// Puts the engine to sleep after the engine thread found no work. Returns whether the engine thread may wait; it must not
    /// if work arrived at the last moment.
    pub(super) fn fall_asleep(&self) -> bool {
        let engine = self.engine.lock();
        kick_peers(&engine);
        self.schedule.fall_asleep(&engine);
        drop(engine);
        barrier::heavy();
        if !self.drive_now() {
            self.schedule.fire_by_deadline(&self.engine.lock());
            return true;
        }
        let engine = self.engine.lock();
        // The program may have taken over the engine by polling in the meantime.
        if self.schedule.mode() == Mode::Asleep {
            self.schedule.take_over(&engine);
            return false;
        }
        true
    }

    /// Makes the engine thread drive.
    pub(super) fn take_over(&self) {
        self.schedule.take_over(&self.engine.lock());
    }

    /// Leaves the engine to a program that polls. The engine thread checks again `after` this many nanoseconds (`None`: one
    /// tick, or by the engine's deadline if the device reaches other hosts).
    pub(super) fn give_way(&self, after: Option<u64>) {
        // Packets to other hosts that wait for their time must not wait for a program that polls seldom.
        let deadline = || {
            self.transmitter
                .as_ref()
                .and_then(|_| self.schedule.time_to_deadline())
        };
        let after = after.or_else(deadline);
        self.schedule.give_way(&self.engine.lock(), after);
    }

    /// Handles the expired timer.
    pub(super) fn acknowledge_timer(&self) {
        let _engine = self.engine.lock();
        self.schedule.timer().acknowledge();
    }

    /// The timer's descriptor.
    pub(super) fn timer(&self) -> impl AsFd {
        self.schedule.timer()
    }
}

/// Wakes peers that have not acknowledged our requests, regardless of their sleep words: their programs may have stopped polling
/// without updating them.
pub(super) fn kick_peers(engine: &DeviceEngine) {
    for (_, link) in engine.links() {
        if link.has_unacked() {
            link.kick();
        }
    }
}

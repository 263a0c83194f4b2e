//! How a program's threads poll: without a lock while the rings are empty, and now and then with the clock and the engine.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rkey_base::memory::ProcessMemory;
use rkey_engine::{CqId, Inbox};
use rkey_link::Link;

use super::handover::kick_peers;
use super::idle::IdleTime;
use super::poll_set::PollResult;
use super::{EngineDriver, Mode};

/// A poller reads the clock once in this many empty polls.
pub(super) const POLLS_PER_CLOCK: u32 = 64;
/// A poller publishes delayed acknowledgements once in this many empty polls.
const POLLS_PER_ACK: u32 = 64;
/// A poller receives datagrams from other hosts once in this many empty polls.
const POLLS_PER_DATAGRAM: u32 = 4;
/// After this many nanoseconds without work, a poller yields the processor each time it reads the clock: if there are more
/// pollers than processors, the peer that it waits for may need this processor.
const YIELD_AFTER: u64 = 5_000;

/// What pollers record about their polls.
#[derive(Debug, Default)]
pub(super) struct Polling {
    /// Counts empty polls. The engine thread only checks whether it changes, so lost updates do no harm.
    empty_polls: CachePadded<AtomicU32>,
    idle: IdleTime,
    /// Whether the next poller should yield the processor.
    should_yield: AtomicBool,
    /// When a poller last read the clock.
    polled_at: AtomicU64,
}

impl Polling {
    /// The number of empty polls, which wraps around.
    #[inline]
    pub(super) fn empty_polls(&self) -> u32 {
        self.empty_polls.load(Ordering::Relaxed)
    }

    /// Counts an empty poll, and returns their number.
    #[inline]
    fn count_empty_poll(&self) -> u32 {
        let polls = self.empty_polls().wrapping_add(1);
        self.empty_polls.store(polls, Ordering::Relaxed);
        polls
    }

    /// When a poller last read the clock.
    pub(super) fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }
}

impl EngineDriver {
    /// Checks for work for a poller that found its completion queue empty.
    #[inline]
    pub(crate) fn poll(&self) {
        self.poll_with(None);
        self.rest();
    }

    /// Like [`EngineDriver::poll`], for a front end that takes the messages of a completion queue from an inbox. Does not yield
    /// the processor.
    #[inline]
    pub(crate) fn poll_with(&self, inbox: Option<(CqId, &mut dyn Inbox<ProcessMemory>)>) {
        let polls = self.polling.count_empty_poll();
        let result = self.schedule.poll_set.check_for_poll();
        let arrived = match result {
            PollResult::Arrived(link) => Some(link),
            _ => None,
        };
        if arrived.is_some() || self.pending.exists() {
            let only = arrived.flatten();
            if let Some(engine) = self.engine.try_lock()
                && self.drive_with(engine, self.schedule.coarse_now(), only, inbox)
            {
                self.polling.idle.found();
            }
        } else if result == PollResult::Owed && polls.is_multiple_of(POLLS_PER_ACK) {
            self.try_publish();
        }
        if polls.is_multiple_of(POLLS_PER_DATAGRAM)
            && let Some(transmitter) = &self.transmitter
        {
            self.send_held_packets();
            transmitter.poll(self.schedule.coarse_now());
        }
        if polls.is_multiple_of(POLLS_PER_CLOCK) && self.poll_slowly() {
            self.polling.should_yield.store(true, Ordering::Relaxed);
        }
    }

    /// Yields the processor if pollers have found nothing for a while. The caller must hold no lock that other threads
    /// need.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.polling.should_yield.load(Ordering::Relaxed) {
            self.polling.should_yield.store(false, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Publishes delayed acknowledgements that no response has carried, unless another thread uses the engine. Returns whether it
    /// has.
    #[cold]
    pub(super) fn try_publish(&self) -> bool {
        let Some(mut engine) = self.engine.try_lock() else {
            return false;
        };
        engine.links_mut().for_each(|(_, link)| link.publish());
        true
    }

    /// The slow part of a poll: the clock, deadlines, peers that may be asleep. Returns whether the poller should yield.
    #[cold]
    fn poll_slowly(&self) -> bool {
        let now = self.schedule.refresh_clock();
        self.polling.polled_at.store(now, Ordering::Relaxed);
        let Some(mut engine) = self.engine.try_lock() else {
            // The lock's holder may need this processor.
            return true;
        };
        if self.schedule.mode() == Mode::Asleep {
            self.schedule.lend(&engine);
        }
        let idle = self.polling.idle.at(now);
        if idle.kick_peers {
            kick_peers(&engine);
        }
        if idle.ns > YIELD_AFTER {
            engine.note_slow_writes(now);
        }
        // Driving also updates the deadline, for requests that were posted since the last drive.
        let did = self.drive(engine, now);
        idle.ns > YIELD_AFTER && !did
    }
}

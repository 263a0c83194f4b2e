//! The engine thread: it waits for sockets, doorbell and timer, establishes and accepts links, and drives the engine
//! while the program does not.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::DeviceError;
use crate::peers::Peers;
use crate::peers::handshake::LocalNode;
use crate::progress::reactor::Token;
use crate::progress::{EngineDriver, Mode, now_ns};
use crate::shared::Shared;
use crate::threads;
use crate::wire::Receiver;

/// This many empty polls while the engine thread drives mean that the program drives the engine itself.
const PROGRAM_POLLS: u32 = 16;
/// The engine thread reads the clock once in this many iterations of its loop.
const TURNS_PER_CLOCK: u32 = 64;
/// The engine thread handles sockets once in this many iterations of its loop.
const TURNS_PER_SOCKETS: u32 = 4096;
/// A program that has polled within this many nanoseconds before a doorbell counts as still polling.
const RECENT_POLL_NS: u64 = 200_000;

/// The state of the thread.
pub(crate) struct EngineThread {
    shared: Arc<Shared>,
    peers: Peers,
    /// The number of empty polls when the thread last checked whether the program polls.
    last_polls: u32,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// A doorbell rang, or a link was established, was lost or waits for the engine.
    rung: bool,
    /// The timer fired.
    ticked: bool,
}

impl EngineThread {
    /// Claims the first queue pair numbers, and starts the thread.
    ///
    /// # Errors
    /// No descriptor, name or thread is available.
    pub(crate) fn start(
        shared: Arc<Shared>,
        local: LocalNode,
    ) -> Result<JoinHandle<()>, DeviceError> {
        let reactor = &shared.reactor;
        reactor.add(&shared.driver.requests, Token::DOORBELL)?;
        reactor.add(shared.driver.timer(), Token::TIMER)?;
        shared
            .qp_numbers
            .claim_first(|number, fd| shared.add_block(number, fd))?;
        let receiver: Arc<dyn Receiver> = Arc::<Shared>::clone(&shared);
        let wire = shared.wire.clone();
        let mut thread = Self {
            peers: Peers::new(local),
            last_polls: 0,
            shared,
        };
        let started = threads::spawn("rkey-engine", move || thread.main())
            .map_err(DeviceError::io("starting the engine thread"))?;
        if let Some(wire) = wire {
            wire.add_receiver(&receiver);
        }
        Ok(started)
    }

    fn main(&mut self) {
        if let Err(error) = rkey_base::copy::prepare_thread() {
            tracing::warn!(%error, "cannot unblock SIGSEGV and SIGBUS in the engine thread: a fault in user memory may kill the process");
        }
        if let Err(why) = threads::catch_panic("the engine thread", || self.run()) {
            self.driver().fail(why);
        }
        let close = std::panic::AssertUnwindSafe(|| self.close());
        if std::panic::catch_unwind(close).is_err() {
            tracing::error!("bug: the engine thread panicked while it closed the device");
        }
    }

    fn driver(&self) -> &EngineDriver {
        &self.shared.driver
    }

    /// Whether the thread must end.
    fn must_end(&self) -> bool {
        let lifecycle = self.shared.lifecycle();
        lifecycle.is_stopping() || lifecycle.has_failed()
    }

    fn mode(&self) -> Mode {
        self.driver().schedule.mode()
    }

    fn run(&mut self) {
        while !self.must_end() {
            if self.mode() == Mode::Thread {
                self.work();
            }
            let woken = self.wait(self.timeout());
            #[cfg(test)]
            self.shared.trap.spring(&self.shared);
            if self.should_take_over(woken) {
                self.driver().take_over();
            }
        }
    }

    /// How long the thread may wait for an event.
    fn timeout(&self) -> Option<Duration> {
        if self.mode() == Mode::Thread {
            return Some(Duration::ZERO);
        }
        let next = self.peers.next_deadline(&self.shared)?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Waits, and handles everything except the engine.
    fn wait(&mut self, timeout: Option<Duration>) -> Woken {
        let mut woken = Woken::default();
        let shared = &self.shared;
        for token in shared.reactor.wait(timeout) {
            match token {
                Token::DOORBELL => {
                    shared.driver.requests.acknowledge();
                    shared.driver.send_left_packets();
                    woken.rung = true;
                }
                Token::TIMER => {
                    shared.driver.acknowledge_timer();
                    woken.ticked = true;
                }
                other => woken.rung |= self.peers.handle(shared, other),
            }
        }
        woken.rung |= self.peers.tidy(shared, Instant::now());
        woken
    }

    /// Called after a wait: whether the thread drives from now on.
    fn should_take_over(&mut self, woken: Woken) -> bool {
        match self.mode() {
            Mode::Thread => false,
            Mode::Asleep => woken.rung || woken.ticked,
            Mode::Program => self.program_has_stopped(woken),
        }
    }

    /// Whether the program has stopped polling.
    ///
    /// The polling thread may share this thread's processor, and then cannot poll while this thread checks. So only
    /// polls made before the wait ended count.
    fn program_has_stopped(&mut self, woken: Woken) -> bool {
        let now = now_ns();
        let polls = self.driver().polling.empty_polls();
        if woken.ticked {
            let moved = polls != std::mem::replace(&mut self.last_polls, polls);
            if moved {
                // A program that polls seldom also reads the clock seldom.
                if self.driver().is_due(now) {
                    self.driver().try_drive(now);
                }
                self.driver().give_way(None);
            }
            return !moved;
        }
        if !woken.rung {
            return false;
        }
        let is_polling = now.saturating_sub(self.driver().polling.polled_at()) < RECENT_POLL_NS;
        if is_polling {
            // The program may just have stopped, so check again soon.
            self.last_polls = polls;
            self.driver().give_way(Some(RECENT_POLL_NS));
        }
        !is_polling
    }

    /// Drives until there has been no work for a while, or the program polls.
    fn work(&mut self) {
        let first_polls = self.driver().polling.empty_polls();
        let spin = u64::try_from(self.shared.config.spin.as_nanos()).unwrap_or(u64::MAX);
        let mut now = self.driver().schedule.refresh_clock();
        let mut quiet_since = now;
        rkey_base::copy::check();
        for turn in 1u32.. {
            let due = self.driver().is_due(now);
            if due || self.driver().has_work() {
                if self.driver().try_drive(now) {
                    quiet_since = now;
                }
            } else {
                rkey_base::hint::pause();
            }
            if turn % TURNS_PER_CLOCK == 0 || due {
                self.driver().send_left_packets();
                now = self.driver().schedule.refresh_clock();
                let polls = self.driver().polling.empty_polls();
                if polls.wrapping_sub(first_polls) >= PROGRAM_POLLS {
                    self.last_polls = polls;
                    self.driver().give_way(None);
                    return;
                }
                if self.must_end() {
                    return;
                }
                if now.saturating_sub(quiet_since) >= spin && self.driver().fall_asleep() {
                    return;
                }
            }
            if turn % TURNS_PER_SOCKETS == 0 {
                self.wait(Some(Duration::ZERO));
            }
        }
    }

    /// Closes everything, so that peers notice the end of the device at once.
    fn close(&mut self) {
        self.peers.close(&self.shared);
        self.shared.close_blocks();
    }
}

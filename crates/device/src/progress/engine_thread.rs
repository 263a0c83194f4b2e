//! The engine thread: it waits for sockets, bell and timer, makes and accepts links, and drives the
//! engine while the program does not.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rkey_base::barrier;
use rkey_link::shm::LocalNode;

use crate::error::DeviceError;
use crate::peers::discovery::Discovery;
use crate::peers::link_manager::LinkManager;
use crate::peers::unresponsive;
use crate::progress::reactor::Token;
use crate::progress::{Mode, kick_peers, now_ns};
use crate::shared::Shared;

/// So many empty polls during one spell of work mean that the program drives by itself.
const POLLS_THAT_COUNT: u32 = 16;
/// So many turns of the working loop lie between two looks at the clock, and at the sockets.
const TURNS_PER_CLOCK: u32 = 64;
const TURNS_PER_SOCKETS: u32 = 4096;
/// A program that has polled in so many nanoseconds before a bell rang is polling still.
const RECENTLY: u64 = 200_000;

/// Everything that the thread owns.
pub(crate) struct EngineThread {
    shared: Arc<Shared>,
    link_manager: LinkManager,
    discovery: Discovery,
    last_stamp: u32,
}

/// What a wait brought.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// Somebody rang, or there is news about a link.
    rung: bool,
    /// The timer fired.
    ticked: bool,
}

impl EngineThread {
    /// Claims the first queue pair numbers, and starts the thread.
    ///
    /// # Errors
    /// Descriptors, names or threads are used up.
    pub(crate) fn start(
        shared: Arc<Shared>,
        local: LocalNode,
    ) -> Result<JoinHandle<()>, DeviceError> {
        let reactor = &shared.reactor;
        reactor.add(&shared.thread_requests, Token::BELL)?;
        reactor.add(shared.progress.timer(), Token::TIMER)?;
        shared
            .qp_numbers
            .claim_first(|number, fd| reactor.add(fd, Token::block(number)))?;
        let mut thread = Self {
            link_manager: LinkManager::new(local.clone()),
            discovery: Discovery::new(local),
            last_stamp: 0,
            shared,
        };
        std::thread::Builder::new()
            .name("rkey-engine".to_owned())
            .spawn(move || thread.main())
            .map_err(DeviceError::io("starting the engine thread"))
    }

    fn main(&mut self) {
        block_signals();
        if let Err(error) = rkey_base::copy::prepare_thread() {
            tracing::warn!(%error, "faults in user memory may not be caught in the engine thread");
        }
        let run = std::panic::AssertUnwindSafe(|| self.run());
        if let Err(panic) = std::panic::catch_unwind(run) {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            self.shared.fail(format!(
                "a bug: the engine thread panicked: {}",
                text.unwrap_or("?")
            ));
        }
        let close = std::panic::AssertUnwindSafe(|| self.close());
        if std::panic::catch_unwind(close).is_err() {
            tracing::error!("a bug: the engine thread panicked while it closed the device");
        }
    }

    fn run(&mut self) {
        while !self.shared.lifecycle.is_stopping() && !self.shared.has_failed() {
            if self.shared.progress.mode() == Mode::Thread {
                self.work();
            }
            let woken = self.wait(self.patience());
            #[cfg(test)]
            self.shared.trap.spring(&self.shared);
            self.decide(woken);
        }
    }

    /// How long nothing but events needs us.
    fn patience(&self) -> Option<Duration> {
        if self.shared.progress.mode() == Mode::Thread {
            return Some(Duration::ZERO);
        }
        let next = [
            self.link_manager.next_deadline(),
            self.discovery.next_deadline(),
        ];
        let next = next.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Waits, and handles everything except the engine.
    fn wait(&mut self, timeout: Option<Duration>) -> Woken {
        let mut woken = Woken::default();
        let shared = &self.shared;
        for token in shared.reactor.wait(timeout) {
            match token {
                Token::BELL => {
                    shared.thread_requests.acknowledge();
                    woken.rung = true;
                }
                Token::TIMER => {
                    let engine = shared.engine.lock();
                    shared.progress.timer().acknowledge();
                    drop(engine);
                    woken.ticked = true;
                }
                other => {
                    woken.rung |= self.link_manager.handle(shared, other)
                        || self.discovery.handle(shared, &mut self.link_manager, other);
                }
            }
        }
        let now = Instant::now();
        self.link_manager.tidy(shared, now);
        woken.rung |= self.discovery.tidy(shared, &mut self.link_manager, now);
        unresponsive::judge(shared, &self.link_manager, &self.discovery);
        woken
    }

    /// After a wait: who drives now?
    fn decide(&mut self, woken: Woken) {
        let take_over = match self.shared.progress.mode() {
            Mode::Thread => false,
            Mode::Asleep => woken.rung || woken.ticked,
            Mode::Lent => self.program_has_stopped(woken),
        };
        if take_over {
            let engine = self.shared.engine.lock();
            self.shared.take_over(&engine);
        }
    }

    /// While the program has the engine: whether it no longer looks after it.
    ///
    /// This thread may share its processor with the thread that polls, which then cannot poll while
    /// we look. So what counts is what happened before we were woken.
    fn program_has_stopped(&mut self, woken: Woken) -> bool {
        let shared = &self.shared;
        let now = now_ns();
        let stamp = shared.progress.stamp();
        if woken.ticked {
            let moved = stamp != std::mem::replace(&mut self.last_stamp, stamp);
            if moved {
                let engine = shared.engine.lock();
                shared.give_way(&engine, shared.tick_ns());
            }
            return !moved;
        }
        if !woken.rung {
            return false;
        }
        let polls = now.saturating_sub(shared.progress.polled_at()) < RECENTLY;
        if polls {
            // It may have stopped just now: look again soon.
            self.last_stamp = stamp;
            let engine = shared.engine.lock();
            shared.give_way(&engine, RECENTLY);
        }
        !polls
    }

    /// Drives until there has been nothing to do for a while, or the program polls by itself.
    fn work(&mut self) {
        let first_stamp = self.shared.progress.stamp();
        let spin = u64::try_from(self.shared.config.spin.as_nanos()).unwrap_or(u64::MAX);
        let mut now = self.shared.progress.refresh_clock();
        let mut quiet_since = now;
        rkey_base::copy::check();
        for turn in 1u32.. {
            let progress = &self.shared.progress;
            let due = progress.deadline().is_some_and(|d| d <= now);
            if due || progress.must_drive_again() || self.shared.any_pending() {
                if let Some(engine) = self.shared.engine.try_lock()
                    && self.shared.drive(engine, now)
                {
                    quiet_since = now;
                }
            } else {
                rkey_base::hint::pause();
            }
            if turn % TURNS_PER_CLOCK == 0 || due {
                now = self.shared.progress.refresh_clock();
                let polls = self.shared.progress.stamp().wrapping_sub(first_stamp);
                if polls >= POLLS_THAT_COUNT {
                    let engine = self.shared.engine.lock();
                    self.last_stamp = self.shared.progress.stamp();
                    self.shared.give_way(&engine, self.shared.tick_ns());
                    return;
                }
                if self.shared.lifecycle.is_stopping() || self.shared.has_failed() {
                    return;
                }
                if now.saturating_sub(quiet_since) >= spin && self.fall_asleep() {
                    return;
                }
            }
            if turn % TURNS_PER_SOCKETS == 0 {
                self.wait(Some(Duration::ZERO));
            }
        }
    }

    /// Goes to sleep, unless something arrived at the last moment.
    fn fall_asleep(&self) -> bool {
        let shared = &self.shared;
        let engine = shared.engine.lock();
        kick_peers(&engine);
        shared.fall_asleep(&engine);
        drop(engine);
        barrier::heavy();
        if !shared.drive_now() {
            let _locked = shared.engine.lock();
            if let Some(deadline) = shared.progress.deadline() {
                shared.progress.timer().fire_by(deadline);
            }
            return true;
        }
        let engine = shared.engine.lock();
        // In the meantime the program may have taken the engine by polling.
        if shared.progress.mode() == Mode::Asleep {
            shared.take_over(&engine);
            return false;
        }
        true
    }

    /// Lets go of everything, so that peers see the end of the device now.
    fn close(&mut self) {
        self.discovery.close(&self.shared);
        self.link_manager.close(&self.shared);
        self.shared
            .qp_numbers
            .close(|fd| self.shared.reactor.remove(fd));
    }
}

/// Signals are the program's business: none is handled in the engine thread, except those that a
/// fault in user memory raises here.
#[allow(unsafe_code)]
// UNSAFETY: `pthread_sigmask` has no safe wrapper.
fn block_signals() {
    // SAFETY: the set lives on this stack and is initialised by sigfillset before it is used.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut set);
        libc::sigdelset(&mut set, libc::SIGSEGV);
        libc::sigdelset(&mut set, libc::SIGBUS);
        libc::sigdelset(&mut set, libc::SIGFPE);
        libc::sigdelset(&mut set, libc::SIGILL);
        libc::sigdelset(&mut set, libc::SIGABRT);
        libc::sigdelset(&mut set, libc::SIGTRAP);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

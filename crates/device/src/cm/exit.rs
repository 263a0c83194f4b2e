//! The end of a process that has connections to other hosts.
//!
//! Processes of this host see that the sockets of a process close. Other hosts see nothing, so they would repeat their messages for a
//! minute before they gave up. A kernel driver ends the connections of a process that exits; here, the process does so itself.

#![allow(unsafe_code)]
// UNSAFETY: a function that the loader calls when the process exits.

use std::panic::catch_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rkey_cm::time::Nanos;
use rkey_cm::{ConnectionId, State};

use super::{Handler, Inner, Shared};
use crate::{progress, wire};

/// How long an exiting process waits for the thread to send its last messages, which takes microseconds. The thread may have to wait for
/// a lock that the exiting thread holds, if a signal handler calls `exit`.
const PATIENCE: Duration = Duration::from_millis(200);

/// A connection manager that may have connections to other hosts.
trait Leave: Send + Sync {
    /// Ends all connections to other hosts because the process exits: the peers learn it from a DREQ, REJ or DREP. Each is sent three
    /// times, because nothing repeats it later. The program gets no more events of these connections. Does nothing in a forked child, whose parent
    /// still uses the connections.
    ///
    /// The connection manager's thread does it: the exiting thread may hold any lock, and has no thread-local storage any more, which
    /// logging needs.
    fn leave_other_hosts(&self);
}

/// The connection managers of this process, of all front ends.
static ALL: Mutex<Vec<Weak<dyn Leave>>> = Mutex::new(Vec::new());

extern "C" fn leave() {
    // It must not unwind into the loader.
    let _ = catch_unwind(|| {
        // Before the peers learn that their connections end.
        wire::send_held();
        progress::exit::publish_all();
        // The exiting thread may hold the lock, if a signal handler calls `exit`.
        let all = ALL.try_lock().map(|mut all| std::mem::take(&mut *all));
        for service in all.into_iter().flatten() {
            if let Some(service) = service.upgrade() {
                service.leave_other_hosts();
            }
        }
        // Other threads may have received messages in the meantime.
        progress::exit::publish_all();
    });
}

// SAFETY: the loader calls the functions of this section once, after the handlers of `atexit` that the program has registered, which
// may still use connections; `leave` ignores their arguments.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = leave;

/// Ends the connections of a service to other hosts when the process exits.
pub(super) fn watch<H: Handler>(service: &Arc<Shared<H>>) {
    let service: Arc<dyn Leave> = Arc::<Shared<H>>::clone(service);
    // If another thread holds the lock while the process forks, nothing unlocks it in the child.
    if let Some(mut all) = ALL.try_lock_for(PATIENCE) {
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(&service));
    }
}

impl<H: Handler> Leave for Shared<H> {
    fn leave_other_hosts(&self) {
        if self.is_forked() || self.has_failed() {
            return;
        }
        // Most programs have closed their connections. They must not wait: rping's thread calls `exit` with an error as soon as
        // it gets to run.
        let inner = self.inner.try_lock();
        if inner.is_some_and(|mut inner| inner.of_other_hosts().is_empty()) {
            return;
        }
        self.leaves.store(true, Ordering::Release);
        self.ring();
        let until = crate::time::now() + PATIENCE;
        while self.leaves.load(Ordering::Acquire) && crate::time::now() < until {
            crate::time::sleep(Duration::from_micros(50));
        }
    }
}

impl<H: Handler> Shared<H> {
    /// Ends all connections to other hosts if the process exits.
    pub(super) fn leave_if_exiting(&self) {
        if self.leaves.load(Ordering::Acquire) {
            self.inner.lock().leave_other_hosts(self.now());
            self.leaves.store(false, Ordering::Release);
        }
    }
}

/// Whether the end of a connection in this state needs a message.
fn is_open(state: State) -> bool {
    !matches!(
        state,
        State::Idle | State::DreqSent | State::TimeWait | State::Refused | State::Closed
    )
}

impl<H: Handler> Inner<H> {
    /// The connections whose peers are on other hosts and have not been told that they end.
    fn of_other_hosts(&mut self) -> Vec<ConnectionId> {
        let inbox = &mut self.carrier.inbox;
        let all = self.manager.connections();
        all.filter(|(_, state, peer)| is_open(*state) && !inbox.is_of_this_host(*peer))
            .map(|(id, _, _)| id)
            .collect()
    }

    fn leave_other_hosts(&mut self, now: Nanos) {
        self.carrier.exits = true;
        for id in self.of_other_hosts() {
            // An error means that it has just ended.
            let _ = self.manager.close(now, id);
        }
        self.pump(now);
    }
}

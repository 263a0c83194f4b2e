//! The end of a process that has connections to other hosts.
//!
//! Processes of this host see that the sockets of a process close. Other hosts see nothing, so they would repeat their messages for a
//! minute before they gave up. A kernel driver ends the connections of a process that exits; here, the process does so itself.

use std::time::Duration;

use rkey_cm::ConnectionId;

use super::{Handler, Service};

/// How long to wait for another thread that is inside a call. Calls take microseconds, but the thread may be stopped, or be the exiting
/// thread itself, interrupted by a signal.
const PATIENCE: Duration = Duration::from_millis(200);

impl<H: Handler> Service<H> {
    /// Ends all connections to other hosts because the process exits: the peers learn it from a DREQ, REJ or DREP. Each is sent once, so
    /// the network may lose it. The program gets no more events of these connections. Does nothing in a forked child, whose parent
    /// still uses the connections.
    pub fn leave_other_hosts(&self) {
        if self.is_forked() || self.has_failed() {
            return;
        }
        let Some(mut inner) = self.shared.inner.try_lock_for(PATIENCE) else {
            return;
        };
        let now = self.shared.now();
        let all = inner.manager.connections().map(|(id, _, peer)| (id, peer));
        let all: Vec<(ConnectionId, _)> = all.collect();
        for (id, peer) in all {
            if !inner.carrier.inbox.is_of_this_host(now, peer) {
                // An error means that it has just ended.
                let _ = inner.manager.close(now, id);
            }
        }
        inner.pump(now);
    }
}

//! What wakes a program that waits for a completion queue or an event queue, and how it prepares to wait.
//!
//! The device has one channel for an endpoint, whose descriptor is in the sets of all queues of it that a program can
//! wait for. Whoever waits for completions asks for everything, and who waits for events for the end of the connection
//! only: for what a peer says last, and for the device's word that a peer is gone. Whoever takes an event from the
//! channel asks anew, so that the others are still woken.

use super::*;
use crate::cq::Armed;
use std::os::fd::{AsRawFd, RawFd};

impl Endpoint {
    /// Asks for the descriptor to become readable when there is something to do, after doing what there is. That a call
    /// may come again is said to who waits for the queue of transmissions.
    pub(crate) fn arm(&self, cq: &Cq) -> Result<Armed> {
        let mut armed = Armed::default();
        let Some(live) = self.live.get() else {
            return Ok(armed);
        };
        Self::ask_for_events(live, false)?;
        // What came before that is told to nobody any more.
        let mut state = live.state.lock();
        self.advance(live, &mut state);
        let transmits = live.tx.as_ref().is_none_or(|tx| std::ptr::eq(&*tx.cq, cq));
        if transmits {
            armed.comes_again = state.reached.tell();
            armed.needs_looks = state.reached.has_others();
        }
        // No descriptor tells that a peer has let go of memory, or that a member of a group is gone.
        let together = state.collective.as_ref();
        armed.needs_looks |=
            !state.condemned.is_empty() || together.is_some_and(|it| !it.is_idle());
        Ok(armed)
    }

    /// The same for the end of the connection only.
    pub(crate) fn arm_for_end(&self) -> Result<()> {
        let Some(live) = self.live.get() else {
            return Ok(());
        };
        if Self::ask_for_events(live, true)? {
            // That may have been for who waits for a completion queue: he has to ask for everything again.
            for side in [&live.tx, &live.rx].into_iter().flatten() {
                side.cq.nudge();
            }
        }
        self.advance(live, &mut live.state.lock());
        Ok(())
    }

    /// Takes what the descriptor was readable for, and lets it become so again: for everything, or for what peers say
    /// last and for their ends. Says whether there was anything.
    fn ask_for_events(live: &Live, ends_only: bool) -> Result<bool> {
        let Some(channel) = &live.channel else {
            return Ok(false);
        };
        let mut events = 0;
        while channel.try_next_event()?.is_some() {
            events += 1;
        }
        live.cq.req_notify(ends_only)?;
        Ok(events > 0)
    }

    /// As [`Endpoint::progress`], for who reads an event queue and perhaps nothing else; whether there was anything
    /// to do.
    pub(crate) fn look_for_end(&self) -> bool {
        let Some(live) = self.live.get() else {
            return false;
        };
        let Some(mut state) = live.state.try_lock() else {
            return false;
        };
        let told = live.channel.as_ref().is_some_and(Channel::has_events);
        if live.cq.is_empty() && live.cq.peers_gone() == state.peers_gone && !told {
            return false;
        }
        if told {
            // The descriptor is not left readable for nothing.
            drop(state);
            return self.arm_for_end().is_ok();
        }
        self.advance(live, &mut state);
        true
    }

    /// The descriptor of [`Endpoint::arm`].
    pub(super) fn fd(&self) -> Option<RawFd> {
        let live = self.live.get()?;
        live.channel
            .as_ref()
            .map(|channel| channel.fd().as_raw_fd())
    }
}

//! What wakes a program that waits for a completion queue or an event queue, and how it prepares to wait.
//!
//! The device has two channels for an endpoint: one for all completions, whose descriptor is in the sets of the completion
//! queues that a program can wait for, and one for the end of the connection, in the set of its event queue: for a peer's
//! last message, and for the device's report that a peer has ended. So messages do not wake threads that wait for events.

use super::*;
use crate::attached::{Armed, CqId, Driven};
use rkey_device::time;
use std::os::fd::{AsRawFd, RawFd};

impl Driven for Endpoint {
    #[inline]
    fn progress(&self) {
        self.progress();
    }

    fn give_answers(&self) {
        self.give_answers();
    }

    /// Handles current work, then makes the descriptor readable when there is more. Only the thread that waits for the
    /// transmit queue learns that a call may be retried.
    fn arm(&self, cq: CqId) -> Result<Armed> {
        let mut armed = Armed::default();
        let Some(live) = self.live.get() else {
            return Ok(armed);
        };
        if let Some(channel) = &live.channel {
            while channel.try_next_event()?.is_some() {}
            live.cq.req_notify(false)?;
        }
        // The descriptor does not signal earlier arrivals.
        let mut state = live.state.lock();
        live.advance(&mut state);
        let transmits = live.host.tx.as_ref().is_none_or(|tx| tx.cq.id() == cq);
        if transmits {
            armed.comes_again = state
                .rdm
                .may_retry(std::thread::current().id(), time::now());
            armed.needs_looks = state.rdm.has_retrying();
        }
        // No descriptor signals that a peer has released memory, or that a member of a group has ended.
        armed.needs_looks |= state.rdm.needs_looks();
        Ok(armed)
    }

    /// The same for the end of the connection only.
    fn arm_for_end(&self) -> Result<()> {
        let Some(live) = self.live.get() else {
            return Ok(());
        };
        if let Some(ends) = &live.ends {
            while ends.try_next_event()?.is_some() {}
            live.cq.watch(ends)?;
        }
        live.advance(&mut live.state.lock());
        Ok(())
    }

    /// As [`Endpoint::progress`], for a thread that reads an event queue and perhaps nothing else; returns whether there was
    /// any work.
    fn look_for_end(&self) -> bool {
        let Some(live) = self.live.get() else {
            return false;
        };
        let Some(mut state) = live.state.try_lock() else {
            return false;
        };
        let told = live.ends.as_ref().is_some_and(Channel::has_events);
        if !live.has_news(&state) && !told {
            return false;
        }
        if told {
            // Do not leave the descriptor readable without work.
            drop(state);
            return self.arm_for_end().is_ok();
        }
        live.advance(&mut state);
        true
    }
}

/// The descriptor that becomes readable when there is work, for a thread that has prepared to wait.
#[derive(Clone, Copy, Default)]
pub(super) struct Fds {
    /// After [`Endpoint::arm`].
    pub(super) completions: Option<RawFd>,
    /// After [`Endpoint::arm_for_end`].
    pub(super) ends: Option<RawFd>,
}

impl Live {
    pub(super) fn fds(&self) -> Fds {
        let fd = |channel: &Channel| channel.fd().as_raw_fd();
        Fds {
            completions: self.channel.as_ref().map(fd),
            ends: self.ends.as_ref().map(fd),
        }
    }
}

//! What queues and counters call on an endpoint: making progress, and preparing a thread to wait.

use super::*;
use crate::attached::{Armed, CqId, Driven};
use rkey_device::time;

impl Driven for Endpoint {
    #[inline]
    fn progress(&self) {
        // `Endpoint::progress` in `mod.rs`.
        Self::progress(self);
    }

    fn send_owed_answers(&self) {
        Self::send_owed_answers(self);
    }

    /// Makes the descriptor readable when more work arrives, then handles what has arrived before. Only a thread that waits
    /// for the transmit queue learns that a call may be retried.
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
            armed.may_retry = state
                .rdm
                .routes_mut()
                .may_retry(std::thread::current().id(), time::now());
            armed.needs_polling = state.rdm.routes().has_retrying();
        }
        // No descriptor signals that a peer has released memory, or that a member of a group has exited.
        armed.needs_polling |= state.rdm.needs_looks();
        Ok(armed)
    }

    /// Like [`Driven::arm`], but for the end of the connection only.
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

    /// Like [`Endpoint::progress`], for a thread that may read only an event queue. Returns whether there was any work.
    fn check_for_end(&self) -> bool {
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

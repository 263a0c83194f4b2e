//! How a thread waits for the events of an EVD.

use crate::handles::argument::deadline;
use crate::handles::fail::{Fail, Result};
use crate::objects::evd::Evd;
use crate::objects::evd_take::Broken;
use crate::sys::consts::*;
use crate::sys::{Event, Timeout};
use rkey_device::time;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Evd {
    /// Waits for `threshold` events and takes one as [`Evd::dequeue`] does; also returns how many events remain.
    ///
    /// # Errors
    /// `DAT_TIMEOUT_EXPIRED`; `DAT_INVALID_STATE` (unwaitable, or another waiter); `DAT_ABORT` (freed, or its IA closed).
    pub fn wait(&self, timeout: Timeout, threshold: u32) -> Result<(Event, u32)> {
        {
            let mut state = self.state.lock();
            state.check_waitable()?;
            if std::mem::replace(&mut state.waiting, true) {
                return Err(Fail::state(INVALID_STATE_EVD_WAITER));
            }
        }
        let deadline = deadline(timeout);
        let event = loop {
            let waited = self.wait_alone(deadline, threshold as usize);
            // Another thread may have taken the event.
            match waited.and_then(|()| self.dequeue()) {
                Err(Fail::EMPTY) => {}
                result => break result,
            }
        };
        let mut state = self.state.lock();
        state.waiting = false;
        match event {
            Ok(event) => {
                let more = state.queue.len() + if self.has_cq { self.cq.len() } else { 0 };
                Ok((event, more as u32))
            }
            Err(fail) => {
                // Fewer events than the threshold have arrived; the CNO was not triggered for them.
                self.trigger_if_notified(&state);
                Err(fail)
            }
        }
    }

    fn wait_alone(&self, deadline: Option<Instant>, threshold: usize) -> Result {
        let mut before = None;
        loop {
            let seen = self.news.load(Ordering::SeqCst);
            let mut broken = Broken::new();
            let (enough, allowed) = {
                let mut state = self.state.lock();
                while self.take_completions(&mut state, &mut broken) > 0 {}
                // Events that are already queued end the wait at once; later, only a notification does.
                let notified = before.is_none_or(|before| state.notified > before);
                before.get_or_insert(state.notified);
                let enough = notified && state.queue.len() >= threshold;
                (enough, state.check_waitable())
            };
            self.handle_broken(broken);
            if enough {
                return Ok(());
            }
            allowed?;
            let left = match deadline {
                None => None,
                Some(end) => match end.checked_duration_since(time::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return Err(Fail::TIMEOUT),
                },
            };
            self.cq
                .wait_or(left, || self.news.load(Ordering::SeqCst) != seen)?;
        }
    }

    /// Sets whether threads may wait for the EVD. If they may not, a waiting thread returns.
    pub fn set_waitable(&self, waitable: bool) {
        self.state.lock().waitable = waitable;
        self.news.fetch_add(1, Ordering::SeqCst);
        self.cq.wake();
    }

    /// Whether a thread waits for it.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.state.lock().waiting
    }

    /// Ends the current wait, and refuses later ones.
    pub fn abort_wait(&self) {
        self.state.lock().closed = true;
        self.news.fetch_add(1, Ordering::SeqCst);
        self.cq.wake();
    }
}

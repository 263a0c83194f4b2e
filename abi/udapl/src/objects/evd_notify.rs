//! How an EVD notifies the program of its events: the waiting thread, or the CNO.

use crate::objects::cno::Cno;
use crate::objects::evd::{Evd, State};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Evd {
    /// Notifies the waiting thread if there is one, otherwise the CNO. The caller holds the lock, so the CNO does not
    /// report events that were already taken.
    pub(crate) fn announce(&self, state: &State) {
        self.news.fetch_add(1, Ordering::SeqCst);
        if state.waiting {
            self.cq.wake();
        } else if let Some(cno) = state.active_cno() {
            cno.trigger(self.handle);
        }
    }

    /// Takes completions after a report of the completion queue to the IA's worker, and requests the next report.
    pub fn look(&self) {
        loop {
            self.collect();
            self.arm();
            if self.cq.is_empty() {
                return;
            }
        }
    }

    /// Asks the device to report failures to the IA's worker, and all completions if the EVD has a CNO.
    pub fn arm(&self) {
        if !self.has_cq {
            return;
        }
        let has_cno = self.state.lock().active_cno().is_some();
        let armed = match has_cno {
            true => self.cq.req_notify(false),
            false => Ok(()),
        };
        if let Err(error) = armed.and_then(|()| self.cq.watch(&self.ia.channel)) {
            tracing::debug!(%error, "cannot watch the completion queue of EVD {:#x}", self.handle);
        }
    }

    /// Triggers the CNO for events that are already queued.
    fn trigger_for_old(&self) {
        self.look();
        self.trigger_if_notified(&self.state.lock());
    }

    pub(crate) fn trigger_if_notified(&self, state: &State) {
        if let Some(cno) = state.active_cno()
            && !state.waiting
            && state.queue.iter().any(|queued| queued.notify)
        {
            cno.trigger(self.handle);
        }
    }

    /// Sets or removes the CNO that the EVD triggers.
    pub fn set_cno(&self, cno: Option<Arc<Cno>>) {
        if let Some(cno) = &cno {
            cno.users.add();
        }
        let old = std::mem::replace(&mut self.state.lock().cno, cno);
        if let Some(old) = old {
            old.leave(self.handle);
        }
        self.trigger_for_old();
    }

    /// Sets whether events trigger the CNO.
    pub fn enable(&self, enabled: bool) {
        self.state.lock().enabled = enabled;
        if enabled {
            self.trigger_for_old();
        }
    }
}

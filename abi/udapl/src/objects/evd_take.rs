//! How the events of an EVD are taken from its own queue and from its completion queue.

use crate::handles::fail::{Fail, Result};
use crate::objects::completion;
use crate::objects::ep::Ep;
use crate::objects::evd::{BATCH, Evd, State};
use crate::sys::{EvdHandle, Event};
use crate::values::event::Queued;
use rkey_device::engine::Completion;
use std::sync::Arc;

/// EPs with failed requests.
pub(crate) type Broken = Vec<Arc<Ep>>;

impl Evd {
    /// Turns all completions into events, and handles EPs whose requests failed.
    pub fn collect(&self) {
        let mut broken = Broken::new();
        {
            let mut state = self.state.lock();
            let before = state.notified;
            while self.take_completions(&mut state, &mut broken) > 0 {}
            if state.notified != before {
                self.announce(&state);
            }
        }
        self.handle_broken(broken);
    }

    /// Moves up to [`BATCH`] completions to the queue; returns how many there were.
    pub(crate) fn take_completions(&self, state: &mut State, broken: &mut Broken) -> usize {
        let mut batch = [Completion::default(); BATCH];
        let taken = match self.has_cq {
            true => self.cq.poll(&mut batch).unwrap_or(0),
            false => 0,
        };
        for completion in batch.iter().take(taken) {
            if let Some(queued) = self.translate(state, completion, broken) {
                state.queue.push_back(queued);
            }
        }
        taken
    }

    /// Takes one event directly from the completion queue. Call it only while the event queue is empty.
    #[inline]
    fn take_one(&self, state: &mut State, broken: &mut Broken) -> Option<Queued> {
        let mut completion = [Completion::default()];
        while self.has_cq && self.cq.poll(&mut completion).unwrap_or(0) > 0 {
            let found = self.translate(state, &completion[0], broken);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The event for a completion; `None` if the program wants no event or the EP no longer exists.
    #[inline]
    fn translate(
        &self,
        state: &mut State,
        completion: &Completion,
        broken: &mut Broken,
    ) -> Option<Queued> {
        let known = state.last.as_ref();
        if known.is_none_or(|(qpn, _)| *qpn != completion.qpn) {
            state.last = Some((completion.qpn, self.ia.ep(completion.qpn)?));
        }
        let (_, ep) = state.last.as_ref()?;
        let found = completion::translate(ep, completion);
        if !completion.status.is_success() && ep.is_in_service() {
            broken.push(Arc::clone(ep));
        }
        if let Some(queued) = &found {
            state.notified += u64::from(queued.notify);
        }
        found
    }

    /// Handles EPs that have failed requests.
    pub(crate) fn handle_broken(&self, broken: Broken) {
        for ep in broken {
            ep.suspect();
        }
    }

    /// Turns the completions of an EP into events before its queue pair is destroyed, while its number still identifies
    /// the EP.
    pub fn forget_ep(&self, qpn: u32) {
        self.collect();
        let mut state = self.state.lock();
        if state.last.as_ref().is_some_and(|(last, _)| *last == qpn) {
            state.last = None;
        }
    }

    /// Takes the event at the front of the EVD's own queue; if that is empty, the event of the oldest completion.
    ///
    /// # Errors
    /// `DAT_QUEUE_EMPTY`.
    pub fn dequeue(&self) -> Result<Event> {
        let mut broken = Broken::new();
        let taken = {
            let mut state = self.state.lock();
            let taken = match state.queue.pop_front() {
                Some(queued) => Some(queued),
                None => self.take_one(&mut state, &mut broken),
            };
            if let Some(cno) = state.active_cno()
                && state.queue.is_empty()
            {
                cno.forget(self.handle);
            }
            taken
        };
        if !broken.is_empty() {
            self.handle_broken(broken);
        }
        let mut event = taken.ok_or(Fail::EMPTY)?.event;
        event.evd_handle = self.handle as EvdHandle;
        Ok(event)
    }
}

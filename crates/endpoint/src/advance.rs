//! Drives the state machine of an endpoint with the device's completions and the time.

#![allow(unsafe_code)]
// UNSAFETY: reads buffers that the device has filled.

use super::{Driver, Front, State};
use rkey_device::engine::{Completion, RecvRequest, Sge};
use rkey_device::time;
use rkey_rdm::limits::BUFFER_LEN;
use std::time::Duration;

/// How long a closing endpoint waits for its posted messages to arrive.
const LINGER: Duration = Duration::from_millis(500);

impl<F: Front> Driver<F> {
    /// Handles what the device has completed.
    pub fn advance(&self, state: &mut State<F>) {
        // Read this before taking completions, which then include everything from those peers.
        let ended_peers = self.cq.ended_peers();
        self.take_completions(state);
        let mut look = false;
        if !state.rdm.is_at_rest(&self.host) {
            look = state.rdm.do_background_work(&self.host, time::now());
        }
        if look || ended_peers != state.ended_peers {
            state.ended_peers = ended_peers;
            self.look_after(state);
        }
    }

    /// Takes the device's current completions.
    fn take_completions(&self, state: &mut State<F>) {
        let State {
            rdm, completions, ..
        } = state;
        if completions.is_empty() {
            completions.resize(32, Completion::default());
        }
        loop {
            let mut inbox = rdm.inbox(&self.host);
            let polled = self.cq.poll_with(completions, &mut inbox);
            inbox.finish();
            let Ok(count) = polled else {
                break;
            };
            for completion in &completions[..count] {
                if completion.opcode.is_recv() {
                    let index = completion.id as u32;
                    // SAFETY: the receive is complete, and the buffer is posted again below.
                    let bytes = unsafe { self.buffers.read(index, completion.bytes as usize) };
                    rdm.receive_completed(&self.host, completion, bytes);
                    self.post_buffer(index);
                } else {
                    rdm.request_completed(&self.host, completion);
                }
            }
            if count < completions.len() {
                break;
            }
        }
    }

    /// Checks for connections whose peer ended without a message: their queue pair is in the error state.
    #[cold]
    fn look_after(&self, state: &mut State<F>) {
        let over = state.rdm.outbox().broken(&self.host);
        if over.is_empty() {
            return;
        }
        // Take the peers' last messages first: an answer among them completes an operation that `lose` would fail.
        self.take_completions(state);
        for connection in over {
            state.rdm.lose(&self.host, connection);
        }
    }

    /// Checks at once whether any connection's peer has ended.
    #[cold]
    pub(super) fn look_for_lost(&self) {
        let mut state = self.state.lock();
        self.look_after(&mut state);
        state.rdm.outbox_mut().hurry_teardown();
        self.advance(&mut state);
    }

    /// Whether the device may have something for [`Driver::advance`]: completions, or peers that have exited.
    pub fn has_news(&self, state: &State<F>) -> bool {
        !self.cq.is_empty() || self.cq.ended_peers() != state.ended_peers
    }

    /// Posts requests that waited for room on connections, as far as there is room now. Returns whether any still wait. For a
    /// host that watches its backlog ([`Host::watch_backlog`](rkey_rdm::endpoint::Host::watch_backlog)).
    pub fn post_backlog(&self) -> bool {
        // Another thread holds the lock and may leave requests waiting, so report that some wait.
        let Some(mut state) = self.state.try_lock() else {
            return true;
        };
        // A closing endpoint posts its backlog itself, in `linger`.
        if state.closing {
            return false;
        }
        self.advance(&mut state);
        state.rdm.outbox_mut().still_waits()
    }

    /// Waits briefly until posted messages have arrived, before the endpoint closes.
    pub fn linger(&self) {
        let until = time::now() + LINGER;
        loop {
            let mut state = self.state.lock();
            self.advance(&mut state);
            if !state.rdm.outbox().is_busy() {
                return;
            }
            if time::now() >= until {
                tracing::warn!(
                    "closing an endpoint whose peers have not acknowledged its last messages for {LINGER:?}: \
                     they may be lost"
                );
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Posts a buffer to the device.
    pub(super) fn post_buffer(&self, index: u32) {
        let sge = Sge {
            addr: self.buffers.address(index),
            len: BUFFER_LEN as u32,
            key: self.host.everything(),
        };
        let request = RecvRequest {
            id: u64::from(index),
            sges: &[sge],
        };
        if let Err(error) = self.srq.post_recv(&request) {
            tracing::warn!(%error, "cannot repost a message buffer; the buffer is lost");
        }
    }
}

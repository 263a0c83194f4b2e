//! Drives the state machine of an endpoint: takes the completions of the device, and gives it the time.

#![allow(unsafe_code)]
// UNSAFETY: reads buffers that the device has filled.

use super::*;
use rkey_device::engine::RecvRequest;
use rkey_device::time;
use rkey_rdm::endpoint::Service;
use std::time::Duration;

/// How long an endpoint that goes waits for what it has posted to arrive.
const LINGER: Duration = Duration::from_millis(500);

/// The service that an endpoint type offers.
pub(super) fn service(ep_type: c_int) -> Service {
    match ep_type {
        FI_EP_MSG => Service::Connected,
        FI_EP_DGRAM => Service::Datagram,
        _ => Service::ReliableDatagram,
    }
}

impl Endpoint {
    /// Handles what the device has completed.
    pub(super) fn advance(&self, live: &Live, state: &mut State) {
        // Before the completions are taken: what came from those peers is among them.
        let peers_gone = live.cq.peers_gone();
        self.take_completions(live, state);
        let mut look = false;
        if !state.rdm.is_at_rest(&live.host) {
            look = state.rdm.progress(&live.host, time::now());
        }
        if look || peers_gone != state.peers_gone {
            state.peers_gone = peers_gone;
            self.look_after(live, state);
        }
    }

    /// Takes the completions of the device that are there.
    fn take_completions(&self, live: &Live, state: &mut State) {
        let State {
            rdm, completions, ..
        } = state;
        if completions.is_empty() {
            completions.resize(32, Completion::default());
        }
        loop {
            let mut inbox = rdm.inbox(&live.host);
            let polled = live.cq.poll_with(completions, &mut inbox);
            inbox.finish();
            let Ok(count) = polled else {
                break;
            };
            for completion in &completions[..count] {
                if completion.opcode.is_recv() {
                    let index = completion.id as u32;
                    // SAFETY: the receive is complete, and the buffer is posted again below.
                    let bytes = unsafe { live.buffers.read(index, completion.bytes as usize) };
                    rdm.receive_completed(&live.host, completion, bytes);
                    live.post_buffer(index);
                } else {
                    rdm.request_completed(&live.host, completion);
                }
            }
            if count < completions.len() {
                break;
            }
        }
    }

    /// Looks for connections whose peer went without a word: its queue pair is in the error state then.
    #[cold]
    pub(super) fn look_after(&self, live: &Live, state: &mut State) {
        let over = state.rdm.broken(&live.host);
        if over.is_empty() {
            return;
        }
        // An answer among the last messages of a peer ends an operation that would fail here.
        self.take_completions(live, state);
        for connection in over {
            state.rdm.lose(&live.host, connection);
        }
    }

    /// Looks at all connections now, whether their peers have gone.
    #[cold]
    pub(super) fn look_for_lost(&self, live: &Live) {
        let mut state = live.state.lock();
        self.look_after(live, &mut state);
        state.rdm.connections.hurry_teardown();
        self.advance(live, &mut state);
    }

    /// The program has read entries of a queue that was full: peers get what they wait for, even if the program
    /// does not look for more.
    #[cold]
    pub(crate) fn give_answers(&self) {
        let Some(live) = self.live.get() else { return };
        live.state.lock().rdm.send_owed(&live.host);
    }

    /// Waits until what was posted has arrived, for a short while: before an endpoint goes.
    pub(super) fn linger(&self, live: &Live) {
        let until = time::now() + LINGER;
        loop {
            let mut state = live.state.lock();
            self.advance(live, &mut state);
            if !state.rdm.is_busy() || time::now() >= until {
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }
}

impl Live {
    /// Gives a buffer to the device.
    pub(super) fn post_buffer(&self, index: u32) {
        let sge = Sge {
            addr: self.buffers.address(index),
            len: BUFFER_LEN as u32,
            key: self.host.pd.everything(),
        };
        let request = RecvRequest {
            id: u64::from(index),
            sges: &[sge],
        };
        if let Err(error) = self.srq.post_recv(&request) {
            tracing::warn!(%error, "a buffer for messages is lost");
        }
    }
}

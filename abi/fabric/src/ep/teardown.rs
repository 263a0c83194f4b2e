//! Connections that are over. A connection that failed, or whose peer has gone, is taken apart when nothing
//! refers to it any more: no request, no operation, no message that waits for a receive.

use super::*;
use rkey_device::Qp;
use rkey_device::engine::{QpAttributes, QpState};
use rkey_rdm::connection::{Event, Teardown};
use std::time::Instant;

impl Endpoint {
    /// Looks at all connections now, whether their peers have gone.
    #[cold]
    pub(super) fn look_for_lost(&self, live: &Live) {
        let mut state = live.state.lock();
        self.look_after(live, &mut state);
        state.connections.hurry_teardown();
        self.advance(live, &mut state);
    }

    /// Takes connections apart that are over. The completion queue has just been found empty.
    #[cold]
    pub(super) fn tear_down(&self, state: &mut State) {
        if !state.connections.is_teardown_due(Instant::now()) {
            return;
        }
        for index in 0..state.connections.places() {
            if state.connections[index].teardown(false) == Teardown::Wait {
                continue;
            }
            let mut draining = state.draining.iter();
            let referred = !state.operations_of(index).is_empty()
                || draining.any(|operation| operation.connection == index);
            let it = &state.connections[index];
            match (it.teardown(referred), &it.qp) {
                (Teardown::Wait, _) => {}
                (Teardown::End, qp) => {
                    if let Some(qp) = qp {
                        let _ = qp.modify(&QpAttributes::to(QpState::Error));
                    }
                    state.connections.apply(index, Event::Ended);
                }
                (Teardown::Release, Some(qp)) if !qp.is_quiet() => {}
                (Teardown::Release, qp) => {
                    if let Some(qpn) = qp.as_ref().map(Qp::qpn) {
                        drop(state.connections.take_qp(index, qpn));
                    }
                    if let Some(address) = state.connections.release(index) {
                        state.peers.forget(address);
                    }
                }
            }
        }
    }
}

//! Operations that are over, with memory that a peer may still touch: the program is told of their end when the memory
//! is its own again.

use super::operation::{Hold, Operation};
use super::*;
use rkey_device::Qp;
use std::time::Instant;

impl Endpoint {
    /// Whether no peer can touch the memory of an operation that is over. Never waits.
    #[inline]
    fn is_free(&self, operation: &mut Operation, qp: Option<&Qp>) -> bool {
        if operation.error.is_some() && !qp.is_none_or(Qp::is_quiet) {
            return false;
        }
        if let Hold::Exposed(held) = &operation.hold {
            match self.domain.device.try_close_region(held.region) {
                Ok(false) => return false,
                Ok(true) => {}
                Err(error) => tracing::debug!(%error, "closing the region of a message"),
            }
            self.forget_exposed(held);
            operation.hold = Hold::Nothing;
        }
        true
    }

    /// Ends an operation that is over, as soon as its memory is the program's alone.
    #[inline]
    pub(super) fn end(&self, live: &Live, state: &mut State, mut operation: Operation) {
        let qp = state.connections[operation.connection].qp.as_ref();
        if self.is_free(&mut operation, qp) {
            return self.finish(live, state, operation);
        }
        let qp = qp.cloned();
        state.draining.push(operation, qp, Instant::now());
    }

    /// Ends those whose memory has been let go.
    #[cold]
    pub(super) fn drain(&self, live: &Live, state: &mut State) {
        let now = Instant::now();
        for mut held in state.draining.look(now) {
            if self.is_free(&mut held.operation, held.qp.as_ref()) {
                self.finish(live, state, held.operation);
                continue;
            }
            if let Some(qp) = held.cut_off(now) {
                qp.cut_off();
            }
            state.draining.keep(held);
        }
    }
}

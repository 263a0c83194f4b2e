//! Operations that are over, but name memory that a peer may still touch: a peer that was stopped in the
//! middle of reaching for it, when the time of the operation was over. The program is told of their end
//! when its memory is its own again. A peer that takes too long loses its link.

use super::operation::{Hold, Operation};
use super::*;
use rkey_device::Qp;
use std::time::{Duration, Instant};

/// So long a peer may keep memory of an operation that is over.
pub(super) const STUCK: Duration = Duration::from_secs(1);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// The operations.
#[derive(Default)]
pub(super) struct Condemned {
    list: Vec<One>,
    look: Option<Instant>,
}

struct One {
    operation: Operation,
    /// The queue pair that it was posted to.
    qp: Option<Qp>,
    since: Instant,
    cut: bool,
}

impl Condemned {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether any of them uses this connection.
    pub(super) fn has(&self, connection: usize) -> bool {
        let mut all = self.list.iter();
        all.any(|one| one.operation.connection == connection)
    }

    /// All of them, to be taken apart with their endpoint.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Operation> {
        self.list.drain(..).map(|one| one.operation)
    }
}

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
        let one = One {
            operation,
            qp: qp.cloned(),
            since: Instant::now(),
            cut: false,
        };
        state.condemned.list.push(one);
    }

    /// Ends those whose memory has been let go.
    #[cold]
    pub(super) fn look_at_condemned(&self, live: &Live, state: &mut State) {
        let now = Instant::now();
        if state.condemned.look.is_some_and(|at| now < at) {
            return;
        }
        state.condemned.look = Some(now + PAUSE);
        for mut one in std::mem::take(&mut state.condemned.list) {
            if self.is_free(&mut one.operation, one.qp.as_ref()) {
                self.finish(live, state, one.operation);
                continue;
            }
            if let (Some(qp), false) = (&one.qp, one.cut)
                && now.duration_since(one.since) > STUCK
            {
                qp.cut_off();
                one.cut = true;
            }
            state.condemned.list.push(one);
        }
    }
}

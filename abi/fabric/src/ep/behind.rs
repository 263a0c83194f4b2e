//! Answers to peers that found no room on their connection. They are posted when there is room, also while the program
//! looks at nothing: it may have read all that it waits for, and the peers have not heard of it.

use super::*;

impl Endpoint {
    /// Sees to it that what waits on connections is posted.
    #[cold]
    pub(super) fn see_to_waiting(&self, state: &mut State) {
        let Some(live) = self.live.get() else { return };
        if std::mem::replace(&mut state.seen_to, true) {
            return;
        }
        let this = live.this.clone();
        let look = move || this.upgrade().is_some_and(|ep| ep.look_at_waiting());
        if let Err(error) = self.domain.fabric.cm.look_until(Box::new(look)) {
            // It is left to the program.
            tracing::debug!("answers wait until the program looks: {error:?}");
            state.seen_to = false;
        }
    }

    /// Posts what there is room for now; whether something still waits.
    fn look_at_waiting(&self) -> bool {
        let Some(live) = self.live.get() else {
            return false;
        };
        // Whoever holds the lock may leave something behind.
        let Some(mut state) = live.state.try_lock() else {
            return true;
        };
        // Closing does that by itself.
        if !self.closing.load(Ordering::Acquire) {
            self.advance(live, &mut state);
            let mut connections = state.connections.iter();
            state.seen_to = connections.any(|it| !it.waiting.is_empty());
        }
        state.seen_to && !self.closing.load(Ordering::Acquire)
    }
}

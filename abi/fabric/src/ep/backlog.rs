//! Answers to peers that found no room on their connection. They are posted when there is room, also while the program
//! looks at nothing: it may have read all that it waits for, and the peers have not heard of it.

use super::*;

impl Endpoint {
    /// Sees to it that what waits on connections is posted.
    #[cold]
    pub(super) fn watch_backlog(&self, state: &mut State) {
        let Some(live) = self.live.get() else { return };
        if std::mem::replace(&mut state.backlog_watched, true) {
            return;
        }
        let this = live.this.clone();
        let look = move || this.upgrade().is_some_and(|ep| ep.post_backlog());
        if let Err(error) = self.domain.fabric.cm.look_until(Box::new(look)) {
            // It is left to the program.
            tracing::debug!("answers wait until the program looks: {error:?}");
            state.backlog_watched = false;
        }
    }

    /// Posts what there is room for now; whether something still waits.
    fn post_backlog(&self) -> bool {
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
            let waits = state.connections.iter().any(|it| !it.backlog.is_empty());
            state.backlog_watched = waits;
        }
        state.backlog_watched && !self.closing.load(Ordering::Acquire)
    }
}

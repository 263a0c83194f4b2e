//! Answers to peers that found no room on their connection. They are posted when there is room, also while the program
//! looks at nothing: it may have read all that it waits for, and the peers have not heard of it.

use super::host::EpHost;
use super::*;

/// Sees to it that what waits on connections is posted; whether it is.
#[cold]
pub(super) fn watch(host: &EpHost) -> bool {
    let this = host.this.clone();
    let look = move || this.upgrade().is_some_and(|ep| ep.post_backlog());
    let watched = host.domain.fabric.cm.look_until(Box::new(look));
    // Otherwise it is left to the program.
    watched
        .inspect_err(|error| tracing::debug!("answers wait until the program looks: {error:?}"))
        .is_ok()
}

impl Endpoint {
    /// Posts what there is room for now; whether something still waits.
    fn post_backlog(&self) -> bool {
        let Some(live) = self.live.get() else {
            return false;
        };
        // The thread that holds the lock may leave something behind.
        let Some(mut state) = live.state.try_lock() else {
            return true;
        };
        // Closing does that by itself.
        if self.closing.load(Ordering::Acquire) {
            return false;
        }
        self.advance(live, &mut state);
        state.rdm.still_waits()
    }
}

//! Answers to peers that found no room on their connection. They are posted when there is room, also while the program
//! looks at nothing: it may have read all that it waits for, and the peers have not heard of it.

use super::host::EpHost;

/// Sees to it that what waits on connections is posted; whether it is.
#[cold]
pub(super) fn watch(host: &EpHost) -> bool {
    let this = host.this.clone();
    let look = move || {
        let ep = this.upgrade();
        let live = ep.as_ref().and_then(|ep| ep.live.get());
        live.is_some_and(|live| live.post_backlog())
    };
    let watched = host.domain.fabric.listeners.look_until(Box::new(look));
    // Otherwise it is left to the program.
    watched
        .inspect_err(|error| tracing::debug!("answers wait until the program looks: {error:?}"))
        .is_ok()
}

//! Answers for which a peer's connection had no room. A thread posts them when there is room, even if the program does
//! not poll: the program may have read everything that it expects, while peers still wait for answers.

use super::host::EpHost;

/// Makes a thread post the requests that wait for room on connections. Returns false if there is no thread to do so.
#[cold]
pub(super) fn watch(host: &EpHost) -> bool {
    let this = host.this.clone();
    let look = move || {
        let ep = this.upgrade();
        let live = ep.as_ref().and_then(|ep| ep.live.get());
        live.is_some_and(|live| live.post_backlog())
    };
    let watched = host.domain.fabric.listeners.look_until(Box::new(look));
    // If there is no such thread, the requests wait until the program makes progress.
    watched
        .inspect_err(|error| {
            tracing::debug!("cannot post pending answers in the background ({error}): the answers wait until the program makes progress")
        })
        .is_ok()
}

//! Peers' errors in the log, rate-limited: any peer can cause any number of them.

use rkey_device::base::Limit;
use rkey_device::denials::limited;
use rkey_rdm::endpoint::Note;
use std::fmt::Arguments;

/// Logs a warning about a peer, unless too many were logged just before.
pub fn complain(what: Arguments<'_>) {
    static LIMIT: Limit = Limit::new();
    limited(&LIMIT, "warnings about peers", || tracing::warn!("{what}"));
}

/// Logs what the state machine of an endpoint reports about its connections.
pub fn log(note: Note<'_>) {
    match note {
        Note::Violation { peer, why } => {
            complain(format_args!("closing the connection to {peer}: {why}"));
        }
        Note::Lost { peer, open } => {
            tracing::info!(%peer, open, "a connection ended; failing its operations in flight");
        }
        Note::MemberGone(_) | Note::OtherCall(_) | Note::GroupBroken { .. } => {}
    }
}

//! Peers' errors in the log, rate-limited: any peer can cause any number of them.

use rkey_device::base::Limit;
use rkey_device::denials::limited;
use std::fmt::Arguments;

/// Logs it at level `warn`.
pub fn complain(what: Arguments<'_>) {
    static LIMIT: Limit = Limit::new();
    limited(&LIMIT, "complaints about peers", || {
        tracing::warn!("{what}")
    });
}

//! What peers do wrong, in the log: a stranger can cause any number of such lines, so not all are written.

use rkey_device::base::Limit;
use rkey_device::denials::limited;
use std::fmt::Arguments;

/// Tells it at level `warn`.
pub(crate) fn complain(what: Arguments<'_>) {
    static LIMIT: Limit = Limit::new();
    limited(&LIMIT, "complaints about peers", || {
        tracing::warn!("{what}")
    });
}

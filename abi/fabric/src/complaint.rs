//! What peers do wrong, in the log: a stranger can cause any number of such lines, so not all are written.

use rkey_device::base::limit::Limit;
use std::fmt::Arguments;

/// Tells it at level `warn`.
pub(crate) fn complain(what: Arguments<'_>) {
    static LIMIT: Limit = Limit::new();
    if let Some(left_out) = LIMIT.take() {
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "complaints about peers were not logged because there were too many"
            );
        }
        tracing::warn!("{what}");
    }
}

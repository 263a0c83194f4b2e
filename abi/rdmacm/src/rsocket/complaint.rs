//! Log lines that a peer can cause any number of times: they are rate-limited.

use rkey_device::base::Limit;
use rkey_device::denials::limited;
use std::fmt::Arguments;

static WRONG: Limit = Limit::new();
static ENDED: Limit = Limit::new();

/// Logs at level `warn` what a peer did wrong, unless too many such lines were logged recently.
pub fn complain(what: Arguments<'_>) {
    limited(&WRONG, "warnings about peers of rsockets", || {
        tracing::warn!("{what}");
    });
}

/// Logs at level `info` why a connection, or an attempt to connect, failed, unless too many such lines were logged recently.
pub fn mention(what: Arguments<'_>) {
    if tracing::enabled!(tracing::Level::INFO) {
        limited(&ENDED, "messages about failed rsocket connections", || {
            tracing::info!("{what}");
        });
    }
}

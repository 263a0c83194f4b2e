//! Log lines that a peer can cause any number of times: they are rate-limited.

use rkey_device::base::Limit;
use rkey_device::denials::limited;
use std::fmt::Arguments;

static WRONG: Limit = Limit::new();
static ENDED: Limit = Limit::new();

/// Logs at level `warn` what a peer did wrong, unless too many such lines were logged just before.
pub fn complain(what: Arguments<'_>) {
    limited(&WRONG, "complaints about peers of rsockets", || {
        tracing::warn!("{what}");
    });
}

/// Logs at level `info` how an attempt or a connection ended, unless too many such lines were logged just before.
pub fn mention(what: Arguments<'_>) {
    if tracing::enabled!(tracing::Level::INFO) {
        limited(&ENDED, "ends of rsockets", || tracing::info!("{what}"));
    }
}

//! Where the messages of a front end go: to standard error, from the level that `RKEY_LOG` says.
//!
//! The default is `warn`: refused accesses and uses against the rules in force are explained, everything else
//! is silent. `RKEY_LOG=off` silences all, `RKEY_LOG=info` also tells why calls were refused, `debug` and
//! `trace` tell more.

use crate::settings::LOG;
use std::io::IsTerminal;
use std::sync::Once;
use tracing_subscriber::EnvFilter;

static START: Once = Once::new();

/// Starts logging, once, unless the program has a subscriber of its own in this library.
pub fn start() {
    START.call_once(|| {
        let filter =
            EnvFilter::try_from_env(LOG.name).unwrap_or_else(|_| EnvFilter::new(LOG.default));
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .finish();
        // Fails only when there is one already, and then that one is meant.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

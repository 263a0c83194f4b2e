//! Logging to standard error, at the level that `RKEY_LOG` sets.
//!
//! The default, `warn`, explains refused accesses and violations of the rules in force. `off` silences everything, `info` also
//! explains failed calls, and `debug` and `trace` add details.

use crate::settings::LOG;
use std::io::IsTerminal;
use std::sync::Once;
use tracing_subscriber::EnvFilter;

static START: Once = Once::new();

/// The filter for a value of `RKEY_LOG`: a level, or directives of the crate `tracing-subscriber`. That crate interprets any
/// single word as a target. This function accepts only our own targets, so it refuses a misspelt level.
#[must_use]
pub fn filter(value: &str) -> Option<EnvFilter> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let known = |word: &str| {
        word.contains(['=', '[', '{', ']', '}'])
            || word.starts_with("rkey")
            || word.starts_with("ibverbs")
            || word.starts_with("rdmacm")
            || word.starts_with("daplrkey")
            || LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level))
            || matches!(word, "0" | "1" | "2" | "3" | "4" | "5")
    };
    let mut words = value.split(',').map(str::trim).filter(|it| !it.is_empty());
    if !words.clone().all(known) || words.next().is_none() {
        return None;
    }
    value.parse().ok()
}

/// Starts logging, once, unless a subscriber is already installed in this library.
pub fn start() {
    START.call_once(|| {
        let value = LOG.value();
        let wanted = value.as_ref().ok().and_then(Option::as_deref);
        let filter = wanted
            .and_then(filter)
            .unwrap_or_else(|| EnvFilter::new(LOG.default));
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .finish();
        // Fails only if a subscriber is already installed, which is then kept.
        let _ = tracing::subscriber::set_global_default(subscriber);
        if let Err(error) = value {
            tracing::warn!("{error}; using {}", LOG.default);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_levels_and_directives_are_accepted_as_filters() {
        for good in [
            "off",
            "WARN",
            "rkey_device=trace",
            "warn,rkey_fi=debug",
            "rkey_core",
            "info,rkey_fi[call{len=3}]=trace",
            "warn,,ibverbs",
            "info,",
            "3",
        ] {
            assert!(filter(good).is_some(), "{good}");
        }
        for bad in [
            "banana",
            "6",
            "-1",
            "!!",
            "",
            ",",
            "warn,loud",
            "rkey_fi=banana",
        ] {
            assert!(filter(bad).is_none(), "{bad}");
        }
    }
}

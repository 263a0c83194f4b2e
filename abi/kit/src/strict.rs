//! Calls that a manual page forbids and other implementations accept. By default, they behave as in other implementations, with a
//! warning; in strict mode, they behave as the page describes.

use crate::settings::Setting;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// One kind of call that a manual page forbids and other implementations accept. Each kind has one static, so
/// a process warns about it only once.
#[derive(Debug)]
pub struct Leniency {
    what: &'static str,
    page: &'static str,
    elsewhere: &'static str,
    told: AtomicBool,
}

impl Leniency {
    /// `what` the program did, what the `page` says about it, and what happens `elsewhere`: each a clause of the
    /// warning, without a period.
    #[must_use]
    pub const fn new(what: &'static str, page: &'static str, elsewhere: &'static str) -> Self {
        Self {
            what,
            page,
            elsewhere,
            told: AtomicBool::new(false),
        }
    }

    /// Whether the call may succeed: always, except in strict mode. The first call logs a warning.
    #[cold]
    pub fn allows(&self, strict: bool) -> bool {
        if !self.told.swap(true, Ordering::Relaxed) {
            let verdict = if strict { "refused" } else { "allowed" };
            tracing::warn!(
                "{} ({verdict}): {}; {}",
                self.what,
                self.page,
                self.elsewhere
            );
        }
        !strict
    }
}

/// Whether strict mode is on, determined at first use.
#[derive(Debug)]
pub struct Strictness {
    setting: Setting,
    on: OnceLock<bool>,
}

impl Strictness {
    /// Strict mode is on if this setting is `1`. An invalid value counts as unset here; [`Setting::value`]
    /// reports it.
    #[must_use]
    pub const fn new(setting: Setting) -> Self {
        Self {
            setting,
            on: OnceLock::new(),
        }
    }

    /// Whether strict mode is on.
    pub fn is_on(&self) -> bool {
        *self.on.get_or_init(|| {
            let value = self.setting.value();
            value.is_ok_and(|value| value.as_deref() == Some("1"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io::Write;
    use std::sync::Arc;

    /// A log that the test can read.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_leniency_warns_once_and_strict_mode_refuses_each_time() {
        for strict in [false, true] {
            let rule = Leniency::new("x is done", "page(3) forbids x", "others give -1");
            let log = Log::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                assert_eq!([rule.allows(strict), rule.allows(strict)], [!strict; 2]);
            });
            let log = log.0.lock();
            let text = String::from_utf8_lossy(&log);
            assert_eq!(text.lines().count(), 1, "{text}");
            let verdict = if strict { "refused" } else { "allowed" };
            let told = format!(
                "WARN rkey_kit::strict: x is done ({verdict}): page(3) forbids x; others give -1"
            );
            assert!(text.contains(&told), "{text}");
        }
    }
}

//! Random schedules and their seeds.
//!
//! `RKEY_TEST_ROCE_SCHEDULES` sets how many schedules a test runs (1,500 if unset), and `RKEY_TEST_SEED` the seed of the
//! first. A failing test prints the variables that repeat its schedule alone.

use std::ops::Range;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// The number of schedules to run.
pub(crate) fn count() -> u64 {
    if cfg!(miri) {
        return 3;
    }
    setting("RKEY_TEST_ROCE_SCHEDULES").unwrap_or(1500)
}

/// The seeds of a test.
pub(crate) fn seeds() -> Range<u64> {
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let random = clock.map_or(1, |time| time.as_nanos() as u64 >> 1);
    let first = setting("RKEY_TEST_SEED").unwrap_or(random);
    first..first + count()
}

/// Prints the seed if its schedule fails.
pub(crate) struct Named(pub(crate) u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("RKEY_TEST_SEED={} RKEY_TEST_ROCE_SCHEDULES=1", self.0);
        }
    }
}

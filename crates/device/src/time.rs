//! The clock of the device and of its front ends. The layers below take the time as an argument.

use std::time::{Duration, Instant, SystemTime};

/// The current time.
#[inline]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// The time that has passed since a point in time.
#[inline]
#[must_use]
pub fn since(then: Instant) -> Duration {
    then.elapsed()
}

/// The time since the beginning of 1970 (UTC), by the system's clock.
#[must_use]
pub fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Makes the calling thread sleep for `time`.
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

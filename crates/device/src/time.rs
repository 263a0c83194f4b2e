//! The clock of the device and of its front ends. The layers below take the time as an argument.

use std::time::{Duration, Instant};

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

/// Makes the calling thread sleep for `time`.
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

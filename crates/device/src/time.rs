//! The clock of the device and of its front ends. The layers below take the time as an argument.

use std::time::{Duration, Instant};

/// The time now.
#[inline]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// How long ago a point in time was.
#[inline]
#[must_use]
pub fn since(then: Instant) -> Duration {
    then.elapsed()
}

/// Makes the calling thread sleep for `time`.
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

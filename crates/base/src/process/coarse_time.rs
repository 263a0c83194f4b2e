//! A clock that costs a few nanoseconds and that all processes of the host share.

use std::time::Duration;

/// The time since the system started, without the time in which it was suspended. It advances in steps of 1 to 10 ms
/// (`CLOCK_MONOTONIC_COARSE`). Processes in other time namespaces may see another time.
#[inline]
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "two processes compare times of this clock"
)]
pub fn coarse_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

//! The clocks of completion timestamps.

#![allow(unsafe_code)]
// UNSAFETY: a call of the C library.

/// The clock of completion timestamps: nanoseconds of the raw monotonic clock. Only queues created with
/// timestamps stamp their completions.
#[must_use]
pub fn timestamp() -> u64 {
    clock(libc::CLOCK_MONOTONIC_RAW)
}

/// The time of a clock in nanoseconds.
#[expect(
    clippy::disallowed_methods,
    reason = "verbs defines the clocks of timestamps"
)]
pub(crate) fn clock(which: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(which, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

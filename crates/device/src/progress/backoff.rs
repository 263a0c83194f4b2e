//! Growing pauses between two checks of another process or thread.

use std::time::Duration;

const FIRST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// Pauses that grow: 20 us at first, then twice as long each time, at most 1 ms.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self(FIRST)
    }

    /// Sleeps for the current pause, and lengthens the next one.
    pub(crate) fn sleep(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(LONGEST);
    }
}

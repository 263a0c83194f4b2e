//! Whether a thread that waits polls first.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How many waits in a row must have been long before a thread no longer polls first.
const LONG_WAITS: u32 = 4;

/// Whether it pays to poll before sleeping: expects that a wait takes as long as the last ones did. A thread that polls for nothing takes
/// the processor from those that it waits for.
///
/// After long waits, one in eight waits polls nevertheless: if two programs wait for each other, both waits are short only if both programs
/// poll. Which ones do is random, so that those of the two coincide at times.
#[derive(Debug, Default)]
pub struct SpinForecast {
    /// How many waits in a row were longer than a thread polls.
    long: AtomicU32,
    random: AtomicU32,
}

impl SpinForecast {
    /// Whether to poll before sleeping. Call it once for each wait.
    #[must_use]
    pub fn pays(&self) -> bool {
        if self.long.load(Ordering::Relaxed) < LONG_WAITS {
            return true;
        }
        // A linear congruential generator ("Numerical Recipes"), whose highest bits are the most random.
        let random = self.random.load(Ordering::Relaxed);
        let random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.random.store(random, Ordering::Relaxed);
        random >> 29 == 0
    }

    /// Records how long a wait has taken. Threads poll for `spin` at most.
    pub fn waited(&self, time: Duration, spin: Duration) {
        let long = match time > spin {
            true => self.long.load(Ordering::Relaxed).saturating_add(1),
            false => 0,
        };
        self.long.store(long, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stops_polling_after_several_long_waits_until_a_short_one() {
        let forecast = SpinForecast::default();
        let spin = Duration::from_micros(50);
        for _ in 0..LONG_WAITS {
            assert!(forecast.pays());
            forecast.waited(2 * spin, spin);
        }
        let polls = (0..800).filter(|_| forecast.pays()).count();
        assert!((50..150).contains(&polls), "{polls} of 800");
        forecast.waited(spin, spin);
        assert!((0..100).all(|_| forecast.pays()));
    }
}

//! Helpers of the process tests: peers that run this test binary in another role, a device with memory, random numbers
//! from a printed seed, and records of a process's resources.
// UNSAFETY: registers memory, maps it, and sends signals to child processes.
#![allow(unsafe_code)]
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod garbage;
pub mod memory;
pub mod process;
pub mod side;
pub mod traffic;

pub use rkey_conformance::mutate::mix;

use rkey_conformance::mutate;
use std::time::{Duration, Instant};

/// The longest time that any step may take on a busy machine; only a hang takes longer.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits until a condition holds. `what` says in the panic message what the test waited for.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// A number from the environment, or a default.
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
        Err(_) => default,
    }
}

/// Random numbers. Prints the seed, so that a failure can be reproduced.
#[derive(Clone)]
pub struct Random(mutate::Random);

impl Random {
    /// From `RKEY_TEST_SEED`, or from the clock.
    pub fn seeded(test: &str) -> Self {
        let clock = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let seed = setting("RKEY_TEST_SEED", clock.as_nanos() as u64);
        eprintln!("{test}: RKEY_TEST_SEED={seed}");
        Self::from(seed)
    }

    pub fn from(seed: u64) -> Self {
        Self(mutate::Random::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// A word of the pattern of the side with this seed.
pub fn pattern(seed: u64, word: usize) -> u64 {
    mix(seed ^ (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

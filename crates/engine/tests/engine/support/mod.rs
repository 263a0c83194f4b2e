//! A world in one thread: nodes with engines and memory, and wires between them. The test decides each step of the
//! wires.

mod attempt;
mod node;
mod pair;
mod wire;

use rkey_core::{Key, LKey};
use rkey_engine::*;

pub(crate) use attempt::{attempt, denied, works};
pub(crate) use node::{ALL, Node, Qp, limits};
pub(crate) use pair::{Pair, steps, transfer};
pub(crate) use wire::{CAPS, Load, Passing};

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

pub(crate) fn send_work() -> Work {
    Work::Send {
        imm: None,
        invalidate: None,
    }
}

pub(crate) fn statuses(all: &[Completion]) -> Vec<(u64, Status)> {
    all.iter().map(|c| (c.id, c.status)).collect()
}

pub(crate) const NO_KEY: LKey = LKey(0);
pub(crate) const NO_RKEY: Key = Key(0);

/// A millisecond, in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

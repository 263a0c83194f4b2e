//! Garbage in the rings, as a process with memory corruption writes it to its own half of its links.
// UNSAFETY: writes to mappings that belong to the library.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::Random;

/// Our own mapped halves: start and length of the writable part.
fn own_halves() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:rkey-link") && line.contains("rw-s"))
        .map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split_once(' ').unwrap().0;
            let start = usize::from_str_radix(start, 16).unwrap();
            (start, usize::from_str_radix(end, 16).unwrap() - start)
        })
        .collect()
}

/// Writes random bytes to random parts of our halves: words, slots, payload.
pub fn scribble(random: &mut Random, times: u64) {
    for (start, len) in own_halves() {
        for _ in 0..times {
            let at = match random.below(8) {
                0 => 0,
                1 => 256,
                2 => 384,
                3 => 512,
                4 => 640,
                // The slots, mostly at their beginnings.
                5 => 20480 + random.below(64) as usize * 256,
                6 => 2048 + random.below(2304) as usize * 8,
                _ => random.below(len as u64 - 8) as usize & !7,
            };
            let value = match random.below(4) {
                0 => random.next(),
                1 => random.below(1 << 10),
                2 => random.below(64) << 32 | random.below(64),
                _ => random.next() & 0x0000_00ff_0000_00ff,
            };
            // SAFETY: an aligned word inside our own mapping, which is writable while its link is open; the library
            // also accesses it through atomics.
            unsafe {
                AtomicU64::from_ptr((start + at) as *mut u64).store(value, Ordering::Relaxed);
            }
        }
    }
}

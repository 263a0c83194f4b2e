//! Hostile bytes generated from a seed: noise, and valid samples with a few changes.

/// Pseudo-random numbers; the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits (splitmix64).
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 {
            0
        } else {
            (self.draw() % end as u64) as usize
        }
    }
}

/// Mixes a number into a random-looking one.
#[must_use]
pub fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Boundary values.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x100,
    0xfff,
    0x1000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX - 7,
    u64::MAX,
];

/// One input: noise, or one of `samples` with up to eight changes.
pub fn input(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    if samples.is_empty() || random.below(8) == 0 {
        let len = random.below(600);
        return (0..len).map(|_| random.draw() as u8).collect();
    }
    let mut bytes = samples[random.below(samples.len())].clone();
    if random.below(4) == 0 {
        // The beginning of one sample and the end of another.
        bytes.truncate(random.below(bytes.len() + 1));
        let other = &samples[random.below(samples.len())];
        bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
    }
    for _ in 0..random.below(8) {
        change(random, &mut bytes);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len());
    match random.below(6) {
        _ if bytes.is_empty() => bytes.push(random.draw() as u8),
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.draw() as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.draw() as u8),
        // A boundary value, aligned like a field.
        4 => {
            let width = [1, 2, 4, 8][random.below(4)];
            let value = EDGES[random.below(EDGES.len())].to_le_bytes();
            let start = at / width * width;
            let end = (start + width).min(bytes.len());
            bytes[start..end].copy_from_slice(&value[..end - start]);
        }
        _ => {
            let part = bytes[at..].to_vec();
            bytes.extend(part);
            bytes.truncate(4096);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let samples = [vec![1, 2, 3, 4], Vec::new()];
        let run = || {
            let mut random = Random::new(7);
            (0..200)
                .map(|_| input(&mut random, &samples))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
        assert!(run().iter().any(|bytes| bytes.len() > 4));
    }
}

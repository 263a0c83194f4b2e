//! The layout of a 32-bit key, and the order in which a slot's keys are used.
//!
//! ```text
//!  31                                        8 7        0
//! +-------------------------------------------+----------+
//! | permuted( turn:3 | local:1 | slot:20 )    |   low    |
//! +-------------------------------------------+----------+
//! ```
//!
//! A key names a slot of the table and a *generation* of it, so that a key of something that is gone is refused even
//! when the slot was given out again. The upper 24 bits pass through a permutation that secrets of the device choose,
//! and the low 8 bits through a secret table: neither keys nor their order can be guessed from other keys.
//!
//! * **Regions and device-chosen window keys** have 2,048 generations a slot: 3 bits in the turn, 8 in the low byte.
//!   The turn counts fastest, so that the keys of one slot share no bits. Local and remote keys differ in the local
//!   bit: no local key equals any remote key.
//! * **Type 2 windows** have slots of their own, because the consumer chooses their low byte: with 16 generations in
//!   the turn and the local bit, a new window shares no key with an older one whatever bytes either of them chose.
//! * Keys below 256 are never given out; programs use 0 to say "no key".

use crate::{Key, Limits, LocalKey};

/// Random numbers that make the keys of a device unguessable. Two devices need different ones.
#[derive(Clone)]
pub struct Secrets(pub [u64; 4]);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secrets(..)")
    }
}

/// Generations of a slot of regions and device-chosen window keys.
pub(crate) const GENERATIONS: u32 = 1 << 11;
/// Generations of a slot of a type 2 window.
pub(crate) const TYPE2_GENERATIONS: u32 = 1 << 4;

const SLOT_BITS: u32 = 20;
const WIDE: u32 = (1 << 24) - 1;
const LOCAL: u32 = 1 << SLOT_BITS;
/// Slot numbers from here on are type 2 windows.
const TYPE2: u32 = Limits::KEY_SLOTS;
/// The one name that comes out as 0: a type 2 slot that does not exist.
const NOBODY: u32 = WIDE;

/// What a key names.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// A region, or a window whose key the device chose, by a remote key.
    Remote { index: u32, generation: u32 },
    /// A region, by a local key.
    Local { index: u32, generation: u32 },
    /// A type 2 window; the low byte of the key is the consumer's.
    Type2 { index: u32, generation: u32 },
}

/// The permutation of one device.
pub(crate) struct KeySpace {
    masks: [u32; 2],
    factors: [u32; 3],
    inverses: [u32; 3],
    spread: u32,
    low: [u8; 256],
    low_inverse: [u8; 256],
}

impl KeySpace {
    pub(crate) fn new(secrets: &Secrets) -> Self {
        let mut random = Random(secrets.0);
        let factors = [(); 3].map(|()| random.next() as u32 & WIDE | 1);
        let mut low = [0u8; 256];
        for (value, place) in (0..=u8::MAX).zip(low.iter_mut()) {
            *place = value;
        }
        for last in (1..256).rev() {
            low.swap(last, (random.next() % (last as u64 + 1)) as usize);
        }
        let mut low_inverse = [0u8; 256];
        for (value, place) in (0..=u8::MAX).zip(low) {
            low_inverse[usize::from(place)] = value;
        }
        let mut space = Self {
            masks: [random.next() as u32 & WIDE, 0],
            factors,
            inverses: factors.map(odd_inverse),
            spread: random.next() as u32 | 1,
            low,
            low_inverse,
        };
        space.masks[1] = space.permute(NOBODY);
        space
    }

    /// The remote key of a generation of a slot.
    #[inline]
    pub(crate) fn remote(&self, index: u32, generation: u32) -> Key {
        Key(self.seal(index, generation))
    }

    /// The local key of a generation of a slot.
    #[inline]
    pub(crate) fn local(&self, index: u32, generation: u32) -> LocalKey {
        LocalKey(self.seal(index | LOCAL, generation))
    }

    /// The key of a type 2 window, with zeros where the consumer's bits go.
    pub(crate) fn type2(&self, index: u32, generation: u32) -> Key {
        Key(self.permute(generation << SLOT_BITS | (TYPE2 + index)) << 8)
    }

    /// What a key names. Every number names something; whether that exists is another question.
    #[inline]
    pub(crate) fn open(&self, key: u32) -> Named {
        let wide = key >> 8;
        let name = self.unpermute(wide);
        let index = name & (LOCAL - 1);
        if index >= TYPE2 {
            return Named::Type2 {
                index: index - TYPE2,
                generation: name >> SLOT_BITS,
            };
        }
        let (turn, generation) = (name >> (SLOT_BITS + 1), self.open_low(wide, key as u8));
        let generation = generation << 3 | turn;
        if name & LOCAL == 0 {
            Named::Remote { index, generation }
        } else {
            Named::Local { index, generation }
        }
    }

    #[inline]
    fn seal(&self, name: u32, generation: u32) -> u32 {
        let wide = self.permute((generation & 7) << (SLOT_BITS + 1) | name);
        let [before, after] = self.low_masks(wide);
        let low = self.low[usize::from((generation >> 3) as u8 ^ before)] ^ after;
        wide << 8 | u32::from(low)
    }

    #[inline]
    fn open_low(&self, wide: u32, low: u8) -> u32 {
        let [before, after] = self.low_masks(wide);
        u32::from(self.low_inverse[usize::from(low ^ after)] ^ before)
    }

    #[inline]
    fn low_masks(&self, wide: u32) -> [u8; 2] {
        let mixed = wide.wrapping_mul(self.spread);
        [(mixed >> 24) as u8, (mixed >> 16) as u8]
    }

    #[inline]
    fn permute(&self, name: u32) -> u32 {
        let [first, second, third] = self.factors;
        let mut x = (name ^ self.masks[0]).wrapping_mul(first) & WIDE;
        x = (x ^ x >> 12).wrapping_mul(second) & WIDE;
        x = (x ^ x >> 12).wrapping_mul(third) & WIDE;
        x ^ x >> 12 ^ self.masks[1]
    }

    #[inline]
    fn unpermute(&self, wide: u32) -> u32 {
        let [first, second, third] = self.inverses;
        // `x ^ x >> 12` is its own inverse on 24 bits.
        let mut x = wide ^ self.masks[1];
        x = (x ^ x >> 12).wrapping_mul(third) & WIDE;
        x = (x ^ x >> 12).wrapping_mul(second) & WIDE;
        (x ^ x >> 12).wrapping_mul(first) & WIDE ^ self.masks[0]
    }
}

/// The inverse of an odd number modulo 2^32, by Newton's method: each step doubles the correct bits, and an odd
/// number is its own inverse modulo 8.
fn odd_inverse(odd: u32) -> u32 {
    let mut inverse = odd;
    for _ in 0..4 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    inverse
}

/// xoshiro256++, seeded by the secrets.
pub(crate) struct Random(pub(crate) [u64; 4]);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        // The only state from which nothing random comes is all zeros.
        if *s == [0; 4] {
            s[0] = 0x9e37_79b9_7f4a_7c15;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn space(seed: u64) -> KeySpace {
        KeySpace::new(&Secrets([seed, 2, 3, 4]))
    }

    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn keys_open_to_what_they_were_made_of() {
        let keys = space(1);
        for index in (0..TYPE2).step_by(997).chain([TYPE2 - 1]) {
            for generation in (0..GENERATIONS).step_by(37).chain([GENERATIONS - 1]) {
                let remote = Named::Remote { index, generation };
                assert_eq!(keys.open(keys.remote(index, generation).0), remote);
                let local = Named::Local { index, generation };
                assert_eq!(keys.open(keys.local(index, generation).0), local);
            }
        }
        for index in (0..Limits::TYPE2_SLOTS).step_by(97) {
            for generation in 0..TYPE2_GENERATIONS {
                let key = keys.type2(index, generation);
                for low in [0, 1, 255] {
                    let named = keys.open(key.with_consumer_bits(low).0);
                    assert_eq!(named, Named::Type2 { index, generation });
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn every_number_below_256_names_nobody() {
        for seed in 0..50 {
            let keys = space(seed);
            for key in 0..256 {
                let Named::Type2 { index, .. } = keys.open(key) else {
                    panic!("{key} is a key")
                };
                assert_eq!(index, Limits::TYPE2_SLOTS, "{key}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "16 million steps")]
    fn the_permutation_is_one() {
        let keys = space(7);
        let mut seen = vec![false; 1 << 24];
        for name in 0..=WIDE {
            let wide = keys.permute(name);
            assert!(!std::mem::replace(&mut seen[wide as usize], true));
            assert_eq!(keys.unpermute(wide), name);
        }
    }

    #[test]
    fn a_slot_never_repeats_a_key() {
        let keys = space(3);
        let all: HashSet<u32> = (0..GENERATIONS)
            .flat_map(|generation| [keys.remote(5, generation).0, keys.local(5, generation).0])
            .collect();
        assert_eq!(all.len(), 2 * GENERATIONS as usize);
    }

    /// Successive keys, over slots and over generations of a slot, differ by ever other amounts and in about half of
    /// their bits, as random numbers do.
    #[test]
    fn keys_do_not_follow_a_pattern() {
        let keys = space(9);
        let over_slots: Vec<u32> = (0..1_000).map(|index| keys.remote(index, 0).0).collect();
        let over_generations: Vec<u32> = (0..1_000).map(|turn| keys.remote(42, turn).0).collect();
        for (what, series) in [("slots", over_slots), ("generations", over_generations)] {
            let steps: HashSet<u32> = series
                .windows(2)
                .map(|two| two[1].wrapping_sub(two[0]))
                .collect();
            let distances: HashSet<u32> = series.windows(2).map(|two| two[1] ^ two[0]).collect();
            let flipped: u32 = series
                .windows(2)
                .map(|two| (two[1] ^ two[0]).count_ones())
                .sum();
            let flipped = flipped as f64 / 999.0;
            assert!(steps.len() > 700, "{what}: {} different steps", steps.len());
            assert!(
                distances.len() > 600,
                "{what}: {} distances",
                distances.len()
            );
            assert!(
                (10.0..22.0).contains(&flipped),
                "{what}: {flipped} bits flip"
            );
        }
    }

    #[test]
    fn other_secrets_give_other_keys() {
        let (one, two) = (space(1), space(2));
        let same = (0..1_000)
            .filter(|slot| one.remote(*slot, 0) == two.remote(*slot, 0))
            .count();
        assert!(same < 3);
    }
}

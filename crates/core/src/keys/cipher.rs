//! A keyed permutation of all 32-bit numbers: the order in which keys are issued.
//!
//! The round is that of Speck32 (Beaulieu and others, 2013): additions, rotations and XORs on two 16-bit halves.
//! Speck32/64 has 22 rounds and expands their keys from 64 bits; the best published attacks break 15 rounds and need
//! half of all plaintexts. Here there are 32 rounds, each with its own round key from HMAC-SHA256: 512 bits in total,
//! so there is neither a short key nor a key schedule to attack.
//!
//! [docs/security.md](../../../docs/security.md) compares the alternatives. Three properties matter here: encrypting 64
//! numbers takes as long as encrypting eight one by one, no table is needed, and the result does not depend on the processor's features.

use crate::Secrets;

const ROUNDS: usize = 32;

/// A permutation of the 32-bit numbers.
#[derive(Clone)]
pub(crate) struct Cipher([u16; ROUNDS]);

impl Cipher {
    /// Permutation `epoch` of these secrets.
    pub(crate) fn new(secrets: &Secrets, epoch: u32) -> Self {
        let mut round_keys = [0; ROUNDS];
        for (block, keys) in (0u8..).zip(round_keys.chunks_exact_mut(16)) {
            let bytes = secrets.derive("key permutation", u64::from(epoch) << 8 | u64::from(block));
            for (key, bytes) in keys.iter_mut().zip(bytes.chunks_exact(2)) {
                *key = u16::from_le_bytes([bytes[0], bytes[1]]);
            }
        }
        Self(round_keys)
    }

    /// Encrypts each number.
    #[inline]
    pub(crate) fn encrypt<const N: usize>(&self, numbers: [u32; N]) -> [u32; N] {
        encrypt(&self.0, numbers)
    }

    /// Decrypts each number.
    #[inline]
    pub(crate) fn decrypt<const N: usize>(&self, numbers: [u32; N]) -> [u32; N] {
        decrypt(&self.0, numbers)
    }
}

#[inline(always)]
fn encrypt<const N: usize>(round_keys: &[u16], numbers: [u32; N]) -> [u32; N] {
    // The halves are separate so that the compiler vectorises each step.
    let mut high = numbers.map(|number| (number >> 16) as u16);
    let mut low = numbers.map(|number| number as u16);
    for key in round_keys {
        for (high, low) in high.iter_mut().zip(&mut low) {
            *high = high.rotate_right(7).wrapping_add(*low) ^ key;
            *low = low.rotate_left(2) ^ *high;
        }
    }
    std::array::from_fn(|i| u32::from(high[i]) << 16 | u32::from(low[i]))
}

#[inline(always)]
fn decrypt<const N: usize>(round_keys: &[u16], numbers: [u32; N]) -> [u32; N] {
    let mut high = numbers.map(|number| (number >> 16) as u16);
    let mut low = numbers.map(|number| number as u16);
    for key in round_keys.iter().rev() {
        for (high, low) in high.iter_mut().zip(&mut low) {
            *low = (*low ^ *high).rotate_right(2);
            *high = (*high ^ key).wrapping_sub(*low).rotate_left(7);
        }
    }
    std::array::from_fn(|i| u32::from(high[i]) << 16 | u32::from(low[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vector of the paper that describes Speck (appendix C, Speck32/64), with its own key schedule.
    #[test]
    fn the_cipher_round_matches_the_published_test_vector() {
        let (mut key, mut others) = (0x0100u16, [0x0908u16, 0x1110, 0x1918]);
        let mut round_keys = Vec::new();
        for round in 0..22u16 {
            round_keys.push(key);
            let other = key.wrapping_add(others[0].rotate_right(7)) ^ round;
            key = key.rotate_left(2) ^ other;
            others = [others[1], others[2], other];
        }
        assert_eq!(encrypt(&round_keys, [0x6574_694c]), [0xa868_42f2]);
        assert_eq!(decrypt(&round_keys, [0xa868_42f2]), [0x6574_694c]);
    }

    #[test]
    fn encryption_round_trips() {
        let secrets = Secrets([1, 2, 3, 4]);
        let (cipher, next) = (Cipher::new(&secrets, 0), Cipher::new(&secrets, 1));
        let numbers: [u32; 64] = std::array::from_fn(|at| (at as u32).wrapping_mul(0x3c6e_f372));
        let encrypted = cipher.encrypt(numbers);
        assert_eq!(cipher.decrypt(encrypted), numbers);
        for (number, encrypted) in numbers.into_iter().zip(encrypted) {
            assert_eq!(cipher.encrypt([number]), [encrypted]);
        }
        assert_ne!(next.encrypt(numbers), encrypted);
    }

    /// Flipping any bit of the input flips about half of the output's bits.
    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn one_input_bit_changes_half_of_the_output_bits() {
        let cipher = Cipher::new(&Secrets([5, 6, 7, 8]), 0);
        for bit in 0..32 {
            let turned: u32 = (0..4_000u32)
                .map(|number| {
                    let [one, other] = cipher.encrypt([number, number ^ 1 << bit]);
                    (one ^ other).count_ones()
                })
                .sum();
            let turned = f64::from(turned) / 4_000.0;
            assert!((15.6..16.4).contains(&turned), "bit {bit}: {turned}");
        }
    }
}

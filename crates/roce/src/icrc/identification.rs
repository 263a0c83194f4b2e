//! Recovers the identification of an IPv4 header, which the receiver cannot see, from the checksum that covers it.
//!
//! A CRC is linear: if two inputs of equal length differ only in the identification, the difference (XOR) of their checksums
//! depends only on the difference of the identifications and on the number of bytes that follow. As polynomials over GF(2), the
//! difference of the checksums is the difference of the identifications times a power of x, modulo the CRC's polynomial. So one
//! multiplication by the inverse of that power yields the identification. If the product has more than 16 bits, no
//! identification makes the checksum correct.

use crate::packet::{Headers, MAX_PAYLOAD};

/// The CRC's polynomial. As in all numbers here, the most significant bit is the coefficient of 1, and the least significant
/// that of x³¹.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// How many bytes the checksum covers between the identification and the packet: the rest of the IP header and the UDP header.
const BEFORE_PACKET: usize = 20 - 4 + 8;

/// The number of possible packet lengths.
const LENGTHS: usize = (Headers::MAX + MAX_PAYLOAD) / 4 + 1;

/// For each packet length, in 4-byte words: the inverse of x to the number of bits from the identification to the end.
static INVERSES: [u32; LENGTHS] = inverses();

/// Products with x⁴ of the polynomials whose other coefficients are 0 below x²⁸: what the four highest become.
static REDUCED: [u32; 16] = reduced();

/// Whether a packet has this length: then its identification can be found.
pub(super) const fn is_found_at(length: usize) -> bool {
    length.is_multiple_of(4) && length / 4 < LENGTHS
}

/// What turns one identification into another (exclusive or), if that changes the checksum of a packet of `length` bytes by `difference`
/// (exclusive or). `None` if nothing does, or if no packet has this length.
pub(super) fn of(difference: u32, length: usize) -> Option<u16> {
    if !is_found_at(length) {
        return None;
    }
    let inverse = INVERSES.get(length / 4)?;
    let bytes = u16::try_from(product(difference, *inverse)).ok()?;
    // The CRC treats the first byte as the low one, but it is the high byte of the field.
    Some(bytes.swap_bytes())
}

const fn inverses() -> [u32; LENGTHS] {
    let mut inverses = [0; LENGTHS];
    let mut inverse = divided_by_x(ONE, 8 * BEFORE_PACKET);
    let mut words = 0;
    while words < LENGTHS {
        inverses[words] = inverse;
        inverse = divided_by_x(inverse, 32);
        words += 1;
    }
    inverses
}

/// Divides a polynomial by xⁿ.
const fn divided_by_x(mut polynomial: u32, n: usize) -> u32 {
    let mut i = 0;
    while i < n {
        // If the coefficient of 1 is set, adding the polynomial clears it; its x³² term then becomes x³¹.
        polynomial = if polynomial & ONE == 0 {
            polynomial << 1
        } else {
            (polynomial ^ POLYNOMIAL) << 1 | 1
        };
        i += 1;
    }
    polynomial
}

/// Multiplies a polynomial by x.
const fn times_x(polynomial: u32) -> u32 {
    if polynomial & 1 == 0 {
        polynomial >> 1
    } else {
        polynomial >> 1 ^ POLYNOMIAL
    }
}

const fn reduced() -> [u32; 16] {
    let mut reduced = [0; 16];
    let mut coefficients = 0;
    while coefficients < 16 {
        let mut product = coefficients as u32;
        let mut i = 0;
        while i < 4 {
            product = times_x(product);
            i += 1;
        }
        reduced[coefficients] = product;
        coefficients += 1;
    }
    reduced
}

/// Multiplies two polynomials, by four coefficients of `a` at a time (Horner's scheme), the highest first.
fn product(a: u32, b: u32) -> u32 {
    // The multiples of b by the polynomials of four coefficients. As everywhere, the most significant bit of the index is that of 1.
    let mut multiples = [0; 16];
    let mut shifted = b;
    for bit in [8, 4, 2, 1] {
        for higher in (0..16).step_by(2 * bit) {
            multiples[higher + bit] = multiples[higher] ^ shifted;
        }
        shifted = times_x(shifted);
    }
    (0..8).fold(0, |product: u32, four| {
        let times_x4 = product >> 4 ^ REDUCED[(product & 15) as usize];
        times_x4 ^ multiples[(a >> (4 * four) & 15) as usize]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc32fast::hash;
    use proptest::prelude::*;

    /// Multiplies two polynomials, by one coefficient at a time.
    fn slow_product(a: u32, b: u32) -> u32 {
        let mut product = 0;
        let mut shifted = b;
        for exponent in 0..32 {
            if a & ONE >> exponent != 0 {
                product ^= shifted;
            }
            shifted = times_x(shifted);
        }
        product
    }

    proptest! {
        #[test]
        fn four_coefficients_at_a_time_give_the_same_product(a: u32, b: u32) {
            prop_assert_eq!(product(a, b), slow_product(a, b));
        }
    }

    #[test]
    fn dividing_by_x_reverses_multiplying_by_x() {
        for polynomial in [1, ONE, 0xdead_beef, u32::MAX, POLYNOMIAL] {
            assert_eq!(divided_by_x(times_x(polynomial), 1), polynomial);
            assert_eq!(product(polynomial, ONE), polynomial);
            assert_eq!(product(ONE, polynomial), polynomial);
            let inverse = divided_by_x(ONE, 77);
            assert_eq!(divided_by_x(polynomial, 77), product(polynomial, inverse));
        }
    }

    #[test]
    fn every_identification_is_found_at_every_length() {
        for words in (0..LENGTHS).step_by(37).chain([LENGTHS - 1]) {
            let mut covered = vec![0x5a; BEFORE_PACKET + 4 * words];
            covered[..2].fill(0);
            let zero = hash(&covered);
            // All bits, alone and together, suffice: the map is linear.
            let some = (0..16).map(|bit| 1 << bit).chain([0, 0x1234, 0xffff]);
            for identification in some {
                covered[..2].copy_from_slice(&u16::to_be_bytes(identification));
                let difference = zero ^ hash(&covered);
                assert_eq!(of(difference, 4 * words), Some(identification));
            }
        }
    }

    #[test]
    fn no_identification_is_found_for_damage_elsewhere() {
        let packet = 64;
        let zero = vec![0; BEFORE_PACKET + packet];
        // Flip one bit at a time: none of the results matches any of the 65,535 other identifications.
        let found = (2..zero.len()).filter(|&at| {
            let mut damaged = zero.clone();
            damaged[at] = 1;
            of(hash(&zero) ^ hash(&damaged), packet).is_some()
        });
        assert_eq!(found.count(), 0);
    }

    #[test]
    fn no_identification_is_found_for_lengths_that_no_packet_has() {
        for length in [1, 2, 3, 5, 4 * LENGTHS, 4 * LENGTHS + 1, usize::MAX] {
            assert_eq!(of(0, length), None, "{length}");
        }
        assert_eq!(of(0, 4 * (LENGTHS - 1)), Some(0));
    }
}

//! Finds the identification of an IPv4 header that the receiver cannot see, from the checksum that covers it.
//!
//! A CRC is linear: if two inputs of equal length differ only in the identification, the difference (XOR) of their checksums
//! depends only on the difference of the identifications and on how many bytes follow. Seen as polynomials over GF(2), the first
//! is the second times a power of x, modulo the CRC's polynomial. So one multiplication with the inverse of that power finds the
//! identification. A product with more than 16 bits is not one: then no identification makes the checksum right.

use crate::packet::{Headers, MAX_PAYLOAD};

/// The CRC's polynomial. As in all numbers here, the highest bit is the coefficient of 1, and the lowest that of x³¹.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// What the checksum covers between the identification's first byte and the packet: the rest of the IP header, the UDP header.
const BEFORE_PACKET: usize = 20 - 4 + 8;

/// How many lengths a packet can have.
const LENGTHS: usize = (Headers::MAX + MAX_PAYLOAD) / 4 + 1;

/// For each length of a packet, in words of 4 bytes: 1 divided by x to the number of bits from the identification to the end.
static INVERSES: [u32; LENGTHS] = inverses();

/// The identification of a packet with `length` bytes whose checksum differs by `difference` from the checksum with the
/// identification 0; `None` if there is none, or if no packet has that length.
pub(super) fn of(difference: u32, length: usize) -> Option<u16> {
    if !length.is_multiple_of(4) {
        return None;
    }
    let inverse = INVERSES.get(length / 4)?;
    let bytes = u16::try_from(product(difference, *inverse)).ok()?;
    // The CRC takes the first byte as the low one, but it is the high byte of the field.
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

/// The quotient of a polynomial and xⁿ.
const fn divided_by_x(mut polynomial: u32, n: usize) -> u32 {
    let mut i = 0;
    while i < n {
        // Where the coefficient of 1 is set, the polynomial is added, which makes it 0; x³² then becomes x³¹.
        polynomial = if polynomial & ONE == 0 {
            polynomial << 1
        } else {
            (polynomial ^ POLYNOMIAL) << 1 | 1
        };
        i += 1;
    }
    polynomial
}

/// The product of a polynomial and x.
const fn times_x(polynomial: u32) -> u32 {
    if polynomial & 1 == 0 {
        polynomial >> 1
    } else {
        polynomial >> 1 ^ POLYNOMIAL
    }
}

/// The product of two polynomials.
fn product(a: u32, b: u32) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crc32fast::hash;

    #[test]
    fn dividing_by_x_undoes_multiplying_by_x() {
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
            // All bits, alone and together: the map is linear.
            let some = (0..16).map(|bit| 1 << bit).chain([0, 0x1234, 0xffff]);
            for identification in some {
                covered[..2].copy_from_slice(&u16::to_be_bytes(identification));
                let difference = zero ^ hash(&covered);
                assert_eq!(of(difference, 4 * words), Some(identification));
            }
        }
    }

    #[test]
    fn damage_elsewhere_has_no_identification() {
        let packet = 64;
        let zero = vec![0; BEFORE_PACKET + packet];
        // One bit at each place: none of them looks like any of the 65,535 other identifications.
        let found = (2..zero.len()).filter(|&at| {
            let mut damaged = zero.clone();
            damaged[at] = 1;
            of(hash(&zero) ^ hash(&damaged), packet).is_some()
        });
        assert_eq!(found.count(), 0);
    }

    #[test]
    fn no_packet_has_these_lengths() {
        for length in [1, 2, 3, 5, 4 * LENGTHS, 4 * LENGTHS + 1, usize::MAX] {
            assert_eq!(of(0, length), None, "{length}");
        }
        assert_eq!(of(0, 4 * (LENGTHS - 1)), Some(0));
    }
}

//! The `long double` of x86-64: ten bytes, padded to sixteen. The x87 unit computes with it because Rust has no such
//! type.

#![allow(unsafe_code)]
// UNSAFETY: instructions of the x87 unit.

use std::arch::asm;
use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

/// A number; the last six bytes have no meaning.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct LongDouble([u8; 16]);

impl LongDouble {
    /// Zero.
    pub const ZERO: Self = Self([0; 16]);
    /// One.
    pub const ONE: Self = Self([0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f, 0, 0, 0, 0, 0, 0]);

    /// The number in these bytes.
    #[must_use]
    pub fn from_ne_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the number.
    #[must_use]
    pub fn to_ne_bytes(self) -> [u8; 16] {
        self.0
    }
}

/// Computes with two numbers: the first is `st(1)`, the second `st(0)`.
macro_rules! reckon {
    ($trait:ident, $name:ident, $instruction:literal) => {
        impl $trait for LongDouble {
            type Output = Self;

            fn $name(self, other: Self) -> Self {
                let mut result = Self::ZERO;
                // SAFETY: reads ten bytes of each number and writes ten of the result, all of which are here and have
                // sixteen; the stack of the unit is empty before and after, because all of its registers are clobbered.
                unsafe {
                    asm!(
                        "fld tbyte ptr [{a}]",
                        "fld tbyte ptr [{b}]",
                        $instruction,
                        "fstp tbyte ptr [{result}]",
                        a = in(reg) &raw const self,
                        b = in(reg) &raw const other,
                        result = in(reg) &raw mut result,
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                result
            }
        }
    };
}
reckon!(Add, add, "faddp st(1), st");
reckon!(Sub, sub, "fsubp st(1), st");
reckon!(Mul, mul, "fmulp st(1), st");

impl PartialOrd for LongDouble {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let (above, below, unordered): (u8, u8, u8);
        // SAFETY: reads ten bytes of each number; the stack of the unit is empty before and after, because all of its
        // registers are clobbered.
        unsafe {
            asm!(
                "fld tbyte ptr [{b}]",
                "fld tbyte ptr [{a}]",
                "fucomip st, st(1)",
                "fstp st(0)",
                "seta {above}",
                "setb {below}",
                "setp {unordered}",
                a = in(reg) &raw const *self,
                b = in(reg) &raw const *other,
                above = lateout(reg_byte) above,
                below = lateout(reg_byte) below,
                unordered = lateout(reg_byte) unordered,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        match (unordered, above, below) {
            (1, ..) => None,
            (_, 1, _) => Some(Ordering::Greater),
            (_, _, 1) => Some(Ordering::Less),
            _ => Some(Ordering::Equal),
        }
    }
}

impl PartialEq for LongDouble {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number from its sign and exponent and its significand.
    fn number(head: u16, significand: u64) -> LongDouble {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&significand.to_le_bytes());
        bytes[8..10].copy_from_slice(&head.to_le_bytes());
        LongDouble(bytes)
    }

    #[test]
    #[cfg_attr(miri, ignore = "inline assembly")]
    fn arithmetic_keeps_all_64_bits_of_the_significand() {
        let one_and_a_half = number(0x3fff, 0xc000_0000_0000_0000);
        let two_and_a_quarter = number(0x4000, 0x9000_0000_0000_0000);
        let product = one_and_a_half * one_and_a_half;
        assert_eq!(product.0, two_and_a_quarter.0);
        assert_eq!(
            (two_and_a_quarter - one_and_a_half).0,
            number(0x3ffe, 0xc000_0000_0000_0000).0
        );
        // 1 + 2^-63: the last bit of the significand, which a `double` does not have.
        let tiny = number(0x3fff - 63, 0x8000_0000_0000_0000);
        assert_eq!(
            (LongDouble::ONE + tiny).0,
            number(0x3fff, 0x8000_0000_0000_0001).0
        );
        assert_eq!(((LongDouble::ONE + tiny) - LongDouble::ONE).0, tiny.0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "inline assembly")]
    fn numbers_are_ordered_but_nan_is_not() {
        let (one, zero) = (LongDouble::ONE, LongDouble::ZERO);
        let minus_zero = number(0x8000, 0);
        let none = number(0x7fff, 0xc000_0000_0000_0000);
        assert_eq!(zero.partial_cmp(&one), Some(Ordering::Less));
        assert_eq!(one.partial_cmp(&zero), Some(Ordering::Greater));
        assert_eq!(one.partial_cmp(&one), Some(Ordering::Equal));
        assert_eq!(zero, minus_zero);
        assert_eq!(none.partial_cmp(&one), None);
        assert_eq!(one.partial_cmp(&none), None);
        assert_ne!(none, none);
        assert_ne!(one, none);
    }
}

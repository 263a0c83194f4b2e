//! What atomic operations do to numbers: whole ones of 8 to 128 bits, floating point numbers, and pairs of these.

#[cfg(target_arch = "x86_64")]
use super::extended::LongDouble;
use crate::errno::{FiError, Result};
use crate::sys::*;
use std::ffi::c_int;

/// Bytes of one operand list.
pub(in crate::ep) const BYTES_MAX: usize = 4096;

/// The three forms of atomic calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Base = 0,
    Fetch = 1,
    Compare = 2,
}

impl Kind {
    pub(super) fn from_wire(form: u8) -> Option<Self> {
        Some(match form {
            0 => Self::Base,
            1 => Self::Fetch,
            2 => Self::Compare,
            _ => return None,
        })
    }
}

/// Bytes of a number of a type.
pub(in crate::ep) fn size_of_type(datatype: c_int) -> Option<usize> {
    Some(match datatype {
        FI_INT8 | FI_UINT8 => 1,
        FI_INT16 | FI_UINT16 => 2,
        FI_INT32 | FI_UINT32 | FI_FLOAT => 4,
        FI_INT64 | FI_UINT64 | FI_DOUBLE | FI_FLOAT_COMPLEX => 8,
        FI_INT128 | FI_UINT128 | FI_DOUBLE_COMPLEX => 16,
        #[cfg(target_arch = "x86_64")]
        FI_LONG_DOUBLE => 16,
        #[cfg(target_arch = "x86_64")]
        FI_LONG_DOUBLE_COMPLEX => 32,
        _ => return None,
    })
}

/// How many numbers one operation takes, and their size.
///
/// # Errors
/// `FI_EOPNOTSUPP`: there is no such operation on such numbers.
pub(crate) fn limits(kind: Kind, datatype: c_int, op: c_int) -> Result<(usize, usize)> {
    let size = size_of_type(datatype).ok_or(FiError::OPNOTSUPP)?;
    let real = !matches!(
        datatype,
        FI_FLOAT_COMPLEX | FI_DOUBLE_COMPLEX | FI_LONG_DOUBLE_COMPLEX
    );
    let whole = real && !matches!(datatype, FI_FLOAT | FI_DOUBLE | FI_LONG_DOUBLE);
    let there_is = match kind {
        Kind::Base | Kind::Fetch => match op {
            FI_MIN | FI_MAX => real,
            FI_SUM | FI_PROD | FI_LOR | FI_LAND | FI_LXOR | FI_ATOMIC_WRITE => true,
            FI_BOR | FI_BAND | FI_BXOR => whole,
            FI_ATOMIC_READ => kind == Kind::Fetch,
            _ => false,
        },
        Kind::Compare => match op {
            FI_CSWAP | FI_CSWAP_NE => true,
            FI_CSWAP_LE | FI_CSWAP_LT | FI_CSWAP_GE | FI_CSWAP_GT => real,
            FI_MSWAP => whole,
            _ => false,
        },
    };
    if there_is {
        Ok((BYTES_MAX / size, size))
    } else {
        Err(FiError::OPNOTSUPP)
    }
}

/// What all numbers can do.
trait Number: Copy + PartialEq {
    const ZERO: Self;
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// Below, equal, above; nothing for numbers that are not ordered.
    fn order(self, other: Self) -> Option<std::cmp::Ordering>;
    fn bits(self, other: Self, how: fn(u128, u128) -> u128) -> Self;
}

macro_rules! whole {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn multiply(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn order(self, other: Self) -> Option<std::cmp::Ordering> { Some(self.cmp(&other)) }
            fn bits(self, other: Self, how: fn(u128, u128) -> u128) -> Self { how(self as u128, other as u128) as Self }
        }
    )*};
}
whole!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128);

macro_rules! floating {
    ($($type:ty: $zero:expr, $one:expr;)*) => {$(
        impl Number for $type {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            fn add(self, other: Self) -> Self { self + other }
            fn multiply(self, other: Self) -> Self { self * other }
            fn order(self, other: Self) -> Option<std::cmp::Ordering> { self.partial_cmp(&other) }
            fn bits(self, _: Self, _: fn(u128, u128) -> u128) -> Self { self }
        }

        impl Number for [$type; 2] {
            const ZERO: Self = [$zero; 2];
            const ONE: Self = [$one, $zero];
            fn add(self, other: Self) -> Self { [self[0] + other[0], self[1] + other[1]] }
            fn multiply(self, other: Self) -> Self {
                let ([a, b], [c, d]) = (self, other);
                [a * c - b * d, a * d + b * c]
            }
            fn order(self, _: Self) -> Option<std::cmp::Ordering> { None }
            fn bits(self, _: Self, _: fn(u128, u128) -> u128) -> Self { self }
        }
    )*};
}
floating!(f32: 0.0, 1.0; f64: 0.0, 1.0;);
#[cfg(target_arch = "x86_64")]
floating!(LongDouble: LongDouble::ZERO, LongDouble::ONE;);

/// A number as bytes of the machine.
trait Bytes: Number {
    fn read(from: &[u8]) -> Option<Self>;
    fn write(self, into: &mut [u8]);
}

macro_rules! bytes {
    ($($type:ty)*) => {$(
        impl Bytes for $type {
            fn read(from: &[u8]) -> Option<Self> { from.try_into().ok().map(Self::from_ne_bytes) }
            fn write(self, into: &mut [u8]) { into.copy_from_slice(&self.to_ne_bytes()); }
        }
    )*};
}
bytes!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128 f32 f64);
#[cfg(target_arch = "x86_64")]
bytes!(LongDouble);

macro_rules! pairs {
    ($($type:ty)*) => {$(
        impl Bytes for [$type; 2] {
            fn read(from: &[u8]) -> Option<Self> {
                let (a, b) = from.split_at_checked(size_of::<$type>())?;
                Some([<$type>::read(a)?, <$type>::read(b)?])
            }
            fn write(self, into: &mut [u8]) {
                let (a, b) = into.split_at_mut(size_of::<$type>());
                self[0].write(a);
                self[1].write(b);
            }
        }
    )*};
}
pairs!(f32 f64);
#[cfg(target_arch = "x86_64")]
pairs!(LongDouble);

/// The new value of a number.
fn one<N: Number>(op: c_int, old: N, operand: N, compare: N) -> N {
    use std::cmp::Ordering::*;
    let truth = |value: bool| if value { N::ONE } else { N::ZERO };
    let (a, b) = (old != N::ZERO, operand != N::ZERO);
    // A comparison is "compare value with memory" (fi_atomic(3)).
    let order = compare.order(old);
    let swap = match op {
        FI_MIN => {
            return if operand.order(old) == Some(Less) {
                operand
            } else {
                old
            };
        }
        FI_MAX => {
            return if operand.order(old) == Some(Greater) {
                operand
            } else {
                old
            };
        }
        FI_SUM => return old.add(operand),
        FI_PROD => return old.multiply(operand),
        FI_LOR => return truth(a || b),
        FI_LAND => return truth(a && b),
        FI_LXOR => return truth(a != b),
        FI_BOR => return old.bits(operand, |a, b| a | b),
        FI_BAND => return old.bits(operand, |a, b| a & b),
        FI_BXOR => return old.bits(operand, |a, b| a ^ b),
        FI_ATOMIC_WRITE => return operand,
        FI_MSWAP => {
            let kept = old.bits(compare, |old, mask| old & !mask);
            return kept.bits(operand.bits(compare, |new, mask| new & mask), |a, b| a | b);
        }
        FI_CSWAP => compare == old,
        FI_CSWAP_NE => compare != old,
        FI_CSWAP_LE => matches!(order, Some(Less | Equal)),
        FI_CSWAP_LT => order == Some(Less),
        FI_CSWAP_GE => matches!(order, Some(Greater | Equal)),
        FI_CSWAP_GT => order == Some(Greater),
        _ => false,
    };
    if swap { operand } else { old }
}

fn all<N: Bytes>(op: c_int, values: &mut [u8], operands: &[u8], compare: &[u8]) -> Result<()> {
    let size = size_of::<N>();
    for (index, value) in values.chunks_exact_mut(size).enumerate() {
        let at = index * size..(index + 1) * size;
        let read = |from: &[u8]| from.get(at.clone()).and_then(N::read);
        let old = N::read(value).ok_or(FiError::INVAL)?;
        let operand = read(operands).ok_or(FiError::INVAL)?;
        let compare = read(compare).unwrap_or(N::ZERO);
        one(op, old, operand, compare).write(value);
    }
    Ok(())
}

/// Applies an operation to numbers.
///
/// # Errors
/// `FI_EINVAL`: too few operands, `FI_EOPNOTSUPP`: no such type.
pub(in crate::ep) fn apply(
    datatype: c_int,
    op: c_int,
    values: &mut [u8],
    operands: &[u8],
    compare: &[u8],
) -> Result<()> {
    match datatype {
        FI_INT8 => all::<i8>(op, values, operands, compare),
        FI_UINT8 => all::<u8>(op, values, operands, compare),
        FI_INT16 => all::<i16>(op, values, operands, compare),
        FI_UINT16 => all::<u16>(op, values, operands, compare),
        FI_INT32 => all::<i32>(op, values, operands, compare),
        FI_UINT32 => all::<u32>(op, values, operands, compare),
        FI_INT64 => all::<i64>(op, values, operands, compare),
        FI_UINT64 => all::<u64>(op, values, operands, compare),
        FI_INT128 => all::<i128>(op, values, operands, compare),
        FI_UINT128 => all::<u128>(op, values, operands, compare),
        FI_FLOAT => all::<f32>(op, values, operands, compare),
        FI_DOUBLE => all::<f64>(op, values, operands, compare),
        FI_FLOAT_COMPLEX => all::<[f32; 2]>(op, values, operands, compare),
        FI_DOUBLE_COMPLEX => all::<[f64; 2]>(op, values, operands, compare),
        #[cfg(target_arch = "x86_64")]
        FI_LONG_DOUBLE => all::<LongDouble>(op, values, operands, compare),
        #[cfg(target_arch = "x86_64")]
        FI_LONG_DOUBLE_COMPLEX => all::<[LongDouble; 2]>(op, values, operands, compare),
        _ => Err(FiError::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        for (op, old, operand, new) in [
            (FI_MIN, 5i8, -3, -3),
            (FI_MAX, 5, -3, 5),
            (FI_SUM, 127, 1, -128),
            (FI_PROD, 7, -3, -21),
            (FI_LOR, 0, 4, 1),
            (FI_LAND, 2, 0, 0),
            (FI_LXOR, 2, 4, 0),
            (FI_BOR, 5, 2, 7),
            (FI_BAND, 5, 4, 4),
            (FI_BXOR, 5, 4, 1),
            (FI_ATOMIC_WRITE, 5, 4, 4),
        ] {
            assert_eq!(one(op, old, operand, 0), new, "operation {op}");
            let mut bytes = [old as u8];
            apply(FI_INT8, op, &mut bytes, &[operand as u8], &[]).unwrap();
            assert_eq!(bytes, [new as u8]);
        }
    }

    #[test]
    fn numbers_of_sixteen_bytes() {
        let mut value = i128::MAX.to_ne_bytes();
        let operand = 1i128.to_ne_bytes();
        apply(FI_INT128, FI_SUM, &mut value, &operand, &[]).unwrap();
        assert_eq!(i128::from_ne_bytes(value), i128::MIN);
        let high = (1u128 << 100).to_ne_bytes();
        apply(FI_UINT128, FI_BXOR, &mut value, &high, &[]).unwrap();
        assert_eq!(u128::from_ne_bytes(value), 1 << 127 | 1 << 100);
        assert_eq!(
            one(FI_MSWAP, u128::MAX, 0, 1 << 120),
            u128::MAX ^ (1 << 120)
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_doubles_alone_and_in_pairs() {
        let one = LongDouble::ONE;
        let (two, none) = (one + one, one - one);
        let of = |value: LongDouble| value.to_ne_bytes();
        let pair = |a, b| [of(a), of(b)].concat();
        let mut value = of(two);
        apply(FI_LONG_DOUBLE, FI_PROD, &mut value, &of(two), &[]).unwrap();
        assert_eq!(value[..10], of(two + two)[..10]);
        apply(FI_LONG_DOUBLE, FI_MIN, &mut value, &of(one), &[]).unwrap();
        apply(FI_LONG_DOUBLE, FI_CSWAP_GT, &mut value, &of(none), &of(two)).unwrap();
        assert_eq!(value[..10], of(none)[..10], "two is more than one");
        // i * i = -1
        let mut value = pair(none, one);
        let operand = value.clone();
        apply(FI_LONG_DOUBLE_COMPLEX, FI_PROD, &mut value, &operand, &[]).unwrap();
        assert_eq!(value[..10], of(none - one)[..10]);
        assert_eq!(value[16..26], of(none)[..10]);
        assert_eq!(
            limits(Kind::Fetch, FI_LONG_DOUBLE_COMPLEX, FI_SUM),
            Ok((128, 32))
        );
    }

    #[test]
    fn comparisons_are_of_the_given_value_with_memory() {
        for (op, compare, swaps) in [
            (FI_CSWAP, 5u32, true),
            (FI_CSWAP, 4, false),
            (FI_CSWAP_NE, 4, true),
            (FI_CSWAP_NE, 5, false),
            (FI_CSWAP_LE, 5, true),
            (FI_CSWAP_LE, 6, false),
            (FI_CSWAP_LT, 4, true),
            (FI_CSWAP_LT, 5, false),
            (FI_CSWAP_GE, 5, true),
            (FI_CSWAP_GE, 4, false),
            (FI_CSWAP_GT, 6, true),
            (FI_CSWAP_GT, 5, false),
        ] {
            assert_eq!(
                one(op, 5, 99, compare),
                if swaps { 99 } else { 5 },
                "{op} {compare}"
            );
        }
        assert_eq!(one(FI_MSWAP, 0xff00u16, 0x1234, 0x0ff0), 0xf230);
    }

    #[test]
    fn pairs_multiply_as_complex_numbers() {
        assert_eq!(
            one(FI_PROD, [1.0f32, 2.0], [3.0, 4.0], [0.0; 2]),
            [-5.0, 10.0]
        );
        assert_eq!(one(FI_SUM, [1.0f64, 2.0], [3.0, 4.0], [0.0; 2]), [4.0, 6.0]);
    }

    #[test]
    fn what_there_is_not_is_said() {
        assert!(limits(Kind::Base, FI_LONG_DOUBLE, FI_BXOR).is_err());
        assert!(limits(Kind::Base, FI_UINT128 + 1, FI_SUM).is_err());
        assert!(limits(Kind::Base, FI_FLOAT, FI_BOR).is_err());
        assert!(limits(Kind::Base, FI_INT8, FI_ATOMIC_READ).is_err());
        assert!(limits(Kind::Fetch, FI_INT8, FI_CSWAP).is_err());
        assert_eq!(limits(Kind::Compare, FI_UINT64, FI_MSWAP), Ok((512, 8)));
    }
}

//! The arithmetic of atomic operations: on integers of 8 to 128 bits, floating point numbers, and pairs of these.

use super::{AtomicError, DataType, Op};
#[cfg(target_arch = "x86_64")]
use rkey_base::long_double::LongDouble;

/// What every type of number supports.
trait Number: Copy + PartialEq {
    const ZERO: Self;
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// Less, equal or greater; `None` for numbers that are not ordered.
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

/// A number as bytes in the machine's order.
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
fn one<N: Number>(op: Op, old: N, operand: N, compare: N) -> N {
    use std::cmp::Ordering::*;
    let truth = |value: bool| if value { N::ONE } else { N::ZERO };
    let (a, b) = (old != N::ZERO, operand != N::ZERO);
    // A comparison is "compare value with memory" (fi_atomic(3)).
    let order = compare.order(old);
    let swap = match op {
        Op::Min => {
            return if operand.order(old) == Some(Less) {
                operand
            } else {
                old
            };
        }
        Op::Max => {
            return if operand.order(old) == Some(Greater) {
                operand
            } else {
                old
            };
        }
        Op::Sum => return old.add(operand),
        Op::Prod => return old.multiply(operand),
        Op::Lor => return truth(a || b),
        Op::Land => return truth(a && b),
        Op::Lxor => return truth(a != b),
        Op::Bor => return old.bits(operand, |a, b| a | b),
        Op::Band => return old.bits(operand, |a, b| a & b),
        Op::Bxor => return old.bits(operand, |a, b| a ^ b),
        Op::Write => return operand,
        Op::Mswap => {
            let kept = old.bits(compare, |old, mask| old & !mask);
            return kept.bits(operand.bits(compare, |new, mask| new & mask), |a, b| a | b);
        }
        Op::Cswap => compare == old,
        Op::CswapNe => compare != old,
        Op::CswapLe => matches!(order, Some(Less | Equal)),
        Op::CswapLt => order == Some(Less),
        Op::CswapGe => matches!(order, Some(Greater | Equal)),
        Op::CswapGt => order == Some(Greater),
        Op::Read => false,
    };
    if swap { operand } else { old }
}

fn all<N: Bytes>(
    op: Op,
    values: &mut [u8],
    operands: &[u8],
    compare: &[u8],
) -> Result<(), AtomicError> {
    let size = size_of::<N>();
    for (index, value) in values.chunks_exact_mut(size).enumerate() {
        let at = index * size..(index + 1) * size;
        let read = |from: &[u8]| from.get(at.clone()).and_then(N::read);
        let old = N::read(value).ok_or(AtomicError::Malformed)?;
        let operand = read(operands).ok_or(AtomicError::Malformed)?;
        let compare = read(compare).unwrap_or(N::ZERO);
        one(op, old, operand, compare).write(value);
    }
    Ok(())
}

/// Applies an operation to numbers.
///
/// # Errors
/// [`AtomicError::Malformed`]: too few operands; [`AtomicError::Unsupported`]: this machine has no such type.
pub fn apply(
    datatype: DataType,
    op: Op,
    values: &mut [u8],
    operands: &[u8],
    compare: &[u8],
) -> Result<(), AtomicError> {
    match datatype {
        DataType::Int8 => all::<i8>(op, values, operands, compare),
        DataType::Uint8 => all::<u8>(op, values, operands, compare),
        DataType::Int16 => all::<i16>(op, values, operands, compare),
        DataType::Uint16 => all::<u16>(op, values, operands, compare),
        DataType::Int32 => all::<i32>(op, values, operands, compare),
        DataType::Uint32 => all::<u32>(op, values, operands, compare),
        DataType::Int64 => all::<i64>(op, values, operands, compare),
        DataType::Uint64 => all::<u64>(op, values, operands, compare),
        DataType::Int128 => all::<i128>(op, values, operands, compare),
        DataType::Uint128 => all::<u128>(op, values, operands, compare),
        DataType::Float => all::<f32>(op, values, operands, compare),
        DataType::Double => all::<f64>(op, values, operands, compare),
        DataType::FloatComplex => all::<[f32; 2]>(op, values, operands, compare),
        DataType::DoubleComplex => all::<[f64; 2]>(op, values, operands, compare),
        #[cfg(target_arch = "x86_64")]
        DataType::LongDouble => all::<LongDouble>(op, values, operands, compare),
        #[cfg(target_arch = "x86_64")]
        DataType::LongDoubleComplex => all::<[LongDouble; 2]>(op, values, operands, compare),
        #[cfg(not(target_arch = "x86_64"))]
        DataType::LongDouble | DataType::LongDoubleComplex => Err(AtomicError::Unsupported),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_operations_compute_the_documented_results() {
        for (op, old, operand, new) in [
            (Op::Min, 5i8, -3, -3),
            (Op::Max, 5, -3, 5),
            (Op::Sum, 127, 1, -128),
            (Op::Prod, 7, -3, -21),
            (Op::Lor, 0, 4, 1),
            (Op::Land, 2, 0, 0),
            (Op::Lxor, 2, 4, 0),
            (Op::Bor, 5, 2, 7),
            (Op::Band, 5, 4, 4),
            (Op::Bxor, 5, 4, 1),
            (Op::Write, 5, 4, 4),
        ] {
            assert_eq!(one(op, old, operand, 0), new, "operation {op:?}");
            let mut bytes = [old as u8];
            apply(DataType::Int8, op, &mut bytes, &[operand as u8], &[]).unwrap();
            assert_eq!(bytes, [new as u8]);
        }
    }

    #[test]
    fn integers_of_128_bits_wrap_and_swap_by_mask() {
        let mut value = i128::MAX.to_ne_bytes();
        let operand = 1i128.to_ne_bytes();
        apply(DataType::Int128, Op::Sum, &mut value, &operand, &[]).unwrap();
        assert_eq!(i128::from_ne_bytes(value), i128::MIN);
        let high = (1u128 << 100).to_ne_bytes();
        apply(DataType::Uint128, Op::Bxor, &mut value, &high, &[]).unwrap();
        assert_eq!(u128::from_ne_bytes(value), 1 << 127 | 1 << 100);
        assert_eq!(
            one(Op::Mswap, u128::MAX, 0, 1 << 120),
            u128::MAX ^ (1 << 120)
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_double_operations_compute_real_and_complex_results() {
        let one = LongDouble::ONE;
        let (two, none) = (one + one, one - one);
        let of = |value: LongDouble| value.to_ne_bytes();
        let pair = |a, b| [of(a), of(b)].concat();
        let mut value = of(two);
        apply(DataType::LongDouble, Op::Prod, &mut value, &of(two), &[]).unwrap();
        assert_eq!(value[..10], of(two + two)[..10]);
        apply(DataType::LongDouble, Op::Min, &mut value, &of(one), &[]).unwrap();
        apply(
            DataType::LongDouble,
            Op::CswapGt,
            &mut value,
            &of(none),
            &of(two),
        )
        .unwrap();
        assert_eq!(value[..10], of(none)[..10], "2 > 1, so the swap happens");
        // i * i = -1
        let mut value = pair(none, one);
        let operand = value.clone();
        apply(
            DataType::LongDoubleComplex,
            Op::Prod,
            &mut value,
            &operand,
            &[],
        )
        .unwrap();
        assert_eq!(value[..10], of(none - one)[..10]);
        assert_eq!(value[16..26], of(none)[..10]);
    }

    #[test]
    fn compare_and_swap_compares_the_given_value_with_memory() {
        for (op, compare, swaps) in [
            (Op::Cswap, 5u32, true),
            (Op::Cswap, 4, false),
            (Op::CswapNe, 4, true),
            (Op::CswapNe, 5, false),
            (Op::CswapLe, 5, true),
            (Op::CswapLe, 6, false),
            (Op::CswapLt, 4, true),
            (Op::CswapLt, 5, false),
            (Op::CswapGe, 5, true),
            (Op::CswapGe, 4, false),
            (Op::CswapGt, 6, true),
            (Op::CswapGt, 5, false),
        ] {
            assert_eq!(
                one(op, 5, 99, compare),
                if swaps { 99 } else { 5 },
                "{op:?} {compare}"
            );
        }
        assert_eq!(one(Op::Mswap, 0xff00u16, 0x1234, 0x0ff0), 0xf230);
    }

    #[test]
    fn pairs_of_floats_are_multiplied_and_added_as_complex_numbers() {
        assert_eq!(
            one(Op::Prod, [1.0f32, 2.0], [3.0, 4.0], [0.0; 2]),
            [-5.0, 10.0]
        );
        assert_eq!(
            one(Op::Sum, [1.0f64, 2.0], [3.0, 4.0], [0.0; 2]),
            [4.0, 6.0]
        );
    }
}

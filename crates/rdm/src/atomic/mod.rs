//! Atomic operations on numbers in a peer's memory: their types and operations, and the requests that a peer may send.
//!
//! An atomic is sent as a message, with its operands after the header. Types and operations have the numbers of
//! libfabric (`enum fi_datatype`, `enum fi_op`), on the wire as well.

mod compute;
mod request;

pub use compute::apply;
pub use request::Request;

/// The maximum length of an operand list, in bytes.
pub const BYTES_MAX: usize = 4096;

/// Why an atomic operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// The operation does not exist for this type.
    #[error("the operation is not defined for numbers of this type")]
    Unsupported,
    /// The number of operands is wrong, or the form is unknown.
    #[error("the operands do not fit the operation")]
    Malformed,
}

/// The three forms of atomic calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Changes memory.
    Base = 0,
    /// Also returns the old values.
    Fetch = 1,
    /// Compares first, and returns the old values.
    Compare = 2,
}

impl Kind {
    /// The form with this number in a header.
    #[must_use]
    pub fn from_code(form: u8) -> Option<Self> {
        Some(match form {
            0 => Self::Base,
            1 => Self::Fetch,
            2 => Self::Compare,
            _ => return None,
        })
    }
}

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    /// A signed integer of 8 bits.
    Int8 = 0,
    /// An unsigned integer of 8 bits.
    Uint8 = 1,
    /// A signed integer of 16 bits.
    Int16 = 2,
    /// An unsigned integer of 16 bits.
    Uint16 = 3,
    /// A signed integer of 32 bits.
    Int32 = 4,
    /// An unsigned integer of 32 bits.
    Uint32 = 5,
    /// A signed integer of 64 bits.
    Int64 = 6,
    /// An unsigned integer of 64 bits.
    Uint64 = 7,
    /// A floating point number of 32 bits.
    Float = 8,
    /// A floating point number of 64 bits.
    Double = 9,
    /// A complex number: a pair of 32-bit floating point numbers.
    FloatComplex = 10,
    /// A complex number: a pair of 64-bit floating point numbers.
    DoubleComplex = 11,
    /// The machine's `long double`; only x86-64 has one.
    LongDouble = 12,
    /// A complex number: a pair of `long double`s.
    LongDoubleComplex = 13,
    /// A signed integer of 128 bits.
    Int128 = 14,
    /// An unsigned integer of 128 bits.
    Uint128 = 15,
}

/// An operation on a number in memory. Each variant says what the memory contains afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The smaller value.
    Min = 0,
    /// The larger value.
    Max = 1,
    /// The sum; integers wrap.
    Sum = 2,
    /// The product; integers wrap.
    Prod = 3,
    /// 1 if at least one of the two operands is not 0, else 0.
    Lor = 4,
    /// 1 if both are not 0, else 0.
    Land = 5,
    /// Bitwise or.
    Bor = 6,
    /// Bitwise and.
    Band = 7,
    /// 1 if exactly one of the two operands is not 0, else 0.
    Lxor = 8,
    /// Bitwise exclusive or.
    Bxor = 9,
    /// The old value: a read.
    Read = 10,
    /// The operand.
    Write = 11,
    /// The operand, if the compare value equals the old value.
    Cswap = 12,
    /// The operand, if the compare value differs from the old value.
    CswapNe = 13,
    /// The operand, if the compare value is at most the old value.
    CswapLe = 14,
    /// The operand, if the compare value is less than the old value.
    CswapLt = 15,
    /// The operand, if the compare value is at least the old value.
    CswapGe = 16,
    /// The operand, if the compare value is greater than the old value.
    CswapGt = 17,
    /// The operand's bits where the mask has ones, the old bits elsewhere.
    Mswap = 18,
}

impl DataType {
    /// All types, by number.
    pub const ALL: [Self; 16] = [
        Self::Int8,
        Self::Uint8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float,
        Self::Double,
        Self::FloatComplex,
        Self::DoubleComplex,
        Self::LongDouble,
        Self::LongDoubleComplex,
        Self::Int128,
        Self::Uint128,
    ];

    /// The type with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The size of a number in bytes; `None` if the machine has no such type.
    #[must_use]
    pub fn size(self) -> Option<usize> {
        Some(match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double | Self::FloatComplex => 8,
            Self::Int128 | Self::Uint128 | Self::DoubleComplex => 16,
            Self::LongDouble if cfg!(target_arch = "x86_64") => 16,
            Self::LongDoubleComplex if cfg!(target_arch = "x86_64") => 32,
            Self::LongDouble | Self::LongDoubleComplex => return None,
        })
    }

    /// Whether numbers of this type are ordered.
    fn is_real(self) -> bool {
        !matches!(
            self,
            Self::FloatComplex | Self::DoubleComplex | Self::LongDoubleComplex
        )
    }

    fn is_integer(self) -> bool {
        self.is_real() && !matches!(self, Self::Float | Self::Double | Self::LongDouble)
    }
}

impl Op {
    /// All operations, by number.
    pub const ALL: [Self; 19] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::Read,
        Self::Write,
        Self::Cswap,
        Self::CswapNe,
        Self::CswapLe,
        Self::CswapLt,
        Self::CswapGe,
        Self::CswapGt,
        Self::Mswap,
    ];

    /// The operation with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether the operation combines two numbers into one, so that a collective operation can use it to reduce.
    #[must_use]
    pub fn reduces(self) -> bool {
        (self as u8) <= Self::Bxor as u8
    }
}

/// How many numbers one operation takes, and their size.
///
/// # Errors
/// [`AtomicError::Unsupported`]: the operation does not exist for this type.
pub fn limits(kind: Kind, datatype: DataType, op: Op) -> Result<(usize, usize), AtomicError> {
    let size = datatype.size().ok_or(AtomicError::Unsupported)?;
    let (real, integer) = (datatype.is_real(), datatype.is_integer());
    let there_is = match kind {
        Kind::Base | Kind::Fetch => match op {
            Op::Min | Op::Max => real,
            Op::Sum | Op::Prod | Op::Lor | Op::Land | Op::Lxor | Op::Write => true,
            Op::Bor | Op::Band | Op::Bxor => integer,
            Op::Read => kind == Kind::Fetch,
            _ => false,
        },
        Kind::Compare => match op {
            Op::Cswap | Op::CswapNe => true,
            Op::CswapLe | Op::CswapLt | Op::CswapGe | Op::CswapGt => real,
            Op::Mswap => integer,
            _ => false,
        },
    };
    if there_is {
        Ok((BYTES_MAX / size, size))
    } else {
        Err(AtomicError::Unsupported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_types_and_operations_are_found_by_their_numbers() {
        for (number, datatype) in (0..).zip(DataType::ALL) {
            assert_eq!(
                (datatype as u8, DataType::of(number)),
                (number, Some(datatype))
            );
        }
        for (number, op) in (0..).zip(Op::ALL) {
            assert_eq!((op as u8, Op::of(number)), (number, Some(op)));
        }
        assert_eq!((DataType::of(16), Op::of(19)), (None, None));
        assert!(Op::Bxor.reduces() && !Op::Read.reduces() && !Op::Mswap.reduces());
    }

    #[test]
    fn undefined_atomic_operations_are_refused() {
        assert!(limits(Kind::Base, DataType::LongDouble, Op::Bxor).is_err());
        assert!(limits(Kind::Base, DataType::Float, Op::Bor).is_err());
        assert!(limits(Kind::Base, DataType::Int8, Op::Read).is_err());
        assert!(limits(Kind::Fetch, DataType::Int8, Op::Cswap).is_err());
        assert_eq!(
            limits(Kind::Compare, DataType::Uint64, Op::Mswap),
            Ok((512, 8))
        );
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            limits(Kind::Fetch, DataType::LongDoubleComplex, Op::Sum),
            Ok((128, 32))
        );
    }
}

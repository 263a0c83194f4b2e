//! Atomic operations on numbers in a peer's memory: which there are, what they do, and what a peer may ask for.
//!
//! An atomic travels as a message, with its operands behind the header. Types and operations have the numbers of
//! libfabric (`enum fi_datatype`, `enum fi_op`), on the wire as well.

mod compute;
mod request;

pub use compute::apply;
pub use request::Request;

/// Bytes of one operand list.
pub const BYTES_MAX: usize = 4096;

/// Why an atomic operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// There is no such operation on such numbers.
    #[error("there is no such operation on numbers of this type")]
    Unsupported,
    /// Its operands are too few or too many, or its form is unknown.
    #[error("the operands do not fit the operation")]
    Malformed,
}

/// The three forms of atomic calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Changes memory.
    Base = 0,
    /// Gives the old values as well.
    Fetch = 1,
    /// Compares first, and gives the old values.
    Compare = 2,
}

impl Kind {
    /// The form with this number in a header.
    #[must_use]
    pub fn from_wire(form: u8) -> Option<Self> {
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
    /// An integer of 8 bits with a sign.
    Int8 = 0,
    /// One without.
    Uint8 = 1,
    /// 16 bits.
    Int16 = 2,
    /// 16 bits without a sign.
    Uint16 = 3,
    /// 32 bits.
    Int32 = 4,
    /// 32 bits without a sign.
    Uint32 = 5,
    /// 64 bits.
    Int64 = 6,
    /// 64 bits without a sign.
    Uint64 = 7,
    /// A floating point number of 32 bits.
    Float = 8,
    /// One of 64 bits.
    Double = 9,
    /// A pair of numbers of 32 bits.
    FloatComplex = 10,
    /// A pair of numbers of 64 bits.
    DoubleComplex = 11,
    /// The machine's `long double`; only x86-64 has one.
    LongDouble = 12,
    /// A pair of them.
    LongDoubleComplex = 13,
    /// An integer of 128 bits with a sign.
    Int128 = 14,
    /// One without.
    Uint128 = 15,
}

/// What is done to a number. What memory holds then is:
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The smaller one.
    Min = 0,
    /// The larger one.
    Max = 1,
    /// The sum; integers wrap.
    Sum = 2,
    /// The product; integers wrap.
    Prod = 3,
    /// 1 if one of them is not 0, else 0.
    Lor = 4,
    /// 1 if neither is 0, else 0.
    Land = 5,
    /// Or, bit for bit.
    Bor = 6,
    /// And, bit for bit.
    Band = 7,
    /// 1 if exactly one of them is not 0, else 0.
    Lxor = 8,
    /// Exclusive or, bit for bit.
    Bxor = 9,
    /// Nothing: the old value is read.
    Read = 10,
    /// The operand.
    Write = 11,
    /// The operand, if the value to compare with equals the old one.
    Cswap = 12,
    /// The same, if it differs.
    CswapNe = 13,
    /// The same, if it is at most the old one.
    CswapLe = 14,
    /// The same, if it is less.
    CswapLt = 15,
    /// The same, if it is at least the old one.
    CswapGe = 16,
    /// The same, if it is more.
    CswapGt = 17,
    /// The bits of the operand where the mask has them, the others stay.
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

    /// Bytes of a number; none where the machine has no such type.
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

    /// Whether numbers are ordered.
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

    /// Whether it makes one number of two, so that a collective operation may reduce with it.
    #[must_use]
    pub fn reduces(self) -> bool {
        (self as u8) <= Self::Bxor as u8
    }
}

/// How many numbers one operation takes, and their size.
///
/// # Errors
/// [`AtomicError::Unsupported`]: there is no such operation on such numbers.
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
    fn types_and_operations_are_found_by_their_numbers() {
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
    fn what_there_is_not_is_said() {
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

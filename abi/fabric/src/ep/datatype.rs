//! Maps the data types and operations of libfabric to those of the protocol, which have the same numbers.

use crate::errno::{FiError, Result};
use rkey_rdm::atomic::{self, DataType, Kind, Op};
use std::ffi::c_int;

/// The data type with this number.
pub(super) fn data_type(number: c_int) -> Option<DataType> {
    u8::try_from(number).ok().and_then(DataType::of)
}

/// The operation with this number.
pub(super) fn operation(number: c_int) -> Option<Op> {
    u8::try_from(number).ok().and_then(Op::of)
}

/// The maximum number of elements in one operation, and the size of an element in bytes.
///
/// # Errors
/// `FI_EOPNOTSUPP`: the operation does not exist for this type.
pub(crate) fn limits(kind: Kind, datatype: c_int, op: c_int) -> Result<(usize, usize)> {
    let datatype = data_type(datatype).ok_or(FiError::OPNOTSUPP)?;
    let op = operation(op).ok_or(FiError::OPNOTSUPP)?;
    Ok(atomic::limits(kind, datatype, op)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::*;

    #[test]
    fn data_types_and_operations_have_the_numbers_of_the_headers() {
        let types = [
            FI_INT8,
            FI_UINT8,
            FI_INT16,
            FI_UINT16,
            FI_INT32,
            FI_UINT32,
            FI_INT64,
            FI_UINT64,
            FI_FLOAT,
            FI_DOUBLE,
            FI_FLOAT_COMPLEX,
            FI_DOUBLE_COMPLEX,
            FI_LONG_DOUBLE,
            FI_LONG_DOUBLE_COMPLEX,
            FI_INT128,
            FI_UINT128,
        ];
        assert_eq!(types.map(data_type), DataType::ALL.map(Some));
        let operations = [
            FI_MIN,
            FI_MAX,
            FI_SUM,
            FI_PROD,
            FI_LOR,
            FI_LAND,
            FI_BOR,
            FI_BAND,
            FI_LXOR,
            FI_BXOR,
            FI_ATOMIC_READ,
            FI_ATOMIC_WRITE,
            FI_CSWAP,
            FI_CSWAP_NE,
            FI_CSWAP_LE,
            FI_CSWAP_LT,
            FI_CSWAP_GE,
            FI_CSWAP_GT,
            FI_MSWAP,
        ];
        assert_eq!(operations.map(operation), Op::ALL.map(Some));
        assert_eq!((data_type(FI_VOID), data_type(-1)), (None, None));
        assert_eq!((operation(FI_NOOP), operation(256)), (None, None));
    }
}

//! A peer's request for an atomic operation, read from its message.

use super::{AtomicError, DataType, Kind, Op, apply, limits};
use crate::header;

/// A valid request: an operation that exists, with the right number of operands.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    kind: Kind,
    datatype: DataType,
    op: Op,
    /// The length of the memory, in bytes.
    len: usize,
    operands: &'a [u8],
    compare: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses a peer's request.
    ///
    /// # Errors
    /// [`AtomicError::Malformed`]: an unknown form, no numbers, more numbers than one operation
    /// takes, or operands of the wrong length; [`AtomicError::Unsupported`]: the operation does not exist for
    /// this type.
    pub fn read(it: &header::Atomic, payload: &'a [u8]) -> Result<Self, AtomicError> {
        let kind = Kind::from_code(it.form).ok_or(AtomicError::Malformed)?;
        let datatype = DataType::of(it.datatype).ok_or(AtomicError::Unsupported)?;
        let op = Op::of(it.op).ok_or(AtomicError::Unsupported)?;
        let (most, size) = limits(kind, datatype, op)?;
        let count = it.count as usize;
        if count == 0 || count > most {
            return Err(AtomicError::Malformed);
        }
        let len = count * size;
        let wanted = match (op, kind) {
            (Op::Read, _) => 0,
            (_, Kind::Compare) => 2 * len,
            _ => len,
        };
        if payload.len() != wanted {
            return Err(AtomicError::Malformed);
        }
        let (operands, compare) = payload.split_at(wanted.min(len));
        Ok(Self {
            kind,
            datatype,
            op,
            len,
            operands,
            compare,
        })
    }

    /// The length of the memory that the request accesses, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the operation only reads.
    #[must_use]
    pub fn reads_only(&self) -> bool {
        self.op == Op::Read
    }

    /// Whether the peer gets the old values.
    #[must_use]
    pub fn fetches(&self) -> bool {
        self.kind != Kind::Base
    }

    /// Replaces the old values with the new ones.
    ///
    /// # Errors
    /// Same as [`apply`].
    pub fn apply(&self, values: &mut [u8]) -> Result<(), AtomicError> {
        apply(self.datatype, self.op, values, self.operands, self.compare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(datatype: DataType, op: Op, kind: Kind, count: u32) -> header::Atomic {
        header::Atomic {
            addr: 0,
            key: 1,
            device_key: false,
            datatype: datatype as u8,
            op: op as u8,
            form: kind as u8,
            count,
        }
    }

    #[test]
    fn an_atomic_sum_is_applied_to_each_element() {
        let asks = asks(DataType::Uint16, Op::Sum, Kind::Fetch, 2);
        let operands = [1u16, 2].map(u16::to_ne_bytes).concat();
        let request = Request::read(&asks, &operands).unwrap();
        assert!(request.fetches() && !request.reads_only());
        assert_eq!(request.len(), 4);
        let mut values = [10u16, 20].map(u16::to_ne_bytes).concat();
        request.apply(&mut values).unwrap();
        assert_eq!(values, [11u16, 22].map(u16::to_ne_bytes).concat());
    }

    #[test]
    fn the_number_of_operands_must_match_the_operation() {
        use AtomicError::{Malformed, Unsupported};
        let good = asks(DataType::Uint64, Op::Cswap, Kind::Compare, 1);
        let error = |it: &header::Atomic, len| Request::read(it, &vec![0; len]).err();
        assert_eq!(error(&good, 16), None);
        assert_eq!(error(&good, 8), Some(Malformed));
        assert_eq!(
            error(&header::Atomic { count: 0, ..good }, 0),
            Some(Malformed)
        );
        assert_eq!(
            error(&header::Atomic { count: 513, ..good }, 16 * 513),
            Some(Malformed)
        );
        assert_eq!(
            error(&header::Atomic { form: 3, ..good }, 16),
            Some(Malformed)
        );
        let unknown = header::Atomic {
            datatype: 16,
            ..good
        };
        assert_eq!(error(&unknown, 16), Some(Unsupported));
        assert_eq!(
            error(&header::Atomic { op: 19, ..good }, 16),
            Some(Unsupported)
        );
        let read = asks(DataType::Uint64, Op::Read, Kind::Fetch, 4);
        assert_eq!(
            (error(&read, 0), error(&read, 8)),
            (None, Some(Malformed)),
            "a read takes no operands"
        );
    }
}

//! An entry of a completion queue, and its form in each format.

use crate::errno::FiError;
use crate::sys::*;
use std::ffi::c_int;

/// A completed operation. Addresses are plain numbers, and are never dereferenced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The sender, as `fi_cq_readfrom` reports it: its number in the endpoint's address vector, or the program's identifier.
    pub(crate) source: u64,
    /// The failure, if any; boxed, so that a success fits into a cache line.
    pub(crate) failure: Option<Box<Failure>>,
}

/// Why an operation failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure {
    pub(crate) error: c_int,
    /// The number of bytes that did not fit.
    pub(crate) overflow: usize,
    /// The device's explanation, as text.
    pub(crate) detail: Vec<u8>,
}

impl Entry {
    pub(crate) fn failed(self, error: FiError) -> Self {
        self.failed_with(error, 0, Vec::new())
    }

    /// Fails the entry, with the number of bytes that did not fit and an explanation.
    #[cold]
    pub(crate) fn failed_with(self, error: FiError, overflow: usize, detail: Vec<u8>) -> Self {
        let failure = Failure {
            error: error.0,
            overflow,
            detail,
        };
        Self {
            failure: Some(Box::new(failure)),
            ..self
        }
    }

    /// The entry in the longest format; the other formats are prefixes of it.
    pub(crate) fn tagged(&self) -> CqTaggedEntry {
        CqTaggedEntry {
            op_context: self.context as *mut _,
            flags: self.flags,
            len: self.len,
            buf: self.buf as *mut _,
            data: self.data,
            tag: self.tag,
        }
    }
}

/// The length of the prefix of [`CqTaggedEntry`] that a format uses.
pub(crate) const fn size_of_format(format: c_int) -> usize {
    match format {
        FI_CQ_FORMAT_CONTEXT => 8,
        FI_CQ_FORMAT_MSG => 24,
        FI_CQ_FORMAT_DATA => 40,
        _ => 48,
    }
}

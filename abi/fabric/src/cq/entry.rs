//! One entry of a completion queue, and how it is written in each format.

use crate::errno::FiError;
use crate::sys::*;
use std::ffi::c_int;

/// A completed operation. Addresses are numbers here: we never look behind them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// Where it came from, by the address vector of the endpoint.
    pub(crate) source: u64,
    /// Why it failed, if it did: apart, so that the others fit into a cache line.
    pub(crate) failure: Option<Box<Failure>>,
}

/// Why an operation failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure {
    pub(crate) error: c_int,
    /// Bytes that did not fit.
    pub(crate) overflow: usize,
    /// What the device said, for people.
    pub(crate) detail: Vec<u8>,
}

impl Entry {
    pub(crate) fn failed(self, error: FiError) -> Self {
        self.failed_with(error, 0, Vec::new())
    }

    /// With the bytes that did not fit, and what there is to say about it.
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

    /// The entry as the longest structure; the others are its beginning.
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

/// How many bytes of [`CqTaggedEntry`] an entry of a format has.
pub(crate) const fn size_of_format(format: c_int) -> usize {
    match format {
        FI_CQ_FORMAT_CONTEXT => 8,
        FI_CQ_FORMAT_MSG => 24,
        FI_CQ_FORMAT_DATA => 40,
        _ => 48,
    }
}

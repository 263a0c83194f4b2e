//! The structures and constants of libfabric's headers, as C programs were compiled against them.
//!
//! `cargo xtask bindings` generates [`layouts`] and [`consts`] from the headers of 1.17, including fields that later
//! versions appended (up to API 2.6): operation tables have their full length, and an older program reads only their
//! beginning. A structure that a program passes may be as short as in 1.17: the later fields are in separate structures
//! (`Long…`), which are read only when the version that the program requested has them. The compiler checks sizes and
//! offsets when it builds this crate, and a test checks them against the installed headers. Values of C enumerations are
//! plain integers, because a C program can store anything in them. The manual pages describe the fields. [`ext`] has the
//! structures of `fi_ext.h`.
#![allow(missing_docs)]

#[allow(non_camel_case_types)] // names of C
pub mod consts;
pub mod ext;
#[allow(non_camel_case_types)] // names of C
pub mod layouts;

pub use consts::*;
pub use ext::*;
pub use layouts::*;

/// The protocol number of this provider, outside the range that libfabric assigns.
pub const PROTO_RKEY: u32 = 1 << 31 | 0x726b;
/// Which operations an address vector set is for.
pub const FI_COLLECTIVE_SETS: u64 = FI_BARRIER_SET
    | FI_BROADCAST_SET
    | FI_ALLTOALL_SET
    | FI_ALLREDUCE_SET
    | FI_ALLGATHER_SET
    | FI_REDUCE_SCATTER_SET
    | FI_REDUCE_SET
    | FI_SCATTER_SET
    | FI_GATHER_SET;

/// `FI_VERSION`.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

impl Fid {
    pub fn new(fclass: usize, context: *mut std::ffi::c_void, ops: &'static Ops) -> Self {
        Self {
            fclass,
            context,
            ops,
        }
    }
}

impl DeferredLists {
    pub const NONE: Self = Self {
        msg_iov: std::ptr::null(),
        desc: std::ptr::null_mut(),
        iov_count: 0,
    };
}

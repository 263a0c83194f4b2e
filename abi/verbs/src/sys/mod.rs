//! The structures and constants of `infiniband/verbs.h`, as C programs were compiled against them.
//!
//! `cargo xtask bindings` generates [`layouts`] and [`consts`] from the headers of rdma-core 44, with the fields that
//! rdma-core 65 added at the front of [`VerbsContext`] and at the end of [`QpEx`] and [`PortAttr`]. The compiler checks sizes and
//! offsets. Type names are the header's in Rust's spelling; constants lack `IBV_`; field names are unchanged. Values of C
//! enumerations are plain integers, because a C program can store anything in them.

#![allow(missing_docs)] // the names are the documentation: infiniband/verbs.h

#[allow(non_camel_case_types)] // names of C
pub mod consts;
#[allow(non_camel_case_types, non_snake_case)] // names of C
pub mod layouts;

pub use consts::*;
pub use layouts::*;

/// `pthread_mutex_t`, which we never lock; all zeros is an unlocked one.
pub type Mutex = [u64; 5];
/// `pthread_cond_t`; all zeros is one without waiters.
pub type Cond = [u64; 6];

/// `union ibv_gid`: 16 bytes that identify a port.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

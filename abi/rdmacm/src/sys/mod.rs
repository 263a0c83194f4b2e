//! The structures and constants of `rdma/rdma_cma.h`, as C programs were compiled against them.
//!
//! `cargo xtask bindings` generates [`layouts`] and [`consts`] from the headers of rdma-core 44. The compiler checks sizes and
//! offsets. Type names are the header's in Rust's spelling, without `rdma_`; constants lack `RDMA_`; field names are unchanged. The
//! structures of verbs come from `rkey-verbs`.

#![allow(missing_docs)] // the names are the documentation: rdma/rdma_cma.h

#[allow(non_camel_case_types)] // names of C
pub mod consts;
#[allow(non_camel_case_types, non_snake_case)] // names of C
pub mod layouts;

pub use consts::*;
pub use layouts::*;

pub use ibverbs::sys::{
    AhAttr, CompChannel, Context, Cq, Ece, Gid, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx,
    SaPathRec, Srq, SrqInitAttr, SrqInitAttrEx, ibv_qp_type,
};

//! The structures and numbers of `rdma/rdma_cma.h`, as C programs were compiled against them.
//!
//! `cargo xtask bindings` generates [`layouts`] and [`consts`] from the headers of rdma-core 44. Sizes and offsets are checked
//! when this crate is compiled. Types have the header's names in Rust's spelling without `rdma_`, fields have its names, and
//! constants its names without `RDMA_`. Structures of verbs are those of `rkey-verbs`.

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

//! What is read from completion and event queues, and what these are opened with.

use super::info::Info;
use super::layout;
use super::objects::Fid;
use std::ffi::{c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}
layout!(CqTaggedEntry, 48);

/// As of 1.17.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}
layout!(CqErrEntry, 80, olen @ 48, err @ 56, err_data @ 64);

/// With the field of 1.20.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LongCqErrEntry {
    pub known: CqErrEntry,
    pub src_addr: u64,
}
layout!(LongCqErrEntry, 88, src_addr @ 80);

/// As of 1.17; the field that came later is not used.
#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}
layout!(CqAttr, 40);

/// As of 1.17; the field that came later is not used.
#[repr(C)]
pub struct CntrAttr {
    pub events: c_int,
    pub wait_obj: c_int,
    pub wait_set: *mut c_void,
    pub flags: u64,
}
layout!(CntrAttr, 24);

#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}
layout!(EqAttr, 32);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EqEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
}
layout!(EqEntry, 24);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EqErrEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}
layout!(EqErrEntry, 48);

/// Connection data follows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EqCmEntry {
    pub fid: *mut Fid,
    pub info: *mut Info,
}
layout!(EqCmEntry, 16);

#[repr(C)]
pub struct AvAttr {
    pub av_type: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const std::ffi::c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}
layout!(AvAttr, 48);

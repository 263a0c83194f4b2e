//! What the calls about address vector sets and collective operations pass.

use super::layout;
use super::objects::FidAvSet;
use super::transfer::{AtomicAttr, Ioc};
use std::ffi::{c_int, c_void};

#[repr(C)]
pub struct AvSetAttr {
    pub count: usize,
    pub start_addr: u64,
    pub end_addr: u64,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}
layout!(AvSetAttr, 56);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CollectiveAttr {
    pub op: c_int,
    pub datatype: c_int,
    pub datatype_attr: AtomicAttr,
    pub max_members: usize,
    pub mode: u64,
}
layout!(CollectiveAttr, 40, datatype_attr @ 8, max_members @ 24);

/// The address of `fi_join` with `FI_COLLECTIVE`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CollectiveAddr {
    pub set: *const FidAvSet,
    pub coll_addr: u64,
}
layout!(CollectiveAddr, 16);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MsgCollective {
    pub msg_iov: *const Ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub coll_addr: u64,
    pub root_addr: u64,
    pub coll: c_int,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
}
layout!(MsgCollective, 64, coll @ 40, context @ 56);

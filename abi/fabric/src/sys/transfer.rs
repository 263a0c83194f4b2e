//! What data transfers pass.

use super::layout;
use libc::iovec;
use std::ffi::{c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}
layout!(Msg, 48);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MsgTagged {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}
layout!(MsgTagged, 64);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}
layout!(RmaIov, 24);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}
layout!(RmaIoc, 24);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ioc {
    pub addr: *mut c_void,
    pub count: usize,
}
layout!(Ioc, 16);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MsgRma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}
layout!(MsgRma, 64);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MsgAtomic {
    pub msg_iov: *const Ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIoc,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
    pub data: u64,
}
layout!(MsgAtomic, 72, datatype @ 48, context @ 56);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}
layout!(AtomicAttr, 16);

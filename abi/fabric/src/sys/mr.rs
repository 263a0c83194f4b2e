//! What registration passes.

use super::layout;
use super::objects::FidAv;
use libc::iovec;
use std::ffi::{c_int, c_void};

/// As of 1.17.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrAttr {
    /// With `FI_MR_DMABUF`: a `MrDmabuf`.
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    pub device: u64,
}
layout!(MrAttr, 80, requested_key @ 32, iface @ 64, device @ 72);

/// The fields that came after 1.17: they are there only for programs that are new enough.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LongMrAttr {
    pub known: MrAttr,
    pub hmem_data: *mut c_void,
    pub page_size: usize,
    pub base_mr: *const c_void,
    pub sub_mr_cnt: usize,
}
layout!(LongMrAttr, 112, hmem_data @ 80, page_size @ 88, base_mr @ 96);

/// `struct fi_mr_dmabuf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrDmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}
layout!(MrDmabuf, 32, len @ 16);

/// `struct fi_mr_auth_key`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrAuthKey {
    pub av: *mut FidAv,
    pub src_addr: u64,
}
layout!(MrAuthKey, 16);

/// The beginning of `struct fi_mr_modify`, as far as a refresh uses it.
#[repr(C)]
pub struct MrModify {
    pub flags: u64,
    pub mr_iov: *const iovec,
    pub iov_count: usize,
}
layout!(MrModify, 24);

/// `struct fi_mr_raw_attr`.
#[repr(C)]
pub struct MrRawAttr {
    pub flags: u64,
    pub base_addr: *mut u64,
    pub raw_key: *mut u8,
    pub key_size: *mut usize,
}
layout!(MrRawAttr, 32);

/// `struct fi_mr_map_raw`.
#[repr(C)]
pub struct MrMapRaw {
    pub flags: u64,
    pub base_addr: u64,
    pub raw_key: *mut u8,
    pub key_size: usize,
    pub key: *mut u64,
}
layout!(MrMapRaw, 40);

//! The objects whose addresses a program holds.

use super::layout;
use super::ops::*;
use std::ffi::c_void;

#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const Ops,
}
layout!(Fid, 24, ops @ 16);

impl Fid {
    pub fn new(fclass: usize, context: *mut c_void, ops: &'static Ops) -> Self {
        Self {
            fclass,
            context,
            ops,
        }
    }
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const OpsFabric,
    /// Written by libfabric's core after the fabric was opened.
    pub api_version: u32,
}
layout!(FidFabric, 40, api_version @ 32);

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const OpsDomain,
    pub mr: *const OpsMr,
}
layout!(FidDomain, 40);

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const OpsEp,
    pub cm: *const OpsCm,
    pub msg: *const OpsMsg,
    pub rma: *const OpsRma,
    pub tagged: *const OpsTagged,
    pub atomic: *const OpsAtomic,
    pub collective: *const OpsCollective,
}
layout!(FidEp, 80);

#[repr(C)]
pub struct FidPep {
    pub fid: Fid,
    pub ops: *const OpsEp,
    pub cm: *const OpsCm,
}
layout!(FidPep, 40);

/// A shared transmit context.
#[repr(C)]
pub struct FidStx {
    pub fid: Fid,
    pub ops: *const OpsEp,
}
layout!(FidStx, 32, ops @ 24);

/// What `fi_alias` passes.
#[repr(C)]
pub struct Alias {
    pub fid: *mut *mut Fid,
    pub flags: u64,
}
layout!(Alias, 16, flags @ 8);

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const OpsAv,
}
layout!(FidAv, 32);

#[repr(C)]
pub struct FidAvSet {
    pub fid: Fid,
    pub ops: *const OpsAvSet,
}
layout!(FidAvSet, 32);

/// A multicast group, or a collective one.
#[repr(C)]
pub struct FidMc {
    pub fid: Fid,
    pub fi_addr: u64,
}
layout!(FidMc, 32, fi_addr @ 24);

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}
layout!(FidMr, 40, key @ 32);

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: *const OpsEq,
}
layout!(FidEq, 32);

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *const OpsCq,
}
layout!(FidCq, 32);

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: *const OpsCntr,
}
layout!(FidCntr, 32);

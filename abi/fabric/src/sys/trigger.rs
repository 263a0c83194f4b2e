//! Triggered operations and deferred work.

use super::layout;
use super::objects::{FidCntr, FidEp};
use super::transfer::{Ioc, Msg, MsgAtomic, MsgRma, MsgTagged};
use std::ffi::{c_int, c_void};

/// With the only kind of trigger that there is here.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TriggeredContext {
    pub event_type: c_int,
    pub cntr: *mut FidCntr,
    pub threshold: usize,
    pub internal: usize,
}
layout!(TriggeredContext, 32, cntr @ 8, threshold @ 16);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredMsg {
    pub ep: *mut FidEp,
    pub msg: Msg,
    pub flags: u64,
}
layout!(DeferredMsg, 64);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredTagged {
    pub ep: *mut FidEp,
    pub msg: MsgTagged,
    pub flags: u64,
}
layout!(DeferredTagged, 80);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredRma {
    pub ep: *mut FidEp,
    pub msg: MsgRma,
    pub flags: u64,
}
layout!(DeferredRma, 80);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredAtomic {
    pub ep: *mut FidEp,
    pub msg: MsgAtomic,
    pub flags: u64,
}
layout!(DeferredAtomic, 88);

/// Operands of a comparison, or places for results.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredLists {
    pub msg_iov: *const Ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
}
layout!(DeferredLists, 24);

impl DeferredLists {
    pub const NONE: Self = Self {
        msg_iov: std::ptr::null(),
        desc: std::ptr::null_mut(),
        iov_count: 0,
    };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredFetch {
    pub ep: *mut FidEp,
    pub msg: MsgAtomic,
    pub fetch: DeferredLists,
    pub flags: u64,
}
layout!(DeferredFetch, 112);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredCompare {
    pub ep: *mut FidEp,
    pub msg: MsgAtomic,
    pub fetch: DeferredLists,
    pub compare: DeferredLists,
    pub flags: u64,
}
layout!(DeferredCompare, 136);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredCount {
    pub cntr: *mut FidCntr,
    pub value: u64,
}
layout!(DeferredCount, 16);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeferredWork {
    pub context: [*mut c_void; 8],
    pub threshold: u64,
    pub triggering_cntr: *mut FidCntr,
    pub completion_cntr: *mut FidCntr,
    pub op_type: c_int,
    /// The structure of the operation.
    pub op: *const c_void,
}
layout!(DeferredWork, 104, threshold @ 64, op_type @ 88, op @ 96);

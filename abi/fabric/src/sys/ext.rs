//! Structures of `fi_ext.h`: a monitor that a program passes to the registration cache.

use super::Fid;
use std::ffi::{c_int, c_void};

/// `struct fi_ops_mem_monitor`: the program's functions, which the cache calls.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpsMemMonitor {
    pub size: usize,
    pub start: Option<unsafe extern "C" fn(monitor: *mut FidMemMonitor) -> c_int>,
    pub stop: Option<unsafe extern "C" fn(monitor: *mut FidMemMonitor)>,
    pub subscribe: Option<
        unsafe extern "C" fn(monitor: *mut FidMemMonitor, addr: *const c_void, len: usize) -> c_int,
    >,
    pub unsubscribe:
        Option<unsafe extern "C" fn(monitor: *mut FidMemMonitor, addr: *const c_void, len: usize)>,
    pub valid: Option<
        unsafe extern "C" fn(monitor: *mut FidMemMonitor, addr: *const c_void, len: usize) -> bool,
    >,
}
const _: () = assert!(size_of::<OpsMemMonitor>() == 48);

/// `struct fi_ops_mem_notify`: the cache's function, which the program calls.
#[repr(C)]
pub struct OpsMemNotify {
    pub size: usize,
    pub notify: unsafe extern "C" fn(monitor: *mut FidMemMonitor, addr: *const c_void, len: usize),
}
const _: () = assert!(size_of::<OpsMemNotify>() == 16);

/// `struct fid_mem_monitor`, in memory of the program.
#[repr(C)]
pub struct FidMemMonitor {
    pub fid: Fid,
    pub export_ops: *const OpsMemMonitor,
    pub import_ops: *const OpsMemNotify,
}
const _: () = assert!(size_of::<FidMemMonitor>() == 40);

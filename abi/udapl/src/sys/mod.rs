//! The structures and numbers of `dat2/udat.h` and `dat2/dat_ib_extensions.h`, against which C programs and `libdat2.so.2`
//! were compiled.
//!
//! `cargo xtask bindings` generates [`layouts`] and [`consts`] from the headers of Debian 12 (DAT 2.0). Sizes and offsets are
//! checked when this crate is compiled. Types have the header's names in Rust's spelling, without `DAT_` (`DAT_EP_HANDLE` is
//! [`EpHandle`]); fields have its names, and constants its names without `DAT_`. Values of C enumerations are plain integers,
//! because a C program can put anything there. The constants below are macros that bindgen cannot evaluate.

#![allow(missing_docs)] // the names are the documentation: dat2/udat.h

#[allow(non_camel_case_types)] // names of C
pub mod consts;
#[allow(non_camel_case_types, non_snake_case)] // names of C
pub mod layouts;

pub use consts::*;
pub use layouts::*;

use std::ffi::c_void;

/// `va_list` on x86-64: where the arguments of a call with `...` are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VaListTag {
    /// Offset of the next integer in `reg_save_area`; 48 once all six registers are used up.
    pub gp_offset: u32,
    pub fp_offset: u32,
    /// The next argument on the stack.
    pub overflow_arg_area: *mut c_void,
    pub reg_save_area: *mut c_void,
}

/// Waits without a limit.
pub const TIMEOUT_INFINITE: Timeout = u32::MAX;
pub const WATERMARK_INFINITE: Count = -1;
pub const HW_DEFAULT: Count = WATERMARK_INFINITE;
pub const SRQ_LW_DEFAULT: Count = 0;
/// An attribute whose value the provider does not know.
pub const VALUE_UNKNOWN: Count = -2;
/// Passed instead of an async EVD if another open instance of the IA has one.
pub const EVD_ASYNC_EXISTS: usize = 1;
/// The handle that a query then returns.
pub const EVD_OUT_OF_SCOPE: usize = 2;
/// The state of an EP after an error.
pub const EP_STATE_ERROR: dat_ep_state = EP_STATE_DISCONNECTED;

pub const IA_FIELD_ALL: IaAttrMask = 0x3f_ffff_ffff;
pub const PROVIDER_FIELD_ALL: ProviderAttrMask = 0x7fff_ffff;
pub const EP_FIELD_IA_HANDLE: EpParamMask = 1 << 0;
pub const EP_FIELD_EP_STATE: EpParamMask = 1 << 1;
pub const EP_FIELD_COMM: EpParamMask = 1 << 2;
pub const EP_FIELD_LOCAL_IA_ADDRESS_PTR: EpParamMask = 1 << 3;
pub const EP_FIELD_LOCAL_PORT_QUAL: EpParamMask = 1 << 4;
pub const EP_FIELD_REMOTE_IA_ADDRESS_PTR: EpParamMask = 1 << 5;
pub const EP_FIELD_REMOTE_PORT_QUAL: EpParamMask = 1 << 6;
pub const EP_FIELD_PZ_HANDLE: EpParamMask = 1 << 7;
pub const EP_FIELD_RECV_EVD_HANDLE: EpParamMask = 1 << 8;
pub const EP_FIELD_REQUEST_EVD_HANDLE: EpParamMask = 1 << 9;
pub const EP_FIELD_CONNECT_EVD_HANDLE: EpParamMask = 1 << 10;
pub const EP_FIELD_SRQ_HANDLE: EpParamMask = 1 << 11;
pub const EP_FIELD_EP_ATTR_SERVICE_TYPE: EpParamMask = 1 << 12;
pub const EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE: EpParamMask = 1 << 13;
pub const EP_FIELD_EP_ATTR_MAX_RDMA_SIZE: EpParamMask = 1 << 14;
pub const EP_FIELD_EP_ATTR_QOS: EpParamMask = 1 << 15;
pub const EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS: EpParamMask = 1 << 16;
pub const EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS: EpParamMask = 1 << 17;
pub const EP_FIELD_EP_ATTR_MAX_RECV_DTOS: EpParamMask = 1 << 18;
pub const EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS: EpParamMask = 1 << 19;
pub const EP_FIELD_EP_ATTR_MAX_RECV_IOV: EpParamMask = 1 << 20;
pub const EP_FIELD_EP_ATTR_MAX_REQUEST_IOV: EpParamMask = 1 << 21;
pub const EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN: EpParamMask = 1 << 22;
pub const EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT: EpParamMask = 1 << 23;
pub const EP_FIELD_EP_ATTR_SRQ_SOFT_HW: EpParamMask = 1 << 24;
pub const EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV: EpParamMask = 1 << 25;
pub const EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV: EpParamMask = 1 << 26;
pub const EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR: EpParamMask = 1 << 27;
pub const EP_FIELD_EP_ATTR_TRANSPORT_SPECIFIC_ATTR: EpParamMask = 1 << 28;
pub const EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR: EpParamMask = 1 << 29;
pub const EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR: EpParamMask = 1 << 30;
pub const EP_FIELD_EP_ATTR_ALL: EpParamMask = 0x7fff_f000;
pub const EP_FIELD_ALL: EpParamMask = 0x7fff_ffff;

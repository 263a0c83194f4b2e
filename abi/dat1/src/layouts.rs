//! The structures of DAT 1.2 (`dat/udat.h`) that DAT 2.0 changed. All others, and all other flags, states and event numbers,
//! are those of [`daplrkey::sys`].
//!
//! Debian has no headers for DAT 1.2, so the tests declare what they need.

#![allow(missing_docs)] // the names are the documentation: dat/udat.h of DAT 1.2

use daplrkey::sys::{
    ConnQual, Context, Count, CrHandle, DtoCookie, EpHandle, EvdHandle, Handle, IaAddressPtr,
    IaHandle, LmrContext, NamedAttr, OsWaitProxyAgent, PortQual, PzHandle, RegionDescription,
    RmrContext, RmrHandle, SpHandle, SrqHandle, Vaddr, Vlen, dat_boolean, dat_completion_flags,
    dat_dto_completion_status, dat_ep_creator_for_psp, dat_ep_state, dat_event_number,
    dat_iov_ownership, dat_mem_priv_flags, dat_mem_type, dat_pz_support, dat_qos, dat_service_type,
    dat_srq_state,
};
use std::ffi::c_char;

/// A segment of local memory: 24 bytes, where DAT 2.0 has 16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LmrTriplet {
    pub lmr_context: LmrContext,
    pub pad: u32,
    pub virtual_address: Vaddr,
    pub segment_length: Vlen,
}
const _: () = assert!(size_of::<LmrTriplet>() == 24);

/// Remote memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RmrTriplet {
    pub rmr_context: RmrContext,
    pub pad: u32,
    pub target_address: Vaddr,
    pub segment_length: Vlen,
}
const _: () = assert!(size_of::<RmrTriplet>() == 24);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmrParam {
    pub ia_handle: IaHandle,
    pub pz_handle: PzHandle,
    pub lmr_triplet: LmrTriplet,
    pub mem_priv: dat_mem_priv_flags,
    pub rmr_context: RmrContext,
}
const _: () = assert!(size_of::<RmrParam>() == 48);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct LmrParam {
    pub ia_handle: IaHandle,
    pub mem_type: dat_mem_type,
    pub region_desc: RegionDescription,
    pub length: Vlen,
    pub pz_handle: PzHandle,
    pub mem_priv: dat_mem_priv_flags,
    pub lmr_context: LmrContext,
    pub rmr_context: RmrContext,
    pub registered_size: Vlen,
    pub registered_address: Vaddr,
}
const _: () = assert!(size_of::<LmrParam>() == 80);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct EpAttr {
    pub service_type: dat_service_type,
    pub max_message_size: Vlen,
    pub max_rdma_size: Vlen,
    pub qos: dat_qos,
    pub recv_completion_flags: dat_completion_flags,
    pub request_completion_flags: dat_completion_flags,
    pub max_recv_dtos: Count,
    pub max_request_dtos: Count,
    pub max_recv_iov: Count,
    pub max_request_iov: Count,
    pub max_rdma_read_in: Count,
    pub max_rdma_read_out: Count,
    pub srq_soft_hw: Count,
    pub max_rdma_read_iov: Count,
    pub max_rdma_write_iov: Count,
    pub ep_transport_specific_count: Count,
    pub ep_transport_specific: *mut NamedAttr,
    pub ep_provider_specific_count: Count,
    pub ep_provider_specific: *mut NamedAttr,
}
const _: () = assert!(size_of::<EpAttr>() == 104);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct EpParam {
    pub ia_handle: IaHandle,
    pub ep_state: dat_ep_state,
    pub local_ia_address_ptr: IaAddressPtr,
    pub local_port_qual: PortQual,
    pub remote_ia_address_ptr: IaAddressPtr,
    pub remote_port_qual: PortQual,
    pub pz_handle: PzHandle,
    pub recv_evd_handle: EvdHandle,
    pub request_evd_handle: EvdHandle,
    pub connect_evd_handle: EvdHandle,
    pub srq_handle: SrqHandle,
    pub ep_attr: EpAttr,
}
const _: () = assert!(size_of::<EpParam>() == 192);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SrqParam {
    pub ia_handle: IaHandle,
    pub srq_state: dat_srq_state,
    pub pz_handle: PzHandle,
    pub max_recv_dtos: Count,
    pub max_recv_iov: Count,
    pub low_watermark: Count,
    pub available_dto_count: Count,
    pub outstanding_dto_count: Count,
}
const _: () = assert!(size_of::<SrqParam>() == 48);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CnoParam {
    pub ia_handle: IaHandle,
    pub agent: OsWaitProxyAgent,
}
const _: () = assert!(size_of::<CnoParam>() == 24);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DtoCompletion {
    pub ep_handle: EpHandle,
    pub user_cookie: DtoCookie,
    pub status: dat_dto_completion_status,
    pub transfered_length: Vlen,
}
const _: () = assert!(size_of::<DtoCompletion>() == 32);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmrBindCompletion {
    pub rmr_handle: RmrHandle,
    pub user_cookie: Context,
    pub status: dat_dto_completion_status,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CrArrival {
    pub sp_handle: SpHandle,
    pub local_ia_address_ptr: IaAddressPtr,
    pub conn_qual: ConnQual,
    pub cr_handle: CrHandle,
}
const _: () = assert!(size_of::<CrArrival>() == 32);

/// The data of an event. Only the members that DAT 2.0 changed have their own types here; the others begin with the same
/// fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub union EventData {
    pub dto: DtoCompletion,
    pub bind: RmrBindCompletion,
    pub arrival: CrArrival,
    pub connection: daplrkey::sys::ConnectionEventData,
    pub error: daplrkey::sys::AsynchErrorEventData,
    pub software: daplrkey::sys::SoftwareEventData,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    pub event_number: dat_event_number,
    pub evd_handle: EvdHandle,
    pub event_data: EventData,
}
const _: () = assert!(size_of::<Event>() == 48);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IaAttr {
    pub adapter_name: [c_char; 256],
    pub vendor_name: [c_char; 256],
    pub hardware_version_major: u32,
    pub hardware_version_minor: u32,
    pub firmware_version_major: u32,
    pub firmware_version_minor: u32,
    pub ia_address_ptr: IaAddressPtr,
    pub max_eps: Count,
    pub max_dto_per_ep: Count,
    pub max_rdma_read_per_ep_in: Count,
    pub max_rdma_read_per_ep_out: Count,
    pub max_evds: Count,
    pub max_evd_qlen: Count,
    pub max_iov_segments_per_dto: Count,
    pub max_lmrs: Count,
    pub max_lmr_block_size: Vlen,
    pub max_lmr_virtual_address: Vaddr,
    pub max_pzs: Count,
    pub max_message_size: Vlen,
    pub max_rdma_size: Vlen,
    pub max_rmrs: Count,
    pub max_rmr_target_address: Vaddr,
    pub max_srqs: Count,
    pub max_ep_per_srq: Count,
    pub max_recv_per_srq: Count,
    pub max_iov_segments_per_rdma_read: Count,
    pub max_iov_segments_per_rdma_write: Count,
    pub max_rdma_read_in: Count,
    pub max_rdma_read_out: Count,
    pub max_rdma_read_per_ep_in_guaranteed: dat_boolean,
    pub max_rdma_read_per_ep_out_guaranteed: dat_boolean,
    pub num_transport_attr: Count,
    pub transport_attr: *mut NamedAttr,
    pub num_vendor_attr: Count,
    pub vendor_attr: *mut NamedAttr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProviderAttr {
    pub provider_name: [c_char; 256],
    pub provider_version_major: u32,
    pub provider_version_minor: u32,
    pub dapl_version_major: u32,
    pub dapl_version_minor: u32,
    pub lmr_mem_types_supported: dat_mem_type,
    pub iov_ownership_on_return: dat_iov_ownership,
    pub dat_qos_supported: dat_qos,
    pub completion_flags_supported: dat_completion_flags,
    pub is_thread_safe: dat_boolean,
    pub max_private_data_size: Count,
    pub supports_multipath: dat_boolean,
    pub ep_creator: dat_ep_creator_for_psp,
    pub pz_support: dat_pz_support,
    pub optimal_buffer_alignment: u32,
    pub evd_stream_merging_supported: [[dat_boolean; 6]; 6],
    pub srq_supported: dat_boolean,
    pub srq_watermarks_supported: Count,
    pub srq_ep_pz_difference_supported: dat_boolean,
    pub srq_info_supported: Count,
    pub ep_recv_info_supported: Count,
    pub lmr_sync_req: dat_boolean,
    pub dto_async_return_guaranteed: dat_boolean,
    pub rdma_write_for_rdma_read_req: dat_boolean,
    pub num_provider_specific_attr: Count,
    pub provider_specific_attr: *mut NamedAttr,
}

/// `DAT_PZ_SHAREABLE` of DAT 1.2, which has `DAT_PZ_SAME` before it.
pub const PZ_SHAREABLE: dat_pz_support = 2;
/// States of an SRQ, in a different order from DAT 2.0.
pub const SRQ_STATE_OPERATIONAL: dat_srq_state = 0;
pub const SRQ_STATE_ERROR: dat_srq_state = 1;
/// The return code type that DAT 2.0 moved to another number.
pub const NOT_IMPLEMENTED: u32 = 0x0fff_0000;
/// `DAT_HANDLE_NULL`: no object.
pub const NULL: Handle = std::ptr::null_mut();

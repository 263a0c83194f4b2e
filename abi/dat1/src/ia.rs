//! Opening, closing and querying adapters.
//!
//! There is no registry: a program opens `rkey-lo`, or `rkey-` followed by the name of another interface with an IPv4
//! address.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::code::{bad_argument, error, to_dat1_code};
use crate::layouts::{IaAttr, PZ_SHAREABLE, ProviderAttr};
use crate::memory::forget_all;
use crate::provider;
use crate::table::call_provider;
use daplrkey::sys::{
    self, Count, EvdHandle, IaAttrMask, IaHandle, NamePtr, ProviderAttrMask, ProviderInfo, Return,
    SUCCESS, dat_boolean, dat_close_flags,
};
use rkey_kit::argument;
use rkey_kit::dat_conf::{adapter, interfaces};
use rkey_kit::interfaces::addresses;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

/// The version of DAT that this library implements.
const MAJOR: u32 = 1;
const MINORS: std::ops::RangeInclusive<u32> = 1..=2;
/// All attributes of an IA, and of a provider, in DAT 1.2.
const IA_FIELDS: IaAttrMask = 0x7_ffff_ffff;
const PROVIDER_FIELDS: ProviderAttrMask = 0x3ff_ffff;

/// `dat_ia_openv`, which the macro `dat_ia_open` calls.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_openv(
    name: NamePtr,
    async_len: Count,
    async_evd: *mut EvdHandle,
    ia: *mut IaHandle,
    major: u32,
    minor: u32,
    _thread_safe: dat_boolean,
) -> Return {
    if name.is_null() {
        return bad_argument(1);
    }
    let missing = |why| error(sys::PROVIDER_NOT_FOUND, why);
    if major != MAJOR {
        return missing(sys::MAJOR_NOT_FOUND);
    }
    if !MINORS.contains(&minor) {
        return missing(sys::MINOR_NOT_FOUND);
    }
    // SAFETY: the caller promises a C string.
    let wanted = unsafe { CStr::from_ptr(name) };
    let addresses = addresses();
    let is_wanted = |interface: &&str| adapter(interface).as_bytes() == wanted.to_bytes();
    let Some(interface) = interfaces(&addresses).into_iter().find(is_wanted) else {
        return missing(sys::NAME_NOT_REGISTERED);
    };
    match provider::table(wanted, interface).and_then(|table| table.ia_open_func) {
        // SAFETY: the same arguments; the caller promises what they point to.
        Some(open) => to_dat1_code(unsafe { open(name, async_len, async_evd, ia) }),
        None => missing(sys::NAME_NOT_REGISTERED),
    }
}

/// `dat_ia_close`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_close(ia: IaHandle, flags: dat_close_flags) -> Return {
    let code = call_provider!(ia_close_func, INVALID_HANDLE_IA, ia, flags);
    if code == SUCCESS {
        forget_all(ia);
    }
    to_dat1_code(code)
}

/// `dat_ia_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_query(
    ia: IaHandle,
    async_evd: *mut EvdHandle,
    ia_mask: IaAttrMask,
    ia_attr: *mut IaAttr,
    provider_mask: ProviderAttrMask,
    provider_attr: *mut ProviderAttr,
) -> Return {
    if ia_mask & !IA_FIELDS != 0 {
        return bad_argument(3);
    }
    if provider_mask & !PROVIDER_FIELDS != 0 {
        return bad_argument(5);
    }
    // SAFETY: all zeros is a value of these structures, which have no references.
    let (mut of_ia, mut of_provider): (sys::IaAttr, sys::ProviderAttr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let all = |mask, all| if mask == 0 { 0 } else { all };
    let code = call_provider!(
        ia_query_func,
        INVALID_HANDLE_IA,
        ia,
        async_evd,
        all(ia_mask, sys::IA_FIELD_ALL),
        if ia_mask == 0 {
            null_mut()
        } else {
            &raw mut of_ia
        },
        all(provider_mask, sys::PROVIDER_FIELD_ALL),
        if provider_mask == 0 {
            null_mut()
        } else {
            &raw mut of_provider
        }
    );
    if code != SUCCESS {
        return to_dat1_code(code);
    }
    // SAFETY: the caller promises room for everything that it asks for.
    unsafe {
        if ia_mask != 0 && argument::store(ia_attr, ia_attributes(&of_ia)).is_err() {
            return bad_argument(4);
        }
        let value = provider_attributes(&of_provider);
        if provider_mask != 0 && argument::store(provider_attr, value).is_err() {
            return bad_argument(6);
        }
    }
    SUCCESS
}

fn ia_attributes(attr: &sys::IaAttr) -> IaAttr {
    IaAttr {
        adapter_name: attr.adapter_name,
        vendor_name: attr.vendor_name,
        hardware_version_major: attr.hardware_version_major,
        hardware_version_minor: attr.hardware_version_minor,
        firmware_version_major: attr.firmware_version_major,
        firmware_version_minor: attr.firmware_version_minor,
        ia_address_ptr: attr.ia_address_ptr,
        max_eps: attr.max_eps,
        max_dto_per_ep: attr.max_dto_per_ep,
        max_rdma_read_per_ep_in: attr.max_rdma_read_per_ep_in,
        max_rdma_read_per_ep_out: attr.max_rdma_read_per_ep_out,
        max_evds: attr.max_evds,
        max_evd_qlen: attr.max_evd_qlen,
        max_iov_segments_per_dto: attr.max_iov_segments_per_dto,
        max_lmrs: attr.max_lmrs,
        max_lmr_block_size: attr.max_lmr_block_size.into(),
        max_lmr_virtual_address: attr.max_lmr_virtual_address,
        max_pzs: attr.max_pzs,
        max_message_size: attr.max_message_size.into(),
        max_rdma_size: attr.max_rdma_size.into(),
        max_rmrs: attr.max_rmrs,
        max_rmr_target_address: attr.max_rmr_target_address,
        max_srqs: attr.max_srqs,
        max_ep_per_srq: attr.max_ep_per_srq,
        max_recv_per_srq: attr.max_recv_per_srq,
        max_iov_segments_per_rdma_read: attr.max_iov_segments_per_rdma_read,
        max_iov_segments_per_rdma_write: attr.max_iov_segments_per_rdma_write,
        max_rdma_read_in: attr.max_rdma_read_in,
        max_rdma_read_out: attr.max_rdma_read_out,
        max_rdma_read_per_ep_in_guaranteed: attr.max_rdma_read_per_ep_in_guaranteed,
        max_rdma_read_per_ep_out_guaranteed: attr.max_rdma_read_per_ep_out_guaranteed,
        num_transport_attr: attr.num_transport_attr,
        transport_attr: attr.transport_attr,
        num_vendor_attr: attr.num_vendor_attr,
        vendor_attr: attr.vendor_attr,
    }
}

fn provider_attributes(attr: &sys::ProviderAttr) -> ProviderAttr {
    ProviderAttr {
        provider_name: attr.provider_name,
        provider_version_major: attr.provider_version_major,
        provider_version_minor: attr.provider_version_minor,
        dapl_version_major: MAJOR,
        dapl_version_minor: *MINORS.end(),
        lmr_mem_types_supported: attr.lmr_mem_types_supported,
        iov_ownership_on_return: attr.iov_ownership_on_return,
        dat_qos_supported: attr.dat_qos_supported,
        completion_flags_supported: attr.completion_flags_supported,
        is_thread_safe: attr.is_thread_safe,
        max_private_data_size: attr.max_private_data_size,
        supports_multipath: attr.supports_multipath,
        ep_creator: attr.ep_creator,
        pz_support: match attr.pz_support {
            sys::PZ_SHAREABLE => PZ_SHAREABLE,
            other => other,
        },
        optimal_buffer_alignment: attr.optimal_buffer_alignment,
        evd_stream_merging_supported: attr.evd_stream_merging_supported,
        srq_supported: attr.srq_supported,
        srq_watermarks_supported: attr.srq_watermarks_supported,
        srq_ep_pz_difference_supported: attr.srq_ep_pz_difference_supported,
        srq_info_supported: attr.srq_info_supported,
        ep_recv_info_supported: attr.ep_recv_info_supported,
        lmr_sync_req: attr.lmr_sync_req,
        dto_async_return_guaranteed: attr.dto_async_return_guaranteed,
        rdma_write_for_rdma_read_req: attr.rdma_write_for_rdma_read_req,
        num_provider_specific_attr: attr.num_provider_specific_attr,
        provider_specific_attr: attr.provider_specific_attr,
    }
}

/// `dat_registry_list_providers`: fills in as many adapters as there is room for.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_list_providers(
    room: Count,
    returned: *mut Count,
    list: *mut *mut ProviderInfo,
) -> Return {
    let Ok(room) = usize::try_from(room) else {
        return bad_argument(1);
    };
    let addresses = addresses();
    let names = interfaces(&addresses);
    let count = names.len().min(room);
    // SAFETY: the caller promises this many addresses, each with room for a structure.
    let Ok(places) = (unsafe { argument::list(list, count) }) else {
        return bad_argument(3);
    };
    for (place, name) in places.iter().zip(&names) {
        // SAFETY: as above.
        if unsafe { argument::store(*place, info(&adapter(name))) }.is_err() {
            return bad_argument(3);
        }
    }
    // SAFETY: the caller promises room for a number.
    match unsafe { argument::store(returned, Count::try_from(count).unwrap_or(Count::MAX)) } {
        Ok(()) => SUCCESS,
        Err(_) => bad_argument(2),
    }
}

fn info(name: &str) -> ProviderInfo {
    let mut ia_name: [c_char; sys::NAME_MAX_LENGTH] = [0; sys::NAME_MAX_LENGTH];
    // The last byte stays 0 to end the string.
    for (place, byte) in ia_name
        .iter_mut()
        .zip(name.bytes().take(sys::NAME_MAX_LENGTH - 1))
    {
        *place = byte as c_char;
    }
    ProviderInfo {
        ia_name,
        dapl_version_major: MAJOR,
        dapl_version_minor: *MINORS.end(),
        is_thread_safe: sys::FALSE,
    }
}

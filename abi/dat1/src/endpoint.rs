//! EPs: their attributes and parameters.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::code::{bad_argument, to_dat1_code};
use crate::layouts::{EpAttr, EpParam};
use crate::table::call_provider;
use daplrkey::sys::{
    self, EpHandle, EpParamMask, EvdHandle, IaHandle, PzHandle, Return, SUCCESS, SrqHandle,
};
use rkey_kit::argument;

/// The first two parameters have the same bits in both versions; DAT 2.0 inserted another one after them.
const FIRST: EpParamMask = 0x3;
const SHIFTED: EpParamMask = 0x7fc;

/// Converts a mask to that of DAT 2.0; `None` if it has a bit that DAT 1.2 lacks.
fn fields(mask: EpParamMask) -> Option<EpParamMask> {
    let known = FIRST | SHIFTED | sys::EP_FIELD_EP_ATTR_ALL;
    (mask & !known == 0).then_some(mask & !SHIFTED | (mask & SHIFTED) << 1)
}

/// Converts attributes to those of DAT 2.0. Lengths of more than 32 bits become the maximum, which the provider
/// refuses.
fn to_dat2_attributes(attr: &EpAttr) -> sys::EpAttr {
    let length = |len: u64| u32::try_from(len).unwrap_or(u32::MAX);
    sys::EpAttr {
        // DAT 1.2 has no other type, and no events for datagrams. The provider refuses -1.
        service_type: match attr.service_type {
            sys::SERVICE_TYPE_RC => sys::SERVICE_TYPE_RC,
            _ => -1,
        },
        max_message_size: length(attr.max_message_size),
        max_rdma_size: length(attr.max_rdma_size),
        qos: attr.qos,
        recv_completion_flags: attr.recv_completion_flags,
        request_completion_flags: attr.request_completion_flags,
        max_recv_dtos: attr.max_recv_dtos,
        max_request_dtos: attr.max_request_dtos,
        max_recv_iov: attr.max_recv_iov,
        max_request_iov: attr.max_request_iov,
        max_rdma_read_in: attr.max_rdma_read_in,
        max_rdma_read_out: attr.max_rdma_read_out,
        srq_soft_hw: attr.srq_soft_hw,
        max_rdma_read_iov: attr.max_rdma_read_iov,
        max_rdma_write_iov: attr.max_rdma_write_iov,
        ep_transport_specific_count: attr.ep_transport_specific_count,
        ep_transport_specific: attr.ep_transport_specific,
        ep_provider_specific_count: attr.ep_provider_specific_count,
        ep_provider_specific: attr.ep_provider_specific,
    }
}

/// Converts attributes back to those of DAT 1.2.
fn to_dat1_attributes(attr: &sys::EpAttr) -> EpAttr {
    EpAttr {
        service_type: attr.service_type,
        max_message_size: attr.max_message_size.into(),
        max_rdma_size: attr.max_rdma_size.into(),
        qos: attr.qos,
        recv_completion_flags: attr.recv_completion_flags,
        request_completion_flags: attr.request_completion_flags,
        max_recv_dtos: attr.max_recv_dtos,
        max_request_dtos: attr.max_request_dtos,
        max_recv_iov: attr.max_recv_iov,
        max_request_iov: attr.max_request_iov,
        max_rdma_read_in: attr.max_rdma_read_in,
        max_rdma_read_out: attr.max_rdma_read_out,
        srq_soft_hw: attr.srq_soft_hw,
        max_rdma_read_iov: attr.max_rdma_read_iov,
        max_rdma_write_iov: attr.max_rdma_write_iov,
        ep_transport_specific_count: attr.ep_transport_specific_count,
        ep_transport_specific: attr.ep_transport_specific,
        ep_provider_specific_count: attr.ep_provider_specific_count,
        ep_provider_specific: attr.ep_provider_specific,
    }
}

/// The attributes that a program passes; `None` for a null pointer.
///
/// # Safety
/// If the pointer is not null, it points to attributes.
unsafe fn given(attr: *const EpAttr) -> Option<sys::EpAttr> {
    // SAFETY: guaranteed by the caller.
    unsafe { argument::input(attr) }
        .ok()
        .map(to_dat2_attributes)
}

/// The address of the attributes; null if there are none.
fn address(attr: Option<&sys::EpAttr>) -> *const sys::EpAttr {
    attr.map_or(std::ptr::null(), |attr| &raw const *attr)
}

/// `dat_ep_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_create(
    ia: IaHandle,
    pz: PzHandle,
    recv: EvdHandle,
    request: EvdHandle,
    connect: EvdHandle,
    attr: *const EpAttr,
    ep: *mut EpHandle,
) -> Return {
    // SAFETY: guaranteed by the caller.
    let attr = unsafe { given(attr) };
    let attr = address(attr.as_ref());
    to_dat1_code(call_provider!(
        ep_create_func,
        INVALID_HANDLE_IA,
        ia,
        pz,
        recv,
        request,
        connect,
        attr,
        ep
    ))
}

/// `dat_ep_create_with_srq`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[allow(clippy::too_many_arguments)] // of the C function
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_create_with_srq(
    ia: IaHandle,
    pz: PzHandle,
    recv: EvdHandle,
    request: EvdHandle,
    connect: EvdHandle,
    srq: SrqHandle,
    attr: *const EpAttr,
    ep: *mut EpHandle,
) -> Return {
    // SAFETY: guaranteed by the caller.
    let attr = unsafe { given(attr) };
    let attr = address(attr.as_ref());
    to_dat1_code(call_provider!(
        ep_create_with_srq_func,
        INVALID_HANDLE_IA,
        ia,
        pz,
        recv,
        request,
        connect,
        srq,
        attr,
        ep
    ))
}

/// `dat_ep_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_query(
    ep: EpHandle,
    mask: EpParamMask,
    param: *mut EpParam,
) -> Return {
    let Some(mask) = fields(mask) else {
        return bad_argument(2);
    };
    // SAFETY: all zeros is a value of this structure, which has no references.
    let mut found: sys::EpParam = unsafe { std::mem::zeroed() };
    let code = call_provider!(ep_query_func, INVALID_HANDLE_EP, ep, mask, &raw mut found);
    if code != SUCCESS {
        return to_dat1_code(code);
    }
    let value = EpParam {
        ia_handle: found.ia_handle,
        ep_state: found.ep_state,
        local_ia_address_ptr: found.local_ia_address_ptr,
        local_port_qual: found.local_port_qual,
        remote_ia_address_ptr: found.remote_ia_address_ptr,
        remote_port_qual: found.remote_port_qual,
        pz_handle: found.pz_handle,
        recv_evd_handle: found.recv_evd_handle,
        request_evd_handle: found.request_evd_handle,
        connect_evd_handle: found.connect_evd_handle,
        srq_handle: found.srq_handle,
        ep_attr: to_dat1_attributes(&found.ep_attr),
    };
    // SAFETY: the caller promises that there is room.
    match unsafe { argument::store(param, value) } {
        Ok(()) => SUCCESS,
        Err(_) => bad_argument(3),
    }
}

/// `dat_ep_modify`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_modify(
    ep: EpHandle,
    mask: EpParamMask,
    param: *const EpParam,
) -> Return {
    let Some(mask) = fields(mask) else {
        return bad_argument(2);
    };
    // SAFETY: the caller promises parameters.
    let Ok(param) = (unsafe { argument::input(param) }) else {
        return bad_argument(3);
    };
    // SAFETY: all zeros is a value of this structure, which has no references.
    let mut to: sys::EpParam = unsafe { std::mem::zeroed() };
    to.ia_handle = param.ia_handle;
    to.ep_state = param.ep_state;
    to.pz_handle = param.pz_handle;
    to.recv_evd_handle = param.recv_evd_handle;
    to.request_evd_handle = param.request_evd_handle;
    to.connect_evd_handle = param.connect_evd_handle;
    to.srq_handle = param.srq_handle;
    to.ep_attr = to_dat2_attributes(&param.ep_attr);
    to_dat1_code(call_provider!(
        ep_modify_func,
        INVALID_HANDLE_EP,
        ep,
        mask,
        &raw const to
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_datagram_service_type_becomes_an_invalid_one() {
        // SAFETY: all zeros is a value of this structure, which has no references.
        let mut asked: EpAttr = unsafe { std::mem::zeroed() };
        for (service_type, expected) in [
            (sys::SERVICE_TYPE_RC, sys::SERVICE_TYPE_RC),
            (sys::IB_SERVICE_TYPE_UD, -1),
        ] {
            asked.service_type = service_type;
            assert_eq!(to_dat2_attributes(&asked).service_type, expected);
        }
    }

    #[test]
    fn ep_parameter_masks_are_translated_to_dat_2() {
        assert_eq!(fields(0x2), Some(sys::EP_FIELD_EP_STATE));
        assert_eq!(fields(0x4), Some(sys::EP_FIELD_LOCAL_IA_ADDRESS_PTR));
        assert_eq!(fields(0x40), Some(sys::EP_FIELD_PZ_HANDLE));
        assert_eq!(fields(0x400), Some(sys::EP_FIELD_SRQ_HANDLE));
        assert_eq!(fields(0x1000), Some(sys::EP_FIELD_EP_ATTR_SERVICE_TYPE));
        let all = sys::EP_FIELD_ALL & !sys::EP_FIELD_COMM;
        assert_eq!(fields(0x7fff_f7ff), Some(all));
        assert_eq!(fields(0x800), None);
    }
}

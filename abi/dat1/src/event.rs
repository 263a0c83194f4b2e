//! Events, CNOs and SRQs.

#![allow(unsafe_code)]
// UNSAFETY: C functions; reads members of unions.

use crate::code::{bad_argument, to_dat1_code};
use crate::layouts::{
    CnoParam, CrArrival, DtoCompletion, Event, EventData, RmrBindCompletion, SRQ_STATE_ERROR,
    SRQ_STATE_OPERATIONAL, SrqParam,
};
use crate::table::call_provider;
use daplrkey::sys::{
    self, CnoHandle, Count, EvdHandle, OsWaitProxyAgent, Return, SUCCESS, SrqHandle, Timeout,
    dat_cno_param_mask, dat_srq_param_mask,
};
use rkey_kit::argument;

/// All fields of a CNO in DAT 1.2.
const CNO_FIELDS: dat_cno_param_mask = 0x3;

/// Converts an event to that of DAT 1.2.
fn back(event: &sys::Event) -> Event {
    let from = &event.event_data;
    // SAFETY: the number says which member the provider has written.
    let event_data = unsafe {
        match event.event_number {
            // DAT 1.2 has no events for extended operations, so they are reported as DTOs.
            sys::DTO_COMPLETION_EVENT | sys::IB_DTO_EVENT => {
                let dto = from.dto_completion_event_data;
                EventData {
                    dto: DtoCompletion {
                        ep_handle: dto.ep_handle,
                        user_cookie: dto.user_cookie,
                        status: dto.status,
                        transfered_length: dto.transfered_length.into(),
                    },
                }
            }
            sys::RMR_BIND_COMPLETION_EVENT => {
                let bind = from.rmr_completion_event_data;
                EventData {
                    bind: RmrBindCompletion {
                        rmr_handle: bind.rmr_handle,
                        user_cookie: bind.user_cookie,
                        status: bind.status,
                    },
                }
            }
            sys::CONNECTION_REQUEST_EVENT => {
                let request = from.cr_arrival_event_data;
                EventData {
                    arrival: CrArrival {
                        sp_handle: request.sp_handle,
                        local_ia_address_ptr: request.local_ia_address_ptr,
                        conn_qual: request.conn_qual,
                        cr_handle: request.cr_handle,
                    },
                }
            }
            sys::SOFTWARE_EVENT => EventData {
                software: from.software_event_data,
            },
            sys::CONNECTION_EVENT_ESTABLISHED..=sys::CONNECTION_EVENT_UNREACHABLE => EventData {
                connection: from.connect_event_data,
            },
            _ => EventData {
                error: from.asynch_error_event_data,
            },
        }
    };
    let event_number = match event.event_number {
        sys::IB_DTO_EVENT => sys::DTO_COMPLETION_EVENT,
        number => number,
    };
    Event {
        event_number,
        evd_handle: event.evd_handle,
        event_data,
    }
}

/// A zeroed event of DAT 2.0, to be filled in.
fn room() -> sys::Event {
    // SAFETY: all zeros is a value of this structure, which has no references.
    unsafe { std::mem::zeroed() }
}

/// `dat_evd_wait`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_wait(
    evd: EvdHandle,
    timeout: Timeout,
    threshold: Count,
    event: *mut Event,
    more: *mut Count,
) -> Return {
    if event.is_null() || !event.is_aligned() {
        return bad_argument(4);
    }
    let mut found = room();
    let code = call_provider!(
        evd_wait_func,
        INVALID_HANDLE_EVD_REQUEST,
        evd,
        timeout,
        threshold,
        &raw mut found,
        more
    );
    if code == SUCCESS {
        // SAFETY: checked above; the caller promises room.
        unsafe { event.write(back(&found)) };
    }
    to_dat1_code(code)
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_dequeue(evd: EvdHandle, event: *mut Event) -> Return {
    if event.is_null() || !event.is_aligned() {
        return bad_argument(2);
    }
    let mut found = room();
    let code = call_provider!(
        evd_dequeue_func,
        INVALID_HANDLE_EVD_REQUEST,
        evd,
        &raw mut found
    );
    if code == SUCCESS {
        // SAFETY: checked above; the caller promises room.
        unsafe { event.write(back(&found)) };
    }
    to_dat1_code(code)
}

/// `dat_evd_post_se`: posts a software event.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_post_se(evd: EvdHandle, event: *const Event) -> Return {
    // SAFETY: the caller promises an event.
    let Ok(event) = (unsafe { argument::input(event) }) else {
        return bad_argument(2);
    };
    let mut posted = room();
    posted.event_number = event.event_number;
    posted.evd_handle = event.evd_handle;
    // SAFETY: the member is a pointer, which is only copied; the provider refuses other events.
    posted.event_data.software_event_data = unsafe { event.event_data.software };
    to_dat1_code(call_provider!(
        evd_post_se_func,
        INVALID_HANDLE_EVD_REQUEST,
        evd,
        &raw const posted
    ))
}

/// `dat_cno_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cno_query(
    cno: CnoHandle,
    mask: dat_cno_param_mask,
    param: *mut CnoParam,
) -> Return {
    if mask & !CNO_FIELDS != 0 {
        return bad_argument(2);
    }
    // SAFETY: all zeros is a value of this structure, which has no references.
    let mut found: sys::CnoParam = unsafe { std::mem::zeroed() };
    let code = call_provider!(
        cno_query_func,
        INVALID_HANDLE_CNO,
        cno,
        sys::CNO_FIELD_PROXY,
        &raw mut found
    );
    if code != SUCCESS {
        return to_dat1_code(code);
    }
    let agent = match found.proxy_type {
        // SAFETY: the type says which member the provider has written.
        sys::PROXY_TYPE_AGENT => unsafe { found.proxy.agent },
        _ => OsWaitProxyAgent {
            instance_data: std::ptr::null_mut(),
            proxy_agent_func: None,
        },
    };
    let value = CnoParam {
        ia_handle: found.ia_handle,
        agent,
    };
    // SAFETY: the caller promises that there is room.
    match unsafe { argument::store(param, value) } {
        Ok(()) => SUCCESS,
        Err(_) => bad_argument(3),
    }
}

/// `dat_srq_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_srq_query(
    srq: SrqHandle,
    mask: dat_srq_param_mask,
    param: *mut SrqParam,
) -> Return {
    // SAFETY: all zeros is a value of this structure, which has no references.
    let mut found: sys::SrqParam = unsafe { std::mem::zeroed() };
    let code = call_provider!(
        srq_query_func,
        INVALID_HANDLE_SRQ,
        srq,
        mask,
        &raw mut found
    );
    if code != SUCCESS {
        return to_dat1_code(code);
    }
    let value = SrqParam {
        ia_handle: found.ia_handle,
        srq_state: match found.srq_state {
            sys::SRQ_STATE_OPERATIONAL => SRQ_STATE_OPERATIONAL,
            _ => SRQ_STATE_ERROR,
        },
        pz_handle: found.pz_handle,
        max_recv_dtos: found.max_recv_dtos,
        max_recv_iov: found.max_recv_iov,
        low_watermark: found.low_watermark,
        available_dto_count: found.available_dto_count,
        outstanding_dto_count: found.outstanding_dto_count,
    };
    // SAFETY: the caller promises that there is room.
    match unsafe { argument::store(param, value) } {
        Ok(()) => SUCCESS,
        Err(_) => bad_argument(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::without_provenance_mut;

    #[test]
    fn an_extension_completion_becomes_a_dto_completion() {
        let mut event = room();
        event.event_number = sys::IB_DTO_EVENT;
        event.event_data.dto_completion_event_data = sys::DtoCompletionEventData {
            ep_handle: without_provenance_mut(16),
            user_cookie: sys::Context { as_64: 7 },
            status: sys::DTO_ERR_FLUSHED,
            transfered_length: 9,
            operation: sys::IB_DTO_RDMA_WRITE_IMMED,
            rmr_context: 0,
        };
        let event = back(&event);
        assert_eq!(event.event_number, sys::DTO_COMPLETION_EVENT);
        // SAFETY: the number says which member is there.
        let dto = unsafe { event.event_data.dto };
        assert_eq!(dto.ep_handle.addr(), 16);
        // SAFETY: plain bits.
        assert_eq!(unsafe { dto.user_cookie.as_64 }, 7);
        assert_eq!(dto.status, sys::DTO_ERR_FLUSHED);
        assert_eq!(dto.transfered_length, 9);
    }
}

//! The provider: its function table, one for each IA name in dat.conf, and what libdat2 calls when it loads and unloads us.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and a table of them that lives as long as the process.

use crate::calls::{cno, cr, ep, evd, ext, ia, lmr, post, psp, pz, rmr, rsp, srq};
use crate::handles::entries::{Entry, find};
use crate::handles::fail::{Fail, Result, call};
use crate::handles::registry;
use crate::sys::*;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

/// The provider of an IA name, which is created if there is none. A provider that exists gets the new parameters, too.
pub fn entry(name: &CStr, parameters: String) -> &'static Entry {
    if let Some(entry) = find(name) {
        entry.set_parameters(parameters);
        return entry;
    }
    let name = name.to_owned();
    let table = table(name.as_ptr());
    Entry::add(name, parameters, table)
}

/// `dat_provider_init`: libdat2 calls it when the first IA of a name is opened.
///
/// # Safety
/// `info` is what libdat2 passes; `parameters` is null or a C string.
pub unsafe fn init(info: *const ProviderInfo, parameters: *const c_char) {
    rkey_kit::log::start();
    // SAFETY: guaranteed by the caller.
    let result = unsafe { try_init(info, parameters) };
    if let Err(fail) = result {
        tracing::error!("cannot register the provider: {fail}");
    }
}

/// # Safety
/// Same as [`init`].
unsafe fn try_init(info: *const ProviderInfo, parameters: *const c_char) -> Result {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { name_of(info)? };
    let parameters = match parameters.is_null() {
        true => String::new(),
        // SAFETY: a C string.
        false => unsafe { CStr::from_ptr(parameters) }
            .to_string_lossy()
            .into_owned(),
    };
    // SAFETY: guaranteed by the caller.
    match unsafe { registry::add(entry(&name, parameters).table(), info) } {
        true => Ok(()),
        false => Err(Fail::INTERNAL),
    }
}

/// `dat_provider_fini`: libdat2 calls it when the last IA of a name is closed.
///
/// # Safety
/// `info` is what libdat2 passes.
pub unsafe fn fini(info: *const ProviderInfo) {
    // SAFETY: guaranteed by the caller.
    if let Ok(name) = unsafe { name_of(info) }
        && let Some(entry) = find(&name)
    {
        // SAFETY: guaranteed by the caller.
        unsafe { registry::remove(entry.table(), info) };
    }
}

/// # Safety
/// Same as [`init`].
unsafe fn name_of(info: *const ProviderInfo) -> Result<CString> {
    // SAFETY: guaranteed by the caller.
    let info = unsafe { crate::handles::argument::input(1, info)? };
    let bytes: Vec<u8> = info.ia_name.iter().map(|&byte| byte as u8).collect();
    let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| Fail::argument(1))?;
    Ok(name.to_owned())
}

/// Functions that this provider does not implement. libdat2 exports none of them.
mod absent {
    use super::*;

    macro_rules! absent {
        ($($name:ident($($type:ty),*) = $call:literal;)*) => {$(
            pub(super) unsafe extern "C" fn $name($(_: $type),*) -> Return {
                call($call, || Err(Fail::NO_MODEL))
            }
        )*};
    }

    absent! {
        csp_create(IaHandle, *mut Comm, IaAddressPtr, EvdHandle, *mut CspHandle) = "dat_csp_create";
        csp_query(CspHandle, dat_csp_param_mask, *mut CspParam) = "dat_csp_query";
        csp_free(CspHandle) = "dat_csp_free";
        common_connect(EpHandle, IaAddressPtr, Timeout, Count, Pvoid) = "dat_ep_common_connect";
        rmr_create_for_ep(PzHandle, *mut RmrHandle) = "dat_rmr_create_for_ep";
        send_with_invalidate(EpHandle, Count, *mut LmrTriplet, DtoCookie, dat_completion_flags, dat_boolean, RmrContext)
            = "dat_ep_post_send_with_invalidate";
        read_to_rmr(EpHandle, *const RmrTriplet, DtoCookie, *const RmrTriplet, dat_completion_flags)
            = "dat_ep_post_rdma_read_to_rmr";
        cno_fd_create(IaHandle, *mut Fd, *mut CnoHandle) = "dat_cno_fd_create";
        cno_trigger(CnoHandle, *mut EvdHandle) = "dat_cno_trigger";
        ha_related(IaHandle, NamePtr, *mut dat_boolean) = "dat_ia_ha_related";
    }
}

/// The function table of an IA name.
#[expect(clippy::too_many_lines, reason = "a line for each call of DAT")]
fn table(device_name: *const c_char) -> Provider {
    Provider {
        device_name,
        extension: null_mut(),
        ia_open_func: Some(ia::open),
        ia_query_func: Some(ia::query),
        ia_close_func: Some(ia::close),
        set_consumer_context_func: Some(ia::set_context),
        get_consumer_context_func: Some(ia::get_context),
        get_handle_type_func: Some(ia::get_type),
        cno_create_func: Some(cno::create),
        cno_modify_agent_func: Some(cno::modify_agent),
        cno_query_func: Some(cno::query),
        cno_free_func: Some(cno::free),
        cno_wait_func: Some(cno::wait),
        cr_query_func: Some(cr::query),
        cr_accept_func: Some(cr::accept),
        cr_reject_func: Some(cr::reject),
        cr_handoff_func: Some(cr::handoff),
        evd_create_func: Some(evd::create),
        evd_query_func: Some(evd::query),
        evd_modify_cno_func: Some(evd::modify_cno),
        evd_enable_func: Some(evd::enable),
        evd_disable_func: Some(evd::disable),
        evd_wait_func: Some(evd::wait),
        evd_resize_func: Some(evd::resize),
        evd_post_se_func: Some(evd::post_se),
        evd_dequeue_func: Some(evd::dequeue),
        evd_free_func: Some(evd::free),
        ep_create_func: Some(ep::create),
        ep_query_func: Some(ep::query),
        ep_modify_func: Some(ep::modify),
        ep_connect_func: Some(ep::connect),
        ep_dup_connect_func: Some(ep::dup_connect),
        ep_disconnect_func: Some(ep::disconnect),
        ep_post_send_func: Some(post::send),
        ep_post_recv_func: Some(post::recv),
        ep_post_rdma_read_func: Some(post::rdma_read),
        ep_post_rdma_write_func: Some(post::rdma_write),
        ep_get_status_func: Some(ep::get_status),
        ep_free_func: Some(ep::free),
        lmr_create_func: Some(lmr::create),
        lmr_query_func: Some(lmr::query),
        lmr_free_func: Some(lmr::free),
        rmr_create_func: Some(rmr::create),
        rmr_query_func: Some(rmr::query),
        rmr_bind_func: Some(rmr::bind),
        rmr_free_func: Some(rmr::free),
        psp_create_func: Some(psp::create),
        psp_query_func: Some(psp::query),
        psp_free_func: Some(psp::free),
        rsp_create_func: Some(rsp::create),
        rsp_query_func: Some(rsp::query),
        rsp_free_func: Some(rsp::free),
        pz_create_func: Some(pz::create),
        pz_query_func: Some(pz::query),
        pz_free_func: Some(pz::free),
        psp_create_any_func: Some(psp::create_any),
        ep_reset_func: Some(ep::reset),
        evd_set_unwaitable_func: Some(evd::set_unwaitable),
        evd_clear_unwaitable_func: Some(evd::clear_unwaitable),
        lmr_sync_rdma_read_func: Some(lmr::sync_rdma_read),
        lmr_sync_rdma_write_func: Some(lmr::sync_rdma_write),
        ep_create_with_srq_func: Some(ep::create_with_srq),
        ep_recv_query_func: Some(ep::recv_query),
        ep_set_watermark_func: Some(ep::set_watermark),
        srq_create_func: Some(srq::create),
        srq_free_func: Some(srq::free),
        srq_post_recv_func: Some(srq::post_recv),
        srq_query_func: Some(srq::query),
        srq_resize_func: Some(srq::resize),
        srq_set_lw_func: Some(srq::set_low_watermark),
        csp_create_func: Some(absent::csp_create),
        csp_query_func: Some(absent::csp_query),
        csp_free_func: Some(absent::csp_free),
        ep_common_connect_func: Some(absent::common_connect),
        rmr_create_for_ep_func: Some(absent::rmr_create_for_ep),
        ep_post_send_with_invalidate_func: Some(absent::send_with_invalidate),
        ep_post_rdma_read_to_rmr_func: Some(absent::read_to_rmr),
        cno_fd_create_func: Some(absent::cno_fd_create),
        cno_trigger_func: Some(absent::cno_trigger),
        ia_ha_related_func: Some(absent::ha_related),
        handle_extendedop_func: Some(ext::call_extension),
    }
}

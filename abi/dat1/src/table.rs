//! How calls reach the provider, and the calls that are the same in both versions.

#![allow(unsafe_code)]
// UNSAFETY: reads the first word of handles, and calls functions of the provider.

use crate::code::error;
use daplrkey::sys::*;
use std::ffi::c_int;

/// The lowest address that an object can have.
const LOWEST: usize = 4096;

/// The function table of an object's provider. `None`: the handle is null, or cannot be an address.
///
/// # Safety
/// Any other handle must be one that a call has returned, even if it is no longer valid.
pub(crate) unsafe fn provider<'a>(handle: Handle) -> Option<&'a Provider> {
    let word = handle.cast::<*const Provider>();
    if (handle as usize) < LOWEST || !word.is_aligned() {
        return None;
    }
    // SAFETY: the first word of every handle is the address of its provider's table, which lives as long as the process. The
    // provider keeps the memory of freed objects.
    unsafe { (*word).as_ref() }
}

/// The return code for a handle that cannot be an address.
pub(crate) fn no_handle(subtype: dat_return_subtype) -> Return {
    error(INVALID_HANDLE, subtype)
}

/// Calls a function of a handle's provider; evaluates to its return code of DAT 2.0.
macro_rules! call_provider {
    ($slot:ident, $invalid:ident, $handle:expr $(, $argument:expr)*) => {
        // SAFETY: the program got the handle from us, as it promises, or the handle cannot be an address.
        match unsafe { $crate::table::provider($handle) }.and_then(|table| table.$slot) {
            // SAFETY: the arguments are those of the function; the caller promises what they point to.
            Some(function) => unsafe { function($handle $(, $argument)*) },
            None => daplrkey::sys::CLASS_ERROR | daplrkey::sys::INVALID_HANDLE | daplrkey::sys::$invalid,
        }
    };
}
pub(crate) use call_provider;

/// Forwards functions whose arguments have the same types in both versions.
macro_rules! forward {
    ($($name:ident, $slot:ident, $invalid:ident, ($handle:ident: $type:ty $(, $argument:ident: $of:ty)*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments must be valid as described in the manual page.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($handle: $type $(, $argument: $of)*) -> Return {
            // SAFETY: the program got the handle from us, as it promises, or the handle cannot be an address.
            match unsafe { provider($handle) }.and_then(|table| table.$slot) {
                // SAFETY: the same arguments; the caller promises what they point to.
                Some(function) => $crate::code::to_dat1_code(unsafe { function($handle $(, $argument)*) }),
                None => no_handle($invalid),
            }
        }
    )*};
}

forward! {
    dat_set_consumer_context, set_consumer_context_func, NO_SUBTYPE, (handle: Handle, context: Context);
    dat_get_consumer_context, get_consumer_context_func, NO_SUBTYPE, (handle: Handle, context: *mut Context);
    dat_get_handle_type, get_handle_type_func, NO_SUBTYPE, (handle: Handle, kind: *mut dat_handle_type);
    dat_cno_create, cno_create_func, INVALID_HANDLE_IA, (ia: IaHandle, agent: OsWaitProxyAgent, cno: *mut CnoHandle);
    dat_cno_modify_agent, cno_modify_agent_func, INVALID_HANDLE_CNO, (cno: CnoHandle, agent: OsWaitProxyAgent);
    dat_cno_free, cno_free_func, INVALID_HANDLE_CNO, (cno: CnoHandle);
    dat_cno_wait, cno_wait_func, INVALID_HANDLE_CNO, (cno: CnoHandle, timeout: Timeout, evd: *mut EvdHandle);
    dat_cr_query, cr_query_func, INVALID_HANDLE_CR, (cr: CrHandle, mask: dat_cr_param_mask, param: *mut CrParam);
    dat_cr_accept, cr_accept_func, INVALID_HANDLE_CR, (cr: CrHandle, ep: EpHandle, len: Count, data: Pvoid);
    dat_cr_handoff, cr_handoff_func, INVALID_HANDLE_CR, (cr: CrHandle, to: ConnQual);
    dat_evd_create, evd_create_func, INVALID_HANDLE_IA, (ia: IaHandle, len: Count, cno: CnoHandle, flags: dat_evd_flags, evd: *mut EvdHandle);
    dat_evd_query, evd_query_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle, mask: dat_evd_param_mask, param: *mut EvdParam);
    dat_evd_modify_cno, evd_modify_cno_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle, cno: CnoHandle);
    dat_evd_enable, evd_enable_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle);
    dat_evd_disable, evd_disable_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle);
    dat_evd_set_unwaitable, evd_set_unwaitable_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle);
    dat_evd_clear_unwaitable, evd_clear_unwaitable_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle);
    dat_evd_resize, evd_resize_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle, len: Count);
    dat_evd_free, evd_free_func, INVALID_HANDLE_EVD_REQUEST, (evd: EvdHandle);
    dat_ep_connect, ep_connect_func, INVALID_HANDLE_EP, (ep: EpHandle, address: IaAddressPtr, qual: ConnQual, timeout: Timeout, len: Count, data: Pvoid, qos: dat_qos, flags: dat_connect_flags);
    dat_ep_dup_connect, ep_dup_connect_func, INVALID_HANDLE_EP, (ep: EpHandle, other: EpHandle, timeout: Timeout, len: Count, data: Pvoid, qos: dat_qos);
    dat_ep_disconnect, ep_disconnect_func, INVALID_HANDLE_EP, (ep: EpHandle, flags: dat_close_flags);
    dat_ep_get_status, ep_get_status_func, INVALID_HANDLE_EP, (ep: EpHandle, state: *mut dat_ep_state, recv_idle: *mut dat_boolean, request_idle: *mut dat_boolean);
    dat_ep_free, ep_free_func, INVALID_HANDLE_EP, (ep: EpHandle);
    dat_ep_reset, ep_reset_func, INVALID_HANDLE_EP, (ep: EpHandle);
    dat_ep_recv_query, ep_recv_query_func, INVALID_HANDLE_EP, (ep: EpHandle, allocated: *mut Count, span: *mut Count);
    dat_ep_set_watermark, ep_set_watermark_func, INVALID_HANDLE_EP, (ep: EpHandle, soft: Count, hard: Count);
    dat_rmr_create, rmr_create_func, INVALID_HANDLE_PZ, (pz: PzHandle, rmr: *mut RmrHandle);
    dat_rmr_free, rmr_free_func, INVALID_HANDLE_RMR, (rmr: RmrHandle);
    dat_psp_create, psp_create_func, INVALID_HANDLE_IA, (ia: IaHandle, qual: ConnQual, evd: EvdHandle, flags: dat_psp_flags, psp: *mut PspHandle);
    dat_psp_create_any, psp_create_any_func, INVALID_HANDLE_IA, (ia: IaHandle, qual: *mut ConnQual, evd: EvdHandle, flags: dat_psp_flags, psp: *mut PspHandle);
    dat_psp_query, psp_query_func, INVALID_HANDLE_PSP, (psp: PspHandle, mask: dat_psp_param_mask, param: *mut PspParam);
    dat_psp_free, psp_free_func, INVALID_HANDLE_PSP, (psp: PspHandle);
    dat_rsp_create, rsp_create_func, INVALID_HANDLE_IA, (ia: IaHandle, qual: ConnQual, ep: EpHandle, evd: EvdHandle, rsp: *mut RspHandle);
    dat_rsp_query, rsp_query_func, INVALID_HANDLE_RSP, (rsp: RspHandle, mask: dat_rsp_param_mask, param: *mut RspParam);
    dat_rsp_free, rsp_free_func, INVALID_HANDLE_RSP, (rsp: RspHandle);
    dat_pz_create, pz_create_func, INVALID_HANDLE_IA, (ia: IaHandle, pz: *mut PzHandle);
    dat_pz_query, pz_query_func, INVALID_HANDLE_PZ, (pz: PzHandle, mask: dat_pz_param_mask, param: *mut PzParam);
    dat_pz_free, pz_free_func, INVALID_HANDLE_PZ, (pz: PzHandle);
    dat_srq_create, srq_create_func, INVALID_HANDLE_IA, (ia: IaHandle, pz: PzHandle, attr: *mut SrqAttr, srq: *mut SrqHandle);
    dat_srq_free, srq_free_func, INVALID_HANDLE_SRQ, (srq: SrqHandle);
    dat_srq_resize, srq_resize_func, INVALID_HANDLE_SRQ, (srq: SrqHandle, len: Count);
    dat_srq_set_lw, srq_set_lw_func, INVALID_HANDLE_SRQ, (srq: SrqHandle, mark: Count);
}

/// `dat_cr_reject`, which cannot carry private data in DAT 1.2.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cr_reject(cr: CrHandle) -> Return {
    const NOTHING: c_int = 0;
    crate::code::to_dat1_code(call_provider!(
        cr_reject_func,
        INVALID_HANDLE_CR,
        cr,
        NOTHING,
        std::ptr::null_mut()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::NULL;

    #[test]
    fn values_that_cannot_be_handles_are_refused() {
        for bad in [NULL, 1 as Handle, 4095 as Handle, 0x1001 as Handle] {
            // SAFETY: none of these is read.
            let codes = unsafe { [dat_ep_free(bad), dat_cr_reject(bad), dat_evd_free(bad)] };
            for code in codes {
                assert_eq!(code & TYPE_MASK, INVALID_HANDLE);
            }
        }
    }
}

//! The calls on SRQs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::calls::post::segments;
use crate::handles::argument;
use crate::handles::fail::{Fail, call};
use crate::handles::object::{find, insert, remove};
use crate::objects::ia::Ia;
use crate::objects::pz::Pz;
use crate::objects::srq::Srq;
use crate::sys::consts::*;
use crate::sys::{DtoCookie, IaHandle, LmrTriplet, PzHandle, Return, SrqAttr, SrqHandle, SrqParam};
use crate::values::event::bits;
use crate::values::limits::{MAX_DTOS, MAX_IOV};
use rkey_device::engine::RecvRequest;
use std::sync::Arc;

/// `dat_srq_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    pz: PzHandle,
    attr: *mut SrqAttr,
    srq: *mut SrqHandle,
) -> Return {
    call("dat_srq_create", || {
        // SAFETY: `find` validates the handles; the caller promises the attributes.
        let (ia, pz, attr) = unsafe {
            let ia = find::<Ia>(ia)?;
            (ia, find::<Pz>(pz)?, argument::input(3, attr.cast_const())?)
        };
        argument::room(4, srq)?;
        if !Arc::ptr_eq(pz.ia(), ia) {
            return Err(Fail::handle(INVALID_HANDLE_PZ));
        }
        let depth = argument::count(3, attr.max_recv_dtos)?;
        let segments = argument::count(3, attr.max_recv_iov)?;
        let low = argument::count(3, attr.low_watermark)?;
        if depth == 0 || depth > MAX_DTOS || segments > MAX_IOV || low > depth {
            return Err(Fail::argument(3));
        }
        let queue = ia.device.create_srq(pz.domain, depth, segments.max(1))?;
        let mut made = None;
        let handle = insert::<Srq>(ia.table, |handle| {
            let srq = Arc::new(Srq::new(pz, handle, queue, depth, segments.max(1)));
            made = Some(Arc::clone(&srq));
            Ok(srq)
        })?;
        pz.users.add();
        if let Some(srq) = made {
            ia.add_srq(&srq);
            // Set only now: the event may come at once, and must find the SRQ.
            if low > 0
                && let Err(error) = srq.queue.modify(Some(low), None)
            {
                // SAFETY: the program does not know the handle.
                unsafe { remove::<Srq>(handle as usize)? }.close();
                return Err(error.into());
            }
        }
        // SAFETY: room for a handle.
        unsafe { argument::store(4, srq, handle) }
    })
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn post_recv(
    srq: SrqHandle,
    count: Count,
    iov: *mut LmrTriplet,
    cookie: DtoCookie,
) -> Return {
    call("dat_srq_post_recv", || {
        // SAFETY: `find` validates the handle; the caller promises the list.
        let (srq, (segments, _)) = unsafe { (find::<Srq>(srq)?, segments(count, iov)?) };
        let request = RecvRequest {
            id: bits(cookie),
            sges: &segments,
        };
        srq.relieve();
        Ok(srq.queue.post_recv(&request)?)
    })
}

/// `dat_srq_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    srq: SrqHandle,
    mask: dat_srq_param_mask,
    param: *mut SrqParam,
) -> Return {
    call("dat_srq_query", || {
        // SAFETY: `find` validates the handle.
        let srq = unsafe { find::<Srq>(srq)? };
        argument::mask(2, mask.into(), SRQ_FIELD_ALL.into())?;
        let (depth, low, held) = srq.state()?;
        let value = SrqParam {
            ia_handle: srq.pz.ia().number(),
            srq_state: SRQ_STATE_OPERATIONAL,
            pz_handle: srq.pz.handle as PzHandle,
            max_recv_dtos: depth as Count,
            max_recv_iov: srq.max_recv_iov as Count,
            low_watermark: low as Count,
            available_dto_count: held as Count,
            outstanding_dto_count: held as Count,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_srq_resize`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn resize(srq: SrqHandle, depth: Count) -> Return {
    call("dat_srq_resize", || {
        // SAFETY: `find` validates the handle.
        let srq = unsafe { find::<Srq>(srq)? };
        let depth = argument::count(2, depth)?;
        if depth == 0 || depth > MAX_DTOS {
            return Err(Fail::argument(2));
        }
        let (_, low, held) = srq.state()?;
        if depth < held || depth < low {
            return Err(Fail::state(INVALID_STATE_SRQ_IN_USE));
        }
        srq.resize(depth)
    })
}

/// `dat_srq_set_lw`: one event when fewer receives than this are left.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn set_low_watermark(srq: SrqHandle, low: Count) -> Return {
    call("dat_srq_set_lw", || {
        // SAFETY: `find` validates the handle.
        let srq = unsafe { find::<Srq>(srq)? };
        let low = argument::count(2, low)?;
        if low > srq.state()?.0 {
            return Err(Fail::argument(2));
        }
        Ok(srq.queue.modify(Some(low), None)?)
    })
}

/// `dat_srq_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(srq: SrqHandle) -> Return {
    call("dat_srq_free", || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<Srq>(srq)? };
        if !object.users.is_empty() {
            return Err(Fail::state(INVALID_STATE_SRQ_IN_USE));
        }
        // SAFETY: the last use of the handle.
        unsafe { remove::<Srq>(srq as usize)? }.close();
        Ok(())
    })
}

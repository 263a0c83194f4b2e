//! The shared receive queues of identifiers: `rdma_create_srq`, `rdma_create_srq_ex`, `rdma_destroy_srq`.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and verbs calls.

use crate::objects::id::IdObject;
use crate::queues::qp::{add_recv_cq, remove_cqs};
use crate::queues::verbs;
use crate::sys::*;
use ibverbs::sys::*;
use rkey_kit::argument::output;
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;
use std::ptr::null_mut;

/// Creates the shared receive queue of an identifier. An XRC shared receive queue uses the identifier's completion queue and the
/// library's XRC domain, unless the program names others.
unsafe fn create(object: &IdObject, attr: &mut SrqInitAttrEx) -> Result<(), Errno> {
    let context = object.verbs();
    if context.is_null() || !object.srq().is_null() || attr.comp_mask & SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = object.pd();
        attr.comp_mask |= SRQ_INIT_ATTR_PD;
    }
    // SAFETY: guaranteed by the caller; the call checks the handle.
    if unsafe { verbs::context_of_pd(attr.pd) } != context {
        return Err(Errno::INVAL);
    }
    let mut has_cq = false;
    if attr.srq_type == SRQT_XRC {
        if attr.comp_mask & SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            attr.xrcd = verbs::xrc_domain()?;
        }
        if attr.comp_mask & SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
            if object.recv_cq().is_null() {
                // SAFETY: guaranteed by the caller.
                unsafe { add_recv_cq(object, attr.attr.max_wr) }?;
                has_cq = true;
            }
            attr.cq = object.recv_cq();
        }
        attr.comp_mask |= SRQ_INIT_ATTR_XRCD | SRQ_INIT_ATTR_CQ;
    }
    // SAFETY: guaranteed by the caller.
    let made = unsafe { verbs::create_srq(context, attr) };
    let srq = made.inspect_err(|_| {
        if has_cq {
            // SAFETY: just created, and not in use.
            unsafe { remove_cqs(object) };
        }
    })?;
    object.set_srq(srq);
    if object.pd().is_null() {
        object.set_pd(attr.pd);
    }
    Ok(())
}

/// Destroys the shared receive queue of an identifier. For the receiving half of an extended reliable connection, also destroys its
/// completion queues.
///
/// # Safety
/// They must not be used afterwards.
pub unsafe fn destroy(object: &IdObject) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        verbs::destroy_srq(object.srq());
        object.set_srq(null_mut());
        if object.qp_type() == QPT_XRC_RECV {
            remove_cqs(object);
        }
    }
}

/// `rdma_create_srq`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe extern "C" fn create_srq(id: *mut CmId, pd: *mut Pd, attr: *mut SrqInitAttr) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, attr) = unsafe { (find::<IdObject>(id)?, output(attr)?) };
        // SAFETY: all fields are numbers or pointers, which may be all zeros.
        let zeros: SrqInitAttrEx = unsafe { std::mem::zeroed() };
        let mut longer = SrqInitAttrEx {
            srq_context: attr.srq_context,
            attr: attr.attr,
            comp_mask: SRQ_INIT_ATTR_TYPE | SRQ_INIT_ATTR_PD,
            srq_type: match object.qp_type() {
                QPT_XRC_RECV => SRQT_XRC,
                _ => SRQT_BASIC,
            },
            pd,
            ..zeros
        };
        // SAFETY: guaranteed by the caller.
        unsafe { create(object, &mut longer) }?;
        attr.attr = longer.attr;
        Ok(0)
    })
}

/// `rdma_create_srq_ex`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe extern "C" fn create_srq_ex(id: *mut CmId, attr: *mut SrqInitAttrEx) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { create(find(id)?, output(attr)?) }.map(|()| 0)
    })
}

/// `rdma_destroy_srq`.
///
/// # Safety
/// The shared receive queue must not be used afterwards.
pub unsafe extern "C" fn destroy_srq(id: *mut CmId) {
    rkey_kit::c_call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { destroy(find(id)?) };
        Ok(())
    });
}

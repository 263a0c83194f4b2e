//! The queue pairs and shared receive queues of identifiers: `rdma_create_qp`, `rdma_create_srq` and related calls.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and calls of verbs.

use crate::front::with_entry;
use crate::id::{IdObject, NO_QP};
use crate::qp_attr::attributes;
use crate::sys::*;
use crate::verbs;
use ibverbs::sys::*;
use rkey_kit::argument::{input, output};
use rkey_kit::object::find;
use rkey_kit::{Errno, fence_or_minus_one};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Changes the state of an identifier's queue pair, with the attributes that the two sides have agreed on.
///
/// # Errors
/// Those of [`attributes`] and `ibv_modify_qp`.
///
/// # Safety
/// Nothing destroys the queue pair meanwhile.
pub unsafe fn move_to(object: &IdObject, state: ibv_qp_state) -> Result<(), Errno> {
    let (mut attr, mask) = with_entry(object.key, |own| attributes(own, state))?;
    // SAFETY: guaranteed by the caller.
    unsafe { verbs::modify_qp(object.qp(), &mut attr, mask) }
}

/// Makes the queue pair of a connection ready: INIT with the access rights, RTR, RTS.
///
/// # Errors
/// Same as for [`move_to`].
///
/// # Safety
/// Same as for [`move_to`].
pub unsafe fn make_ready(object: &IdObject) -> Result<(), Errno> {
    for state in [QPS_INIT, QPS_RTR, QPS_RTS] {
        // SAFETY: guaranteed by the caller.
        unsafe { move_to(object, state) }?;
    }
    Ok(())
}

/// Makes the completion queues that neither the program nor the identifier has.
unsafe fn add_cqs(object: &IdObject, attr: &mut QpInitAttrEx) -> Result<(), Errno> {
    let (context, of_id) = (object.verbs(), object.handle().cast::<c_void>());
    let own = |cq: *mut Cq, own: *mut Cq| cq.is_null() && own.is_null();
    if own(attr.send_cq, object.send_cq()) && attr.cap.max_send_wr > 0 {
        // SAFETY: guaranteed by the caller.
        let (channel, cq) = unsafe { verbs::create_cq(context, attr.cap.max_send_wr, of_id) }?;
        object.set_send_cq_channel(channel);
        object.set_send_cq(cq);
    }
    if own(attr.recv_cq, object.recv_cq()) && attr.cap.max_recv_wr > 0 {
        // SAFETY: guaranteed by the caller.
        let (channel, cq) = unsafe { verbs::create_cq(context, attr.cap.max_recv_wr, of_id) }?;
        object.set_recv_cq_channel(channel);
        object.set_recv_cq(cq);
    }
    let or = |given: *mut Cq, own: *mut Cq| if given.is_null() { own } else { given };
    let (send, recv) = (
        or(attr.send_cq, object.send_cq()),
        or(attr.recv_cq, object.recv_cq()),
    );
    // A queue without requests needs no completion queue of its own, but every queue pair has two.
    attr.send_cq = or(send, recv);
    attr.recv_cq = or(recv, send);
    Ok(())
}

/// Destroys the completion queues of an identifier.
unsafe fn remove_cqs(object: &IdObject) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        verbs::destroy_cq(object.send_cq_channel(), object.send_cq());
        verbs::destroy_cq(object.recv_cq_channel(), object.recv_cq());
    }
    object.set_send_cq_channel(null_mut());
    object.set_send_cq(null_mut());
    object.set_recv_cq_channel(null_mut());
    object.set_recv_cq(null_mut());
}

/// Makes the queue pair of an identifier.
///
/// # Errors
/// `EINVAL`: the identifier has a queue pair or no device; the protection domain belongs to another device; or a completion queue is not
/// the one that the identifier has. `EOPNOTSUPP`: an extended reliable connection. Those of `ibv_create_qp_ex`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe fn create(object: &IdObject, attr: &mut QpInitAttrEx) -> Result<(), Errno> {
    let context = object.verbs();
    if context.is_null() || !object.qp().is_null() {
        return Err(Errno::INVAL);
    }
    if matches!(attr.qp_type, QPT_XRC_SEND | QPT_XRC_RECV) {
        tracing::warn!("rdma_create_qp: extended reliable connections are not supported yet");
        return Err(Errno::OPNOTSUPP);
    }
    if attr.comp_mask & QP_INIT_ATTR_PD == 0 {
        attr.comp_mask |= QP_INIT_ATTR_PD;
        attr.pd = object.pd();
    }
    // SAFETY: guaranteed by the caller; the call checks the handle.
    if unsafe { verbs::context_of_pd(attr.pd) } != context {
        return Err(Errno::INVAL);
    }
    let other = |own: *mut Cq, given: *mut Cq| !own.is_null() && !given.is_null() && own != given;
    if other(object.send_cq(), attr.send_cq) || other(object.recv_cq(), attr.recv_cq) {
        return Err(Errno::INVAL);
    }
    if attr.srq.is_null() {
        attr.srq = object.srq();
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let made = add_cqs(object, attr).and_then(|()| verbs::create_qp(context, attr));
        let qp = made.inspect_err(|_| remove_cqs(object))?;
        object.set_qp(qp);
        begin(object).inspect_err(|_| {
            object.set_qp(NO_QP);
            verbs::destroy_qp(qp);
            remove_cqs(object);
        })?;
        object.set_pd(verbs::pd_of_qp(qp));
    }
    Ok(())
}

/// Moves a new queue pair as far as it can go without a peer.
unsafe fn begin(object: &IdObject) -> Result<(), Errno> {
    let is_datagram = with_entry(object.key, |own| Ok(own.is_datagram()))?;
    // SAFETY: guaranteed by the caller.
    unsafe {
        match is_datagram {
            true => make_ready(object),
            false => move_to(object, QPS_INIT),
        }
    }
}

/// Destroys the queue pair of an identifier, and the completion queues that were made for it.
///
/// # Safety
/// Nothing uses them afterwards.
pub unsafe fn destroy(object: &IdObject) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        verbs::destroy_qp(object.qp());
        object.set_qp(NO_QP);
        remove_cqs(object);
    }
}

/// The attributes of a queue pair in the longer form.
#[must_use]
pub fn extended(attr: &QpInitAttr, pd: *mut Pd) -> QpInitAttrEx {
    // SAFETY: all fields are numbers or pointers, which may be all zeros.
    let zeros: QpInitAttrEx = unsafe { std::mem::zeroed() };
    QpInitAttrEx {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: QP_INIT_ATTR_PD,
        pd,
        ..zeros
    }
}

/// `rdma_create_qp` for Rust callers. Writes what was granted into `attr`.
///
/// # Errors
/// Same as for [`create`].
///
/// # Safety
/// Same as for [`create`].
pub unsafe fn create_plain(
    object: &IdObject,
    pd: *mut Pd,
    attr: &mut QpInitAttr,
) -> Result<(), Errno> {
    let pd = if pd.is_null() { object.pd() } else { pd };
    let mut longer = extended(attr, pd);
    // SAFETY: guaranteed by the caller.
    unsafe { create(object, &mut longer) }?;
    attr.cap = longer.cap;
    attr.send_cq = longer.send_cq;
    attr.recv_cq = longer.recv_cq;
    attr.srq = longer.srq;
    Ok(())
}

/// `rdma_create_qp`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe extern "C" fn create_qp(id: *mut CmId, pd: *mut Pd, attr: *mut QpInitAttr) -> c_int {
    fence_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { create_plain(find(id)?, pd, output(attr)?) }.map(|()| 0)
    })
}

/// `rdma_create_qp_ex`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe extern "C" fn create_qp_ex(id: *mut CmId, attr: *mut QpInitAttrEx) -> c_int {
    fence_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { create(find(id)?, output(attr)?) }.map(|()| 0)
    })
}

/// `rdma_destroy_qp`.
///
/// # Safety
/// Nothing uses it afterwards.
pub unsafe extern "C" fn destroy_qp(id: *mut CmId) {
    rkey_kit::fence(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { destroy(find(id)?) };
        Ok(())
    });
}

/// Makes the shared receive queue of an identifier.
unsafe fn make_srq(object: &IdObject, pd: *mut Pd, attr: &mut SrqInitAttr) -> Result<(), Errno> {
    let pd = if pd.is_null() { object.pd() } else { pd };
    // SAFETY: guaranteed by the caller.
    unsafe {
        let context = object.verbs();
        if context.is_null() || !object.srq().is_null() || verbs::context_of_pd(pd) != context {
            return Err(Errno::INVAL);
        }
        object.set_srq(verbs::create_srq(pd, attr)?);
    }
    if object.pd().is_null() {
        object.set_pd(pd);
    }
    Ok(())
}

/// `rdma_create_srq`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe extern "C" fn create_srq(id: *mut CmId, pd: *mut Pd, attr: *mut SrqInitAttr) -> c_int {
    fence_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { make_srq(find(id)?, pd, output(attr)?) }.map(|()| 0)
    })
}

/// `rdma_create_srq_ex`, for basic shared receive queues only.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe extern "C" fn create_srq_ex(id: *mut CmId, attr: *mut SrqInitAttrEx) -> c_int {
    fence_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, attr) = unsafe { (find::<IdObject>(id)?, output(attr)?) };
        let kind = match attr.comp_mask & SRQ_INIT_ATTR_TYPE {
            0 => SRQT_BASIC,
            _ => attr.srq_type,
        };
        if kind != SRQT_BASIC {
            tracing::warn!(
                "rdma_create_srq_ex: only basic shared receive queues are supported so far"
            );
            return Err(Errno::OPNOTSUPP);
        }
        let pd = match attr.comp_mask & SRQ_INIT_ATTR_PD {
            0 => null_mut(),
            _ => attr.pd,
        };
        let mut plain = SrqInitAttr {
            srq_context: attr.srq_context,
            attr: attr.attr,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { make_srq(object, pd, &mut plain) }?;
        attr.attr = plain.attr;
        Ok(0)
    })
}

/// `rdma_destroy_srq`.
///
/// # Safety
/// Nothing uses it afterwards.
pub unsafe extern "C" fn destroy_srq(id: *mut CmId) {
    rkey_kit::fence(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let object = find::<IdObject>(id)?;
            verbs::destroy_srq(object.srq());
            object.set_srq(null_mut());
        }
        Ok(())
    });
}

/// `rdma_init_qp_attr`.
///
/// # Safety
/// `attr` and `mask` are null or room for them; nothing destroys the identifier meanwhile.
pub unsafe extern "C" fn init_qp_attr(id: *mut CmId, attr: *mut QpAttr, mask: *mut c_int) -> c_int {
    fence_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, state, mask) = unsafe {
            let state = input(attr.cast_const())?.qp_state;
            (find::<IdObject>(id)?, state, output(mask)?)
        };
        if object.verbs().is_null() {
            return Err(Errno::INVAL);
        }
        let (made, of) = with_entry(object.key, |own| attributes(own, state))?;
        // SAFETY: guaranteed by the caller.
        *unsafe { output(attr) }? = made;
        *mask = of as c_int;
        Ok(0)
    })
}

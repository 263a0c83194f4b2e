//! The queue pairs of identifiers: `rdma_create_qp` and related calls.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and verbs calls.

use crate::objects::id::{IdObject, NO_QP};
use crate::queues::qp_attr::attributes;
use crate::queues::verbs::{self, PORT};
use crate::state::front::with_entry;
use crate::state::member::Member;
use crate::sys::*;
use ibverbs::sys::*;
use rkey_kit::argument::{input, output};
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Attaches an identifier to the device, and sets the default protection domain if it has none.
///
/// # Errors
/// The device cannot be opened.
pub fn attach_device(object: &IdObject) -> Result<(), Errno> {
    let (context, pd) = verbs::device()?;
    object.set_verbs(context);
    object.set_port_num(PORT);
    if object.pd().is_null() {
        object.set_pd(pd);
    }
    Ok(())
}

/// Moves an identifier's queue pair to a state, with the attributes that both sides have agreed on.
///
/// # Errors
/// The errors of [`attributes`] and `ibv_modify_qp`.
///
/// # Safety
/// The queue pair must not be destroyed during the call.
pub unsafe fn move_to(object: &IdObject, state: ibv_qp_state) -> Result<(), Errno> {
    let (mut attr, mask) = with_entry(object.key, |own| attributes(own, state))?;
    // SAFETY: guaranteed by the caller.
    unsafe { verbs::modify_qp(object.qp(), &mut attr, mask) }
}

/// Moves the queue pair of a connection through INIT and RTR to RTS.
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

/// Creates the completion queues that neither the program has passed nor the identifier already has.
unsafe fn add_cqs(object: &IdObject, attr: &mut QpInitAttrEx) -> Result<(), Errno> {
    let own = |cq: *mut Cq, own: *mut Cq| cq.is_null() && own.is_null();
    if own(attr.send_cq, object.send_cq()) && attr.cap.max_send_wr > 0 {
        let of_id = object.handle().cast::<c_void>();
        // SAFETY: guaranteed by the caller.
        let made = unsafe { verbs::create_cq(object.verbs(), attr.cap.max_send_wr, of_id) };
        let (channel, cq) = made?;
        object.set_send_cq_channel(channel);
        object.set_send_cq(cq);
    }
    if own(attr.recv_cq, object.recv_cq()) && attr.cap.max_recv_wr > 0 {
        // SAFETY: guaranteed by the caller.
        unsafe { add_recv_cq(object, attr.cap.max_recv_wr) }?;
    }
    let or = |given: *mut Cq, own: *mut Cq| if given.is_null() { own } else { given };
    let (send, recv) = (
        or(attr.send_cq, object.send_cq()),
        or(attr.recv_cq, object.recv_cq()),
    );
    // A queue of depth 0 gets no completion queue of its own, but a queue pair must name two, so name the other one twice.
    attr.send_cq = or(send, recv);
    attr.recv_cq = or(recv, send);
    Ok(())
}

/// Creates the completion queue for receives, and its channel.
///
/// # Errors
/// The errors of `ibv_create_cq`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn add_recv_cq(object: &IdObject, depth: u32) -> Result<(), Errno> {
    let of_id = object.handle().cast::<c_void>();
    // SAFETY: guaranteed by the caller.
    let (channel, cq) = unsafe { verbs::create_cq(object.verbs(), depth, of_id) }?;
    object.set_recv_cq_channel(channel);
    object.set_recv_cq(cq);
    Ok(())
}

/// Destroys the completion queues of an identifier, and their channels.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn remove_cqs(object: &IdObject) {
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

/// Creates the queue pair of an identifier.
///
/// # Errors
/// `EINVAL`: the identifier already has a queue pair, or has no device; the protection domain belongs to another device; or a
/// completion queue is not the one that the identifier already has. The errors of `ibv_create_qp_ex`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe fn create(object: &IdObject, attr: &mut QpInitAttrEx) -> Result<(), Errno> {
    let context = object.verbs();
    if context.is_null() || !object.qp().is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & QP_INIT_ATTR_PD == 0 {
        attr.comp_mask |= QP_INIT_ATTR_PD;
        attr.pd = object.pd();
    }
    // SAFETY: guaranteed by the caller; the call checks the handle.
    if unsafe { verbs::context_of_pd(attr.pd) } != context {
        return Err(Errno::INVAL);
    }
    if object.qp_type() == QPT_XRC_RECV {
        // SAFETY: guaranteed by the caller.
        return unsafe { create_receiver(object, attr) };
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

/// Creates the receiving half of an extended reliable connection. It has no completion queues: messages complete in those of the
/// shared receive queues that the peer addresses.
unsafe fn create_receiver(object: &IdObject, attr: &mut QpInitAttrEx) -> Result<(), Errno> {
    if attr.comp_mask & QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.xrcd = verbs::xrc_domain()?;
    }
    let pd = attr.pd;
    // SAFETY: all fields are numbers or pointers, which may be all zeros.
    let zeros: QpInitAttrEx = unsafe { std::mem::zeroed() };
    let mut half = QpInitAttrEx {
        qp_context: attr.qp_context,
        qp_type: attr.qp_type,
        comp_mask: QP_INIT_ATTR_XRCD,
        xrcd: attr.xrcd,
        ..zeros
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        let qp = verbs::create_qp(object.verbs(), &mut half)?;
        object.set_qp(qp);
        begin(object).inspect_err(|_| {
            object.set_qp(NO_QP);
            verbs::destroy_qp(qp);
        })?;
    }
    attr.cap = half.cap;
    object.set_pd(pd);
    Ok(())
}

/// Moves a new queue pair as far as it can go without a peer: to RTS for datagrams, otherwise to INIT.
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

/// Destroys the queue pair of an identifier, and the completion queues that were created with it.
///
/// # Safety
/// They must not be used afterwards.
pub unsafe fn destroy(object: &IdObject) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        verbs::destroy_qp(object.qp());
        object.set_qp(NO_QP);
        // The completion queues of an XRC receiving half belong to its shared receive queue.
        if object.qp_type() != QPT_XRC_RECV {
            remove_cqs(object);
        }
    }
}

/// Attaches the queue pair of an identifier to a group. Does nothing if there is no queue pair, if it only sends, or if the program
/// has left the group.
///
/// # Errors
/// The errors of `ibv_attach_mcast`, such as `EINVAL`: the address is not a multicast address.
///
/// # Safety
/// The queue pair must not be destroyed during the call.
pub unsafe fn attach_to_group(object: &IdObject, member: &Member) -> Result<(), Errno> {
    if object.qp().is_null() || member.only_sends || member.is_left {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { verbs::attach(object.qp(), &member.address.gid) }
}

/// Converts attributes to the extended form.
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

/// `rdma_create_qp` for Rust callers. Writes the granted attributes into `attr`.
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
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { create_plain(find(id)?, pd, output(attr)?) }.map(|()| 0)
    })
}

/// `rdma_create_qp_ex`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe extern "C" fn create_qp_ex(id: *mut CmId, attr: *mut QpInitAttrEx) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { create(find(id)?, output(attr)?) }.map(|()| 0)
    })
}

/// `rdma_destroy_qp`.
///
/// # Safety
/// The queue pair must not be used afterwards.
pub unsafe extern "C" fn destroy_qp(id: *mut CmId) {
    rkey_kit::c_call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { destroy(find(id)?) };
        Ok(())
    });
}

/// `rdma_init_qp_attr`.
///
/// # Safety
/// `attr` and `mask` are null or valid for writes; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn init_qp_attr(id: *mut CmId, attr: *mut QpAttr, mask: *mut c_int) -> c_int {
    c_call_or_minus_one(|| {
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

//! The verbs calls that this library makes. It calls the verbs front end's C functions, as a program would.

#![allow(unsafe_code)]
// UNSAFETY: C functions of the verbs front end, which take handles.

use crate::sys::*;
use ibverbs::sys::{
    QP_STATE, QPS_ERR, XRCD_INIT_ATTR_FD, XRCD_INIT_ATTR_OFLAGS, Xrcd, XrcdInitAttr,
};
use parking_lot::Mutex;
use rkey_kit::Errno;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;

/// The number of the device's only port.
pub const PORT: u8 = 1;
/// The maximum number of outstanding reads and atomics of a queue pair, as requester and as responder.
pub const READS_MAX: u8 = ibverbs::device::limits::MAX_READS as u8;
const _: () = assert!(READS_MAX as i32 == ibverbs::device::limits::MAX_READS);

/// The addresses of the context and the protection domain that all identifiers share.
#[derive(Clone, Copy)]
struct Opened {
    context: usize,
    pd: usize,
}

/// The address of the XRC domain that all identifiers share.
static XRC_DOMAIN: Mutex<Option<usize>> = Mutex::new(None);

static OPENED: Mutex<Option<Opened>> = Mutex::new(None);

fn not_null<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    match pointer.is_null() {
        true => Err(Errno::last()),
        false => Ok(pointer),
    }
}

/// Converts the error number that a verbs call returns to a `Result`.
///
/// # Errors
/// The error number, unless it is 0.
pub fn code(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        number => Err(Errno::from_raw(number)),
    }
}

/// The context and the default protection domain. The first call opens the device, which stays open until the process exits.
///
/// # Errors
/// The device cannot be opened.
pub fn device() -> Result<(*mut Context, *mut Pd), Errno> {
    let mut opened = OPENED.lock();
    if opened.is_none() {
        let device = ibverbs::device::devices::the_device();
        // SAFETY: the verbs front end's own device, and the context that it has just opened.
        unsafe {
            let context = not_null(ibverbs::tables::context::open_device(device))?;
            let pd = not_null(ibverbs::memory::pd::alloc_pd(context))?;
            *opened = Some(Opened {
                context: context.expose_provenance(),
                pd: pd.expose_provenance(),
            });
        }
    }
    let opened = opened.ok_or(Errno::NODEV)?;
    Ok((
        std::ptr::with_exposed_provenance_mut(opened.context),
        std::ptr::with_exposed_provenance_mut(opened.pd),
    ))
}

/// The XRC domain that all identifiers share. The first call opens it; it stays open until the process exits.
///
/// # Errors
/// The errors of `ibv_open_xrcd`.
pub fn xrc_domain() -> Result<*mut Xrcd, Errno> {
    let (context, _) = device()?;
    let mut opened = XRC_DOMAIN.lock();
    if let Some(address) = *opened {
        return Ok(std::ptr::with_exposed_provenance_mut(address));
    }
    let mut attr = XrcdInitAttr {
        comp_mask: XRCD_INIT_ATTR_FD | XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the context that [`device`] has opened.
    let domain = not_null(unsafe { ibverbs::queues::xrc::open_xrcd(context, &mut attr) })?;
    *opened = Some(domain.expose_provenance());
    Ok(domain)
}

/// The index of an address in the device's GID table. An address that is not in the table, such as a loopback address, gets the
/// index of the first IP address.
#[must_use]
pub fn gid_index(address: SocketAddr) -> u8 {
    let (table, gid) = (
        ibverbs::device::gid::table(),
        crate::lookup::address::gid(address),
    );
    let found = table.iter().position(|entry| entry.gid == gid);
    let fallback = usize::from(table.len() > 1);
    found.unwrap_or(fallback) as u8
}

/// Creates a completion queue and its channel.
///
/// # Errors
/// The errors of `ibv_create_comp_channel` and `ibv_create_cq`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn create_cq(
    context: *mut Context,
    depth: u32,
    cq_context: *mut c_void,
) -> Result<(*mut CompChannel, *mut Cq), Errno> {
    // SAFETY: guaranteed by the caller; the channel is new.
    unsafe {
        let channel = not_null(ibverbs::completion::channel::create_comp_channel(context))?;
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        let cq = not_null(ibverbs::completion::cq::create_cq(
            context, depth, cq_context, channel, 0,
        ));
        let cq = cq.inspect_err(|_| {
            ibverbs::completion::channel::destroy_comp_channel(channel);
        })?;
        Ok((channel, cq))
    }
}

/// Destroys a completion queue and its channel. Null handles are skipped, and so are those that the program has already destroyed.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn destroy_cq(channel: *mut CompChannel, cq: *mut Cq) {
    // SAFETY: guaranteed by the caller; both calls refuse a handle that is not live.
    unsafe {
        if !cq.is_null() {
            ibverbs::completion::cq::destroy_cq(cq);
        }
        if !channel.is_null() {
            ibverbs::completion::channel::destroy_comp_channel(channel);
        }
    }
}

/// Drains the events of a completion queue from its non-blocking channel, and requests the next notification.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn rearm(channel: *mut CompChannel, cq: *mut Cq) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (mut of, mut context) = (null_mut(), null_mut());
        while ibverbs::events::completion_event::get_cq_event(channel, &mut of, &mut context) == 0 {
            ibverbs::completion::cq::req_notify_cq(cq, 0);
            ibverbs::events::completion_event::ack_cq_events(of, 1);
        }
        ibverbs::completion::cq::req_notify_cq(cq, 0);
    }
}

/// `ibv_create_qp_ex`.
///
/// # Errors
/// The errors of the call.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe fn create_qp(context: *mut Context, attr: &mut QpInitAttrEx) -> Result<*mut Qp, Errno> {
    // SAFETY: guaranteed by the caller.
    not_null(unsafe { ibverbs::queues::creation::create_qp_ex(context, attr) })
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn destroy_qp(qp: *mut Qp) {
    // SAFETY: guaranteed by the caller.
    unsafe { ibverbs::queues::creation::destroy_qp(qp) };
}

/// `ibv_modify_qp`.
///
/// # Errors
/// The errors of the call.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn modify_qp(qp: *mut Qp, attr: &mut QpAttr, mask: u32) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    code(unsafe { ibverbs::queues::qp::modify_qp(qp, attr, mask as c_int) })
}

/// Moves a queue pair to the error state.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn fail_qp(qp: *mut Qp) {
    if qp.is_null() {
        return;
    }
    // First complete the requests that the peer has acknowledged, and send our own acknowledgements. Hardware does both without delay,
    // and programs that use libfabric rely on it: they disconnect before they poll.
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    if let Ok(object) = unsafe { ibverbs::object::find::<ibverbs::queues::qp::QpObject>(qp) }
        && let Err(error) = object.qp.device().drive_until_idle()
    {
        tracing::debug!(%error, "cannot drive the device before moving queue pair {:#x} to the error state", object.qp.qpn());
    }
    let mut attr = QpAttr {
        qp_state: QPS_ERR,
        ..QpAttr::default()
    };
    // SAFETY: guaranteed by the caller. The call fails only if the queue pair no longer exists or is already in the error state.
    let _ = unsafe { modify_qp(qp, &mut attr, QP_STATE) };
}

/// The number of a queue pair, and whether it has a shared receive queue.
///
/// # Errors
/// `EINVAL`: no live queue pair has this address.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn qp_number(qp: *mut Qp) -> Result<(u32, bool), Errno> {
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    unsafe {
        ibverbs::object::find::<ibverbs::queues::qp::QpObject>(qp)?;
        Ok(((*qp).qp_num, !(*qp).srq.is_null()))
    }
}

/// The protection domain of a queue pair.
///
/// # Safety
/// `qp` is a live queue pair.
#[must_use]
pub unsafe fn pd_of_qp(qp: *mut Qp) -> *mut Pd {
    // SAFETY: guaranteed by the caller.
    unsafe { (*qp).pd }
}

/// The context of a protection domain; null if the handle is not live.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
#[must_use]
pub unsafe fn context_of_pd(pd: *mut Pd) -> *mut Context {
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    match unsafe { ibverbs::object::find::<ibverbs::memory::pd::PdObject>(pd) } {
        Ok(object) => object.context,
        Err(_) => null_mut(),
    }
}

/// `ibv_create_srq_ex`.
///
/// # Errors
/// The errors of the call.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles and attributes.
pub unsafe fn create_srq(
    context: *mut Context,
    attr: &mut SrqInitAttrEx,
) -> Result<*mut Srq, Errno> {
    // SAFETY: guaranteed by the caller.
    not_null(unsafe { ibverbs::queues::srq::create_srq_ex(context, attr) })
}

/// `ibv_attach_mcast`.
///
/// # Errors
/// The errors of the call.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn attach(qp: *mut Qp, group: &[u8; 16]) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    code(unsafe { ibverbs::queues::mcast::attach_mcast(qp, group, 0) })
}

/// `ibv_detach_mcast`.
///
/// # Errors
/// The errors of the call.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn detach(qp: *mut Qp, group: &[u8; 16]) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    code(unsafe { ibverbs::queues::mcast::detach_mcast(qp, group, 0) })
}

/// `ibv_destroy_srq`.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn destroy_srq(srq: *mut Srq) {
    // SAFETY: guaranteed by the caller.
    unsafe { ibverbs::queues::srq::destroy_srq(srq) };
}

//! Creating and destroying queue pairs, with the objects that they use.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::cq::CqObject;
use crate::device::context::ContextObject;
use crate::memory::pd::PdObject;
use crate::object::{find, find_or_null, output, remove};
use crate::queues::builder::Builder;
use crate::queues::modify::Service;
use crate::queues::qp::{DRAIN_TIMEOUT, NewQp, QpObject, head};
use crate::queues::srq::SrqObject;
use crate::queues::wq;
use crate::queues::xrc::{self, XrcdObject};
use crate::sys::consts::*;
use crate::sys::{Context, Pd, Qp, QpCap, QpInitAttr, QpInitAttrEx};
use crate::translate::errno;
use rkey_device::QpOptions;
use rkey_kit::{Errno, c_call};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Attributes that only the extended call takes.
#[derive(Clone, Copy, Default)]
struct Extra {
    send_ops: Option<u64>,
}

/// Whether this is the first time that the process is refused too much inline data. No attribute reports the limit, so programs
/// find it by trial; libfabric's verbs provider does so whenever a program lists providers. The first refusal is logged at level
/// info, like any failed call, and later ones only at level debug.
fn is_first_probe() -> bool {
    static PROBED: AtomicBool = AtomicBool::new(false);
    !PROBED.swap(true, Ordering::Relaxed)
}

/// The size of a list element in a request, in bytes. NICs store inline data in place of the list, so they grant at least as much
/// inline data as the longest list occupies. Programs (rdma_xclient) rely on that.
const ELEMENT: u32 = 16;

/// The granted sizes: those that the program requested, but no receive queue unless the queue pair `receives`, and more inline data
/// if the device's limit `max_inline` allows it.
fn granted(cap: &QpCap, receives: bool, max_inline: u32) -> QpCap {
    let room = cap.max_send_sge.saturating_mul(ELEMENT).min(max_inline);
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_wr: if receives { cap.max_recv_wr } else { 0 },
        max_recv_sge: if receives { cap.max_recv_sge } else { 0 },
        max_inline_data: cap.max_inline_data.max(room),
    }
}

/// Verbs allows queues of size 0; queues of the device hold at least one request.
fn with_sizes(granted: &QpCap, options: QpOptions) -> QpOptions {
    QpOptions {
        max_send: granted.max_send_wr.max(1),
        max_recv: granted.max_recv_wr.max(1),
        max_send_sge: granted.max_send_sge.max(1),
        max_recv_sge: granted.max_recv_sge.max(1),
        max_inline: granted.max_inline_data,
        ..options
    }
}

/// Creates a queue pair and fills in the granted sizes.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn create(
    pd_handle: *mut Pd,
    attr: &QpInitAttr,
    extra: Extra,
) -> Result<(*mut Qp, QpCap), Errno> {
    let service = Service::from_number(attr.qp_type).ok_or(Errno::OPNOTSUPP)?;
    if service == Service::XrcRecv {
        return Err(Errno::INVAL); // needs an XRC domain, which only the extended call takes
    }
    let sends_only = service == Service::XrcSend;
    // SAFETY: `find` and `find_or_null` validate the handles.
    let (pd, send_cq, recv_cq, srq) = unsafe {
        (
            find::<PdObject>(pd_handle)?,
            find::<CqObject>(attr.send_cq)?,
            find_or_null::<CqObject>(attr.recv_cq)?,
            find_or_null::<SrqObject>(attr.srq)?,
        )
    };
    if sends_only && srq.is_some() || !sends_only && recv_cq.is_none() {
        return Err(Errno::INVAL);
    }
    let cqs = [Some(send_cq), recv_cq];
    // SAFETY: the queue is live.
    let srq_fits = srq.is_none_or(|srq| unsafe { (*srq.c()).context } == pd.context);
    if !srq_fits || !cqs.into_iter().flatten().all(|cq| cq.is_of(pd.context)) {
        return Err(Errno::INVAL);
    }
    let context = pd.context()?;
    let builder = match extra.send_ops {
        Some(ops) => Some(Box::new(Builder::new(service, ops)?)),
        None => None,
    };
    let device = context.device();
    let receives = srq.is_none() && !sends_only;
    let granted = granted(&attr.cap, receives, device.config().max_inline);
    let options = QpOptions {
        qp_type: service.engine(),
        srq: srq.map(|srq| srq.srq.clone()),
        recv_cq: recv_cq.unwrap_or(send_cq).cq.clone(),
        signal_all: attr.sq_sig_all != 0,
        // As with a NIC, a connection notices the loss of its peer only when it sends.
        fail_with_peer: false,
        ..with_sizes(&granted, QpOptions::new(pd.domain, &send_cq.cq))
    };
    let qp = device.create_qp(&options).map_err(|error| {
        if options.max_inline <= device.config().max_inline || is_first_probe() {
            tracing::info!("ibv_create_qp: {error}");
        }
        errno::of(&error)
    })?;
    let made = NewQp {
        service,
        granted,
        signal_all: attr.sq_sig_all != 0,
        builder,
        head: head(pd.context, attr, pd_handle, &qp),
        qp,
        xrcd: std::ptr::null_mut(),
        table: std::ptr::null_mut(),
        opened: false,
    };
    let handle = made.insert(context)?;
    pd.users.add();
    send_cq.users.add();
    if let Some(recv_cq) = recv_cq {
        recv_cq.users.add();
    }
    if let Some(srq) = srq {
        srq.users.add();
    }
    Ok((handle, granted))
}

/// `ibv_create_qp`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    c_call(|| {
        // SAFETY: `output` refuses null; the caller guarantees the rest.
        unsafe {
            let attr = output(attr)?;
            let (handle, granted) = create(pd, attr, Extra::default())?;
            attr.cap = granted;
            Ok(handle)
        }
    })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        let attr = unsafe {
            find::<ContextObject>(context)?;
            output(attr)?
        };
        if attr.qp_type == QPT_XRC_RECV {
            // SAFETY: guaranteed by the caller.
            return unsafe { xrc::create_receiver(context, attr) };
        }
        if attr.comp_mask & (QP_INIT_ATTR_IND_TABLE | QP_INIT_ATTR_RX_HASH) != 0 {
            // SAFETY: guaranteed by the caller.
            return unsafe { wq::create_rss_qp(context, attr) };
        }
        let known = QP_INIT_ATTR_PD | QP_INIT_ATTR_SEND_OPS_FLAGS | QP_INIT_ATTR_CREATE_FLAGS;
        if attr.comp_mask & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if attr.comp_mask & QP_INIT_ATTR_PD == 0 {
            return Err(Errno::INVAL);
        }
        if attr.comp_mask & QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: `find` validates the handle.
        if unsafe { find::<PdObject>(attr.pd)? }.context != context {
            return Err(Errno::INVAL);
        }
        let base = QpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let with_ops = attr.comp_mask & QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let extra = Extra {
            send_ops: with_ops.then_some(attr.send_ops_flags),
        };
        // SAFETY: guaranteed by the caller.
        let (handle, granted) = unsafe { create(attr.pd, &base, extra)? };
        attr.cap = granted;
        Ok(handle)
    })
}

/// `ibv_destroy_qp`: waits until all of its events are acknowledged and no peer accesses memory on behalf of
/// its requests.
///
/// # Safety
/// No other thread may use the queue pair, except to acknowledge events.
pub unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<QpObject>(qp)? };
        // Multicast groups must be detached and flow rules destroyed first.
        if object.qp.memberships() > 0 {
            return Err(Errno::BUSY);
        }
        if !object.opened {
            object.context()?.open.events.remove_qp(object.qp.id());
        }
        object.acks.wait();
        // SAFETY: unused, as the caller guarantees; the objects that it uses are live.
        unsafe {
            let object = remove::<QpObject>(qp)?;
            let c = &*object.c();
            let (pd, send_cq, recv_cq, srq) = (c.pd, c.send_cq, c.recv_cq, c.srq);
            let (xrcd, table) = (object.xrcd, object.table);
            let (device, number) = (object.qp.device().clone(), object.qp.qpn());
            drop(object);
            device.wait_until_quiet(number, DRAIN_TIMEOUT);
            wq::release_table(table);
            if let Ok(xrcd) = find::<XrcdObject>(xrcd) {
                xrcd.users.remove();
            }
            // The program may already have unimported the protection domain.
            if let Ok(pd) = find::<PdObject>(pd) {
                pd.users.remove();
            }
            for cq in [send_cq, recv_cq] {
                if let Ok(cq) = find::<CqObject>(cq) {
                    cq.users.remove();
                }
            }
            if let Ok(Some(srq)) = find_or_null::<SrqObject>(srq) {
                srq.users.remove();
            }
        }
        Ok(0)
    })
}

//! Queue pairs: create, modify, query, destroy.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::async_event::Acks;
use crate::builder::Builder;
use crate::context::ContextObject;
use crate::cq::CqObject;
use crate::modify::{self, Service};
use crate::object::{Object, find, find_or_null, input, insert, output, remove};
use crate::pd::PdObject;
use crate::srq::SrqObject;
use crate::sys::consts::*;
use crate::sys::{
    Context, Pd, Qp, QpAttr, QpCap, QpEx, QpInitAttr, QpInitAttrEx, RwqIndTable, Xrcd,
};
use crate::xrc::{self, XrcdObject};
use crate::{errno, flags, wq};
use parking_lot::Mutex;
use rkey_device::QpOptions;
use rkey_device::engine::QpState;
use rkey_kit::{Errno, Pool, c_call};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A queue pair, as the program sees it.
#[repr(C)]
pub struct QpObject {
    c: UnsafeCell<QpEx>,
    /// The device's queue pair.
    pub qp: rkey_device::Qp,
    /// The transport service.
    pub service: Service,
    /// Attributes that the program set and that [`query_qp`] does not read from the engine.
    settings: Mutex<QpAttr>,
    /// The sizes that it was created with.
    pub(crate) granted: QpCap,
    signal_all: bool,
    /// Asynchronous events not yet acknowledged.
    pub acks: Acks,
    /// Work requests under construction through the extended interface.
    pub builder: Option<Box<Builder>>,
    /// The XRC domain that it belongs to, or null.
    pub(crate) xrcd: *mut Xrcd,
    /// The RSS indirection table over which it distributes frames, or null.
    table: *mut RwqIndTable,
    /// A second handle (`ibv_open_qp`); events name the first.
    opened: bool,
}

// SAFETY: written while the object is created, by modify and query (which verbs allows in one thread at a time), and by
// the program.
unsafe impl Sync for QpObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for QpObject {}

/// All queue pairs.
pub(crate) static QPS: Pool<QpObject> = Pool::new(1 << 17);

// SAFETY: the first field is the C structure, which begins with a `Qp`.
unsafe impl Object for QpObject {
    type C = Qp;
    fn pool() -> &'static Pool<Self> {
        &QPS
    }
}

impl QpObject {
    /// The C structure that the program reads.
    #[inline]
    #[must_use]
    pub fn c(&self) -> *mut Qp {
        self.c.get().cast()
    }

    /// The extended structure.
    #[inline]
    #[must_use]
    pub fn ex(&self) -> *mut QpEx {
        self.c.get()
    }

    /// Whether the program requested an event for the drained send queue (`en_sqd_async_notify`).
    #[must_use]
    pub fn wants_drained_event(&self) -> bool {
        self.settings.lock().en_sqd_async_notify != 0
    }

    pub(crate) fn context(&self) -> Result<&ContextObject, Errno> {
        // SAFETY: a context outlives its queue pairs.
        unsafe { find((*self.c()).context) }
    }
}

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

/// The C structure for a queue pair of the device.
pub(crate) fn head(
    context: *mut Context,
    attr: &QpInitAttr,
    pd: *mut Pd,
    qp: &rkey_device::Qp,
) -> Qp {
    Qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: qp.id().index,
        qp_num: qp.qpn(),
        state: QPS_RESET,
        qp_type: attr.qp_type,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: 0,
    }
}

/// A queue pair of the device that does not have a handle yet.
pub(crate) struct NewQp {
    pub(crate) head: Qp,
    pub(crate) qp: rkey_device::Qp,
    pub(crate) service: Service,
    pub(crate) granted: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) builder: Option<Box<Builder>>,
    pub(crate) xrcd: *mut Xrcd,
    pub(crate) table: *mut RwqIndTable,
    pub(crate) opened: bool,
}

impl NewQp {
    /// Creates the program's handle of the queue pair.
    pub(crate) fn insert(self, context: &ContextObject) -> Result<*mut Qp, Errno> {
        let (id, opened) = (self.qp.id(), self.opened);
        let handle = insert(QpObject {
            c: UnsafeCell::new((context.tables.qp)(self.head)),
            qp: self.qp,
            service: self.service,
            settings: Mutex::new(QpAttr::default()),
            granted: self.granted,
            signal_all: self.signal_all,
            acks: Acks::default(),
            builder: self.builder,
            xrcd: self.xrcd,
            table: self.table,
            opened,
        })?;
        if !opened {
            context.open.events.add_qp(id, handle);
        }
        Ok(handle)
    }
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

/// How long to wait, when a queue pair ends, for a peer that may still access our memory. After that time, the link to it is closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// `ibv_modify_qp`. After a transition to RESET or ERR, no peer still accesses memory on behalf of the queue pair's
/// requests.
///
/// # Safety
/// No other thread may modify the queue pair; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<QpObject>(qp)?, input(attr)?) };
        let mask = modify::counted(object.service, mask as u32);
        let mut settings = object.settings.lock();
        let from = object.qp.query().map_err(errno::from)?.state;
        if mask & QP_CUR_STATE != 0 {
            let claimed = modify::state(attr.cur_qp_state)?;
            let may = matches!(
                claimed,
                QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
            );
            if !may || claimed != from {
                return Err(Errno::INVAL);
            }
        }
        let to = if mask & QP_STATE != 0 {
            modify::state(attr.qp_state)?
        } else {
            from
        };
        modify::check(object.service, from, to, mask)?;
        let path = modify::check_port_values(object.qp.device(), mask, attr)?;
        let mut change = modify::attributes(object.service, to, mask, attr)?;
        change.wire = path.filter(|_| change.peer.is_some());
        object.qp.modify(&change).map_err(|error| {
            tracing::info!("ibv_modify_qp: {error}");
            errno::of(&error)
        })?;
        remember(&mut settings, attr, mask, to);
        drop(settings);
        if matches!(to, QpState::Reset | QpState::Error) {
            let device = object.qp.device();
            device.wait_until_quiet(object.qp.qpn(), DRAIN_TIMEOUT);
        }
        if mask & QP_STATE != 0 {
            // SAFETY: a live queue pair that no other thread modifies.
            unsafe { (*qp).state = attr.qp_state };
        }
        Ok(0)
    })
}

/// Stores the attributes that [`query_qp`] does not read from the engine.
fn remember(settings: &mut QpAttr, attr: &QpAttr, mask: u32, to: QpState) {
    if to == QpState::Reset {
        *settings = QpAttr::default();
        return;
    }
    let given = |bit| mask & bit != 0;
    if given(QP_PORT) {
        settings.port_num = attr.port_num;
    }
    if given(QP_AV) {
        settings.ah_attr = attr.ah_attr;
    }
    if given(QP_ACCESS_FLAGS) {
        settings.qp_access_flags = attr.qp_access_flags;
    }
    if given(QP_EN_SQD_ASYNC_NOTIFY) {
        settings.en_sqd_async_notify = attr.en_sqd_async_notify;
    }
    if given(QP_SQ_PSN) {
        settings.sq_psn = attr.sq_psn & 0xff_ffff;
    }
    if given(QP_RQ_PSN) {
        settings.rq_psn = attr.rq_psn & 0xff_ffff;
    }
}

/// `ibv_query_qp`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_qp(
    qp: *mut Qp,
    attr: *mut QpAttr,
    _mask: c_int,
    init_attr: *mut QpInitAttr,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        let (object, attr, init_attr) =
            unsafe { (find::<QpObject>(qp)?, output(attr)?, output(init_attr)?) };
        let info = object.qp.query().map_err(errno::from)?;
        let now = &info.attributes;
        let kept = *object.settings.lock();
        let state = modify::state_number(info.state);
        *attr = QpAttr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: flags::mtu_number(now.path_mtu.unwrap_or(0)),
            path_mig_state: MIG_MIGRATED,
            qkey: now.qkey.unwrap_or(0),
            dest_qp_num: now.peer.map_or(0, |peer| peer.qpn),
            cap: object.granted,
            sq_draining: u8::from(info.draining),
            max_rd_atomic: now.max_reads_out.unwrap_or(0),
            max_dest_rd_atomic: now.max_reads_in.unwrap_or(0),
            min_rnr_timer: now.min_rnr_timer.unwrap_or(0),
            timeout: now.timeout.unwrap_or(0),
            retry_cnt: now.retry_count.unwrap_or(0),
            rnr_retry: now.rnr_retry.unwrap_or(0),
            ..kept
        };
        // SAFETY: the queue pair is live.
        let c = unsafe { &mut *qp };
        *init_attr = QpInitAttr {
            qp_context: c.qp_context,
            send_cq: c.send_cq,
            recv_cq: c.recv_cq,
            srq: c.srq,
            cap: object.granted,
            qp_type: c.qp_type,
            sq_sig_all: c_int::from(object.signal_all),
        };
        c.state = state;
        Ok(0)
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

/// `ibv_qp_to_qp_ex`: returns null for a queue pair created without work request functions.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<QpObject>(qp)? };
        Ok(if object.builder.is_some() {
            object.ex()
        } else {
            std::ptr::null_mut()
        })
    })
}

/// `ibv_query_qp_data_in_order`: returns 0, as the device does not guarantee an order.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query_qp_data_in_order(_qp: *mut Qp, _op: c_int, _flags: u32) -> c_int {
    0
}

/// Destroys the remaining queue pairs of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in QPS.live(|qp| (*qp.c()).context == context) {
            if let Ok(qp) = remove::<QpObject>(object.cast())
                && !qp.opened
                && let Ok(context) = qp.context()
            {
                context.open.events.remove_qp(qp.qp.id());
            }
        }
    }
}

//! Queue pairs: their objects, and modifying and querying them.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::acks::Acks;
use crate::device::context::ContextObject;
use crate::object::{Object, find, input, insert, output, remove};
use crate::queues::builder::Builder;
use crate::queues::modify::{self, Service};
use crate::sys::consts::*;
use crate::sys::{Context, Pd, Qp, QpAttr, QpCap, QpEx, QpInitAttr, RwqIndTable, Xrcd};
use crate::translate::{errno, flags};
use parking_lot::Mutex;
use rkey_device::engine::QpState;
use rkey_kit::{Errno, Pool, c_call};
use std::cell::UnsafeCell;
use std::ffi::c_int;
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
    pub(crate) table: *mut RwqIndTable,
    /// A second handle (`ibv_open_qp`); events name the first.
    pub(crate) opened: bool,
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

/// How long to wait, when a queue pair ends, for a peer that may still access our memory. After that time, the link to it is closed.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

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

//! Receive work queues, and the RSS indirection tables that raw packet queue pairs use to distribute frames over them.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and tables of handles that C programs pass.

use crate::completion::cq::CqObject;
use crate::device::context::ContextObject;
use crate::device::limits::{MAX_TABLE, TOEPLITZ};
use crate::memory::pd::PdObject;
use crate::object::{Object, Users, find, input, insert, output, remove};
use crate::queues::modify::Service;
use crate::queues::post::post_recvs;
use crate::queues::qp::{NewQp, head};
use crate::sys::consts::*;
use crate::sys::{
    Context, Qp, QpCap, QpInitAttr, QpInitAttrEx, RecvWr, RwqIndTable, RwqIndTableInitAttr,
    RxHashConf, Wq, WqAttr, WqInitAttr,
};
use crate::translate::errno;
use rkey_device::engine::KEY_LEN;
use rkey_device::engine::{HashFields, QpType, WqState};
use rkey_device::{Cq, QpOptions, Srq};
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::c_int;

/// A receive work queue, as the program sees it.
#[repr(C)]
pub struct WqObject {
    c: UnsafeCell<Wq>,
    queue: Srq,
    /// The maximum number of entries of a receive.
    max_sge: u32,
    users: Users,
}

// SAFETY: written while the object is created, and by modify (which verbs allows in one thread at a time).
unsafe impl Sync for WqObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for WqObject {}

rkey_kit::object!(WqObject, c: Wq, 1 << 14);

/// `ibv_create_wq`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_wq(context: *mut Context, attr: *mut WqInitAttr) -> *mut Wq {
    c_call(|| {
        // SAFETY: `find` validates the handles; `input` refuses null; the caller guarantees the rest.
        let (object, attr, pd, cq) = unsafe {
            let attr = input(attr)?;
            (
                find::<ContextObject>(context)?,
                attr,
                find::<PdObject>(attr.pd)?,
                find::<CqObject>(attr.cq)?,
            )
        };
        if attr.wq_type != WQT_RQ || attr.max_wr == 0 || pd.context != context || !cq.is_of(context)
        {
            return Err(Errno::INVAL);
        }
        if attr.comp_mask & WQ_INIT_ATTR_FLAGS != 0 && attr.create_flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let max_sge = attr.max_sge.max(1);
        let queue = object
            .device()
            .create_wq(pd.domain, attr.max_wr, max_sge, &cq.cq)
            .map_err(errno::from)?;
        let c = UnsafeCell::new(Wq {
            context,
            wq_context: attr.wq_context,
            pd: attr.pd,
            cq: attr.cq,
            wq_num: queue.number(),
            handle: queue.id().index,
            state: WQS_RESET,
            wq_type: WQT_RQ,
            post_recv: Some(post_recv),
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
            comp_mask: 0,
        });
        let handle = insert(WqObject {
            c,
            queue,
            max_sge,
            users: Users::default(),
        })?;
        pd.users.add();
        cq.users.add();
        Ok(handle)
    })
}

/// `ibv_modify_wq`.
///
/// # Safety
/// No other thread may modify the queue; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn modify_wq(wq: *mut Wq, attr: *mut WqAttr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<WqObject>(wq)?, input(attr)?) };
        // SAFETY: a live queue that no other thread modifies.
        let now = unsafe { (*object.c.get()).state };
        if attr.attr_mask & !(WQ_ATTR_STATE | WQ_ATTR_CURR_STATE | WQ_ATTR_FLAGS) != 0 {
            return Err(Errno::INVAL);
        }
        if attr.attr_mask & WQ_ATTR_FLAGS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if attr.attr_mask & WQ_ATTR_CURR_STATE != 0 && attr.curr_wq_state != now {
            return Err(Errno::INVAL);
        }
        if attr.attr_mask & WQ_ATTR_STATE == 0 {
            return Ok(0);
        }
        let state = match (now, attr.wq_state) {
            (_, WQS_RESET) => WqState::Reset,
            (WQS_RESET | WQS_RDY, WQS_RDY) => WqState::Ready,
            (WQS_RDY | WQS_ERR, WQS_ERR) => WqState::Error,
            _ => return Err(Errno::INVAL),
        };
        object.queue.set_state(state).map_err(errno::from)?;
        // SAFETY: as above.
        unsafe { (*object.c.get()).state = attr.wq_state };
        Ok(0)
    })
}

/// `ibv_post_wq_recv`.
///
/// # Safety
/// `wr` is null or a list of valid work requests; `bad` is null or writable.
unsafe extern "C" fn post_recv(wq: *mut Wq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<WqObject>(wq)? };
        // SAFETY: the queue is live.
        if unsafe { (*object.c.get()).state } == WQS_ERR {
            // SAFETY: null, or writable as the caller guarantees.
            if let Ok(bad) = unsafe { output(bad) } {
                *bad = wr;
            }
            return Err(Errno::INVAL);
        }
        post_recvs(&object.queue, object.max_sge, wr, bad)
    })
}

/// `ibv_destroy_wq`.
///
/// # Safety
/// No other thread may use the queue.
pub unsafe extern "C" fn destroy_wq(wq: *mut Wq) -> c_int {
    c_call(|| {
        // SAFETY: `find` and `remove` validate the handles; the queue keeps its domain and completion queue alive.
        unsafe {
            find::<WqObject>(wq)?.users.none()?;
            let object = remove::<WqObject>(wq)?;
            let c = &*object.c.get();
            let (pd, cq) = (c.pd, c.cq);
            drop(object);
            if let Ok(pd) = find::<PdObject>(pd) {
                pd.users.remove();
            }
            if let Ok(cq) = find::<CqObject>(cq) {
                cq.users.remove();
            }
        }
        Ok(0)
    })
}

/// An RSS indirection table, as the program sees it.
#[repr(C)]
pub struct TableObject {
    c: UnsafeCell<RwqIndTable>,
    queues: Vec<*mut Wq>,
    /// The completion queue of the queue pairs that use this table. It stays empty, because receives complete in the completion
    /// queues of the work queues.
    idle: Cq,
    users: Users,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for TableObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for TableObject {}

rkey_kit::object!(TableObject, c: RwqIndTable, 1 << 12);

impl TableObject {
    /// The device's queues.
    fn queues(&self) -> Result<Vec<Srq>, Errno> {
        // SAFETY: a queue outlives the tables that use it.
        let queue =
            |&wq: &*mut Wq| unsafe { find::<WqObject>(wq).map(|object| object.queue.clone()) };
        self.queues.iter().map(queue).collect()
    }
}

/// `ibv_create_rwq_ind_table`.
///
/// # Safety
/// The table has as many handles as the attributes state; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn create_table(
    context: *mut Context,
    attr: *mut RwqIndTableInitAttr,
) -> *mut RwqIndTable {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<ContextObject>(context)?, input(attr)?) };
        let len = 1u32
            .checked_shl(attr.log_ind_tbl_size)
            .ok_or(Errno::INVAL)?;
        if attr.comp_mask != 0 || len > MAX_TABLE {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null, and the caller guarantees the length.
        let queues =
            unsafe { std::slice::from_raw_parts(input(attr.ind_tbl.cast_const())?, len as usize) };
        for &wq in queues {
            // SAFETY: `find` validates the handle.
            if unsafe { (*find::<WqObject>(wq)?.c.get()).context } != context {
                return Err(Errno::INVAL);
            }
        }
        let idle = object.device().create_cq(1, None).map_err(errno::from)?;
        let c = UnsafeCell::new(RwqIndTable {
            context,
            ind_tbl_handle: 0,
            ind_tbl_num: idle.id().index.cast_signed(),
            comp_mask: 0,
        });
        let handle = insert(TableObject {
            c,
            queues: queues.to_vec(),
            idle,
            users: Users::default(),
        })?;
        for &wq in queues {
            // SAFETY: found above.
            unsafe { find::<WqObject>(wq)? }.users.add();
        }
        Ok(handle)
    })
}

/// `ibv_destroy_rwq_ind_table`.
///
/// # Safety
/// No other thread may use the table.
pub unsafe extern "C" fn destroy_table(table: *mut RwqIndTable) -> c_int {
    c_call(|| {
        // SAFETY: `find` and `remove` validate the handles; the table keeps its queues alive.
        unsafe {
            find::<TableObject>(table)?.users.none()?;
            for wq in remove::<TableObject>(table)?.queues {
                if let Ok(wq) = find::<WqObject>(wq) {
                    wq.users.remove();
                }
            }
        }
        Ok(0)
    })
}

/// Releases the table that a queue pair used.
pub(crate) fn release_table(table: *mut RwqIndTable) {
    // SAFETY: null, or a table that a queue pair kept alive.
    if let Ok(table) = unsafe { find::<TableObject>(table) } {
        table.users.remove();
    }
}

/// The hash key and the hashed fields that a program requests.
fn hash(conf: &RxHashConf) -> Result<([u8; KEY_LEN], HashFields), Errno> {
    let fields = u32::try_from(conf.rx_hash_fields_mask).map_err(|_| Errno::OPNOTSUPP)?;
    let fields = HashFields::from_bits(fields).ok_or(Errno::OPNOTSUPP)?;
    if conf.rx_hash_function != TOEPLITZ {
        return Err(Errno::OPNOTSUPP);
    }
    if usize::from(conf.rx_hash_key_len) != KEY_LEN {
        return Err(Errno::INVAL);
    }
    // SAFETY: the program promises the length of the key; null is refused.
    let key = unsafe { *input(conf.rx_hash_key.cast::<[u8; KEY_LEN]>())? };
    Ok((key, fields))
}

/// Creates a raw packet queue pair with RSS, for `ibv_create_qp_ex`.
///
/// # Errors
/// `EINVAL`: a missing attribute, another type of queue pair, objects of another context, or a wrong length of the hash
/// key; `EOPNOTSUPP`: attributes or creation flags that this device lacks, or another hash function.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe fn create_rss_qp(
    context: *mut Context,
    attr: &mut QpInitAttrEx,
) -> Result<*mut Qp, Errno> {
    const NEEDED: u32 = QP_INIT_ATTR_PD | QP_INIT_ATTR_IND_TABLE | QP_INIT_ATTR_RX_HASH;
    if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != QPT_RAW_PACKET {
        return Err(Errno::INVAL);
    }
    let with_flags = attr.comp_mask & QP_INIT_ATTR_CREATE_FLAGS != 0;
    if attr.comp_mask & !(NEEDED | QP_INIT_ATTR_CREATE_FLAGS) != 0
        || with_flags && attr.create_flags != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: `find` validates the handles.
    let (object, pd, table) = unsafe {
        (
            find::<ContextObject>(context)?,
            find::<PdObject>(attr.pd)?,
            find::<TableObject>(attr.rwq_ind_tbl)?,
        )
    };
    // SAFETY: a live table.
    if pd.context != context || unsafe { (*table.c.get()).context } != context {
        return Err(Errno::INVAL);
    }
    let (key, fields) = hash(&attr.rx_hash_conf)?;
    let queues = table.queues()?;
    let options = QpOptions {
        qp_type: QpType::Raw,
        max_send: 1,
        max_recv: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        fail_with_peer: false,
        ..QpOptions::new(pd.domain, &table.idle)
    };
    let qp = object.device().create_qp(&options).map_err(errno::from)?;
    qp.set_rss(&queues, key, fields).map_err(errno::from)?;
    let none = std::ptr::null_mut::<std::ffi::c_void>();
    let basic = QpInitAttr {
        qp_context: attr.qp_context,
        send_cq: none.cast(),
        recv_cq: none.cast(),
        srq: none.cast(),
        cap: QpCap::default(),
        qp_type: QPT_RAW_PACKET,
        sq_sig_all: 0,
    };
    let made = NewQp {
        head: head(context, &basic, attr.pd, &qp),
        qp,
        service: Service::Raw,
        granted: QpCap::default(),
        signal_all: false,
        builder: None,
        xrcd: std::ptr::null_mut(),
        table: attr.rwq_ind_tbl,
        opened: false,
    };
    let handle = made.insert(object)?;
    attr.cap = QpCap::default();
    table.users.add();
    pd.users.add();
    Ok(handle)
}

/// Destroys the remaining tables and receive work queues of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in TableObject::pool().live(|table| (*table.c.get()).context == context) {
            drop(remove::<TableObject>(object.cast()));
        }
        for object in WqObject::pool().live(|wq| (*wq.c.get()).context == context) {
            drop(remove::<WqObject>(object.cast()));
        }
    }
}

//! Shared receive queues.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::acks::Acks;
use crate::completion::cq::CqObject;
use crate::device::context::ContextObject;
use crate::memory::pd::PdObject;
use crate::object::{Object, Users, find, input, insert, output, remove};
use crate::queues::xrc::XrcdObject;
use crate::sys::consts::*;
use crate::sys::{Context, Cq, Pd, Srq, SrqAttr, SrqInitAttr, SrqInitAttrEx, Xrcd};
use crate::translate::errno;
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

/// A shared receive queue, as the program sees it.
#[repr(C)]
pub struct SrqObject {
    c: UnsafeCell<Srq>,
    /// The device's shared receive queue.
    pub srq: rkey_device::Srq,
    /// The maximum number of entries of a receive.
    pub(crate) max_sge: u32,
    /// Queue pairs that take receives from this shared receive queue.
    pub users: Users,
    /// Asynchronous events not yet acknowledged.
    pub acks: Acks,
    /// For extended reliable connections, the XRC domain and the queue where receives complete.
    xrc: Option<(*mut Xrcd, *mut Cq)>,
}

// SAFETY: written only while the object is created, and by acknowledgements.
unsafe impl Sync for SrqObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for SrqObject {}

rkey_kit::object!(SrqObject, c: Srq, 1 << 16);

impl SrqObject {
    /// The C structure that the program reads.
    #[must_use]
    pub fn c(&self) -> *mut Srq {
        self.c.get()
    }

    /// The number by which extended reliable connections address it, if it is an XRC queue.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.xrc.map(|_| self.srq.number())
    }

    fn context(&self) -> Result<&ContextObject, Errno> {
        // SAFETY: a context outlives its shared receive queues.
        unsafe { find((*self.c()).context) }
    }
}

/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn create(
    pd: &PdObject,
    pd_handle: *mut Pd,
    srq_context: *mut c_void,
    attr: &mut SrqAttr,
    xrc: Option<(*mut Xrcd, *mut Cq)>,
) -> Result<*mut Srq, Errno> {
    let context = pd.context()?;
    if attr.max_wr == 0 {
        return Err(Errno::INVAL);
    }
    // The limit is ignored at creation (ibv_create_srq(3)).
    let (wr, sge) = (attr.max_wr, attr.max_sge.max(1));
    let serves = match xrc {
        // SAFETY: `find` validates the handles.
        Some((xrcd, cq)) => Some(unsafe { (find::<XrcdObject>(xrcd)?, find::<CqObject>(cq)?) }),
        None => None,
    };
    // SAFETY: the objects are live.
    let strange = |(xrcd, cq): (*mut Xrcd, *mut Cq)| unsafe {
        (*xrcd).context != pd.context || (*cq).context != pd.context
    };
    if xrc.is_some_and(strange) {
        return Err(Errno::INVAL);
    }
    let made = match serves {
        None => context.device().create_srq(pd.domain, wr, sge),
        Some((xrcd, cq)) => context
            .device()
            .create_xrc_srq(pd.domain, wr, sge, xrcd.id(), &cq.cq),
    };
    let srq = made.map_err(errno::from)?;
    let id = srq.id();
    let c = Srq {
        context: pd.context,
        srq_context,
        pd: pd_handle,
        handle: id.index,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: 0,
    };
    let handle = insert(SrqObject {
        c: UnsafeCell::new(c),
        srq,
        max_sge: sge,
        users: Users::default(),
        acks: Acks::default(),
        xrc,
    })?;
    context.open.events.add_srq(id, handle);
    if let Some((xrcd, cq)) = serves {
        xrcd.users.add();
        cq.users.add();
    }
    pd.users.add();
    attr.max_sge = sge;
    Ok(handle)
}

/// `ibv_create_srq`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        unsafe {
            let (object, attr) = (find::<PdObject>(pd)?, output(attr)?);
            create(object, pd, attr.srq_context, &mut attr.attr, None)
        }
    })
}

/// `ibv_create_srq_ex`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_srq_ex(
    context: *mut Context,
    attr: *mut SrqInitAttrEx,
) -> *mut Srq {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        let attr = unsafe {
            find::<ContextObject>(context)?;
            output(attr)?
        };
        let kind = if attr.comp_mask & SRQ_INIT_ATTR_TYPE != 0 {
            attr.srq_type
        } else {
            SRQT_BASIC
        };
        let needed = match kind {
            SRQT_BASIC => SRQ_INIT_ATTR_PD,
            SRQT_XRC => SRQ_INIT_ATTR_PD | SRQ_INIT_ATTR_XRCD | SRQ_INIT_ATTR_CQ,
            _ => return Err(Errno::OPNOTSUPP),
        };
        if attr.comp_mask & !(SRQ_INIT_ATTR_TYPE | needed) != 0 || attr.comp_mask & needed != needed
        {
            return Err(Errno::INVAL);
        }
        let xrc = (kind == SRQT_XRC).then_some((attr.xrcd, attr.cq));
        // SAFETY: `find` validates the handle.
        unsafe {
            let object = find::<PdObject>(attr.pd)?;
            if object.context != context {
                return Err(Errno::INVAL);
            }
            create(object, attr.pd, attr.srq_context, &mut attr.attr, xrc)
        }
    })
}

/// `ibv_modify_srq`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<SrqObject>(srq)?, input(attr)?) };
        let mask = mask as u32;
        if mask & !(SRQ_MAX_WR | SRQ_LIMIT) != 0 {
            return Err(Errno::INVAL);
        }
        let (max_wr, ..) = object.srq.query().map_err(errno::from)?;
        let depth = (mask & SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & SRQ_LIMIT != 0).then_some(attr.srq_limit);
        if depth == Some(0) || limit.is_some_and(|l| l > depth.unwrap_or(max_wr)) {
            return Err(Errno::INVAL);
        }
        object.srq.modify(limit, depth).map_err(errno::from)?;
        Ok(0)
    })
}

/// `ibv_query_srq`. The limit is 0 once its event has been raised.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<SrqObject>(srq)?, output(attr)?) };
        let (max_wr, srq_limit, _) = object.srq.query().map_err(errno::from)?;
        *attr = SrqAttr {
            max_wr,
            max_sge: object.max_sge,
            srq_limit,
        };
        Ok(0)
    })
}

/// `ibv_destroy_srq`: waits until all of its events are acknowledged.
///
/// # Safety
/// No other thread may use the queue, except to acknowledge events.
pub unsafe extern "C" fn destroy_srq(srq: *mut Srq) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<SrqObject>(srq)? };
        object.users.none()?;
        object.context()?.open.events.remove_srq(object.srq.id());
        object.acks.wait();
        // SAFETY: the queue kept its PD, XRC domain and CQ alive until now, and the caller guarantees that it is unused.
        unsafe {
            if let Ok(pd) = find::<PdObject>((*object.c()).pd) {
                pd.users.remove();
            }
            let xrc = remove::<SrqObject>(srq)?.xrc;
            if let Some((xrcd, cq)) = xrc {
                if let Ok(xrcd) = find::<XrcdObject>(xrcd) {
                    xrcd.users.remove();
                }
                if let Ok(cq) = find::<CqObject>(cq) {
                    cq.users.remove();
                }
            }
        }
        Ok(0)
    })
}

/// `ibv_get_srq_num`: only XRC shared receive queues have a number.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn get_srq_num(srq: *mut Srq, number: *mut u32) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        let (object, number) = unsafe { (find::<SrqObject>(srq)?, output(number)?) };
        *number = object.number().ok_or(Errno::OPNOTSUPP)?;
        Ok(0)
    })
}

/// Destroys the remaining shared receive queues of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in SrqObject::pool().live(|srq| (*srq.c()).context == context) {
            if let Ok(srq) = remove::<SrqObject>(object.cast())
                && let Ok(context) = srq.context()
            {
                context.open.events.remove_srq(srq.srq.id());
            }
        }
    }
}

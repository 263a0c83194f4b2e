//! Extended reliable connections: XRC domains, and the receiving halves of connections.
//!
//! A domain connects receiving halves with the shared receive queues that peers may address through them. All callers that pass the
//! same file for one device share its domain. That works within one process only, because a receiving half cannot pass messages to
//! a queue of another process.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::context::ContextObject;
use crate::object::{Object, Users, find, input, insert, remove};
use crate::queues::modify::Service;
use crate::queues::qp::{NewQp, QPS, QpObject, head};
use crate::sys::consts::*;
use crate::sys::{Context, Qp, QpCap, QpInitAttr, QpInitAttrEx, QpOpenAttr, Xrcd, XrcdInitAttr};
use crate::translate::errno;
use rkey_device::core::DomainId;
use rkey_device::engine::{QpType, XrcdId};
use rkey_device::{Cq, Device, QpOptions};
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The only bits of `oflags` that have an effect.
const CREATE: c_int = libc::O_CREAT;
const EXCLUSIVE: c_int = libc::O_EXCL;

/// An XRC domain of the device, behind one or more handles.
struct Domain {
    device: Device,
    id: XrcdId,
    /// The file that names it: device and inode.
    file: Option<(u64, u64)>,
    /// The domain and completion queue of a receiving half between messages. Each message uses those of its shared
    /// receive queue.
    idle: (DomainId, Cq),
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Err(error) = self.device.close_domain(self.idle.0) {
            tracing::debug!(%error, "cannot close {} of an XRC domain", self.idle.0);
        }
    }
}

/// An XRC domain, as the program sees it.
#[repr(C)]
pub struct XrcdObject {
    c: UnsafeCell<Xrcd>,
    context: *mut Context,
    domain: Arc<Domain>,
    /// Queue pairs and shared receive queues that use it.
    pub users: Users,
}

// SAFETY: handles, which are validated before use; the C structure is written only while the object is created.
unsafe impl Sync for XrcdObject {}
// SAFETY: as above.
unsafe impl Send for XrcdObject {}

rkey_kit::object!(XrcdObject, c: Xrcd, 1 << 12);

impl XrcdObject {
    /// The device's identifier for it.
    #[must_use]
    pub fn id(&self) -> XrcdId {
        self.domain.id
    }
}

/// `ibv_open_xrcd`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn open_xrcd(context: *mut Context, attr: *mut XrcdInitAttr) -> *mut Xrcd {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<ContextObject>(context)?, input(attr)?) };
        if attr.comp_mask != (XRCD_INIT_ATTR_FD | XRCD_INIT_ATTR_OFLAGS)
            || attr.oflags & !(CREATE | EXCLUSIVE) != 0
        {
            return Err(Errno::INVAL);
        }
        let file = match attr.fd {
            -1 => None,
            fd => Some(crate::device::context::identity(fd).ok_or(Errno::BADF)?),
        };
        let same = |xrcd: &XrcdObject| {
            file.is_some() && xrcd.domain.file == file && xrcd.domain.device.is(object.device())
        };
        let found =
            XrcdObject::pool().find_map(|xrcd| same(xrcd).then(|| Arc::clone(&xrcd.domain)));
        let domain = match found {
            Some(_) if attr.oflags & EXCLUSIVE != 0 => return Err(Errno::INVAL),
            Some(domain) => domain,
            None if attr.oflags & CREATE == 0 => return Err(Errno::AGAIN),
            None => Arc::new(new_domain(object.device(), file)?),
        };
        let c = UnsafeCell::new(Xrcd { context });
        insert(XrcdObject {
            c,
            context,
            domain,
            users: Users::default(),
        })
    })
}

fn new_domain(device: &Device, file: Option<(u64, u64)>) -> Result<Domain, Errno> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let cq = device.create_cq(1, None).map_err(errno::from)?;
    let domain = device.create_domain().map_err(errno::from)?;
    Ok(Domain {
        device: device.clone(),
        id: XrcdId(NEXT.fetch_add(1, Ordering::Relaxed)),
        file,
        idle: (domain, cq),
    })
}

/// `ibv_close_xrcd`.
///
/// # Safety
/// No other thread may use the domain.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut Xrcd) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<XrcdObject>(xrcd)? }.users.none()?;
        // SAFETY: unused, as the caller guarantees.
        drop(unsafe { remove::<XrcdObject>(xrcd)? });
        Ok(0)
    })
}

/// Creates the receiving half of a connection, for `ibv_create_qp_ex`.
///
/// # Errors
/// `EINVAL`: no XRC domain, or attributes that receiving halves do not have.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe fn create_receiver(
    context: *mut Context,
    attr: &mut QpInitAttrEx,
) -> Result<*mut Qp, Errno> {
    if attr.comp_mask != QP_INIT_ATTR_XRCD {
        return Err(Errno::INVAL);
    }
    // SAFETY: `find` validates the handles.
    let (object, xrcd) = unsafe {
        (
            find::<ContextObject>(context)?,
            find::<XrcdObject>(attr.xrcd)?,
        )
    };
    let domain = &xrcd.domain;
    if !domain.device.is(object.device()) {
        return Err(Errno::INVAL);
    }
    let (idle, cq) = &domain.idle;
    let options = QpOptions {
        qp_type: QpType::XrcRecv,
        max_send: 1,
        max_recv: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        fail_with_peer: false,
        xrcd: Some(domain.id),
        ..QpOptions::new(*idle, cq)
    };
    let qp = domain.device.create_qp(&options).map_err(errno::from)?;
    let handle = handle_for(context, object, &qp, attr.xrcd, attr.qp_context, false)?;
    attr.cap = QpCap::default();
    xrcd.users.add();
    Ok(handle)
}

/// Creates the handle of a receiving half.
fn handle_for(
    context: *mut Context,
    object: &ContextObject,
    qp: &rkey_device::Qp,
    xrcd: *mut Xrcd,
    qp_context: *mut c_void,
    opened: bool,
) -> Result<*mut Qp, Errno> {
    let none = std::ptr::null_mut::<c_void>();
    let attr = QpInitAttr {
        qp_context,
        send_cq: none.cast(),
        recv_cq: none.cast(),
        srq: none.cast(),
        cap: QpCap::default(),
        qp_type: QPT_XRC_RECV,
        sq_sig_all: 0,
    };
    let made = NewQp {
        head: head(context, &attr, none.cast(), qp),
        qp: qp.clone(),
        service: Service::XrcRecv,
        granted: QpCap::default(),
        signal_all: false,
        builder: None,
        xrcd,
        table: std::ptr::null_mut(),
        opened,
    };
    made.insert(object)
}

/// `ibv_open_qp`: creates a second handle for a receiving half of the same domain.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn open_qp(context: *mut Context, attr: *mut QpOpenAttr) -> *mut Qp {
    const NUMBER: u32 = 1;
    const DOMAIN: u32 = 2;
    const CONTEXT: u32 = 4;
    const TYPE: u32 = 8;
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<ContextObject>(context)?, input(attr)?) };
        let needed = NUMBER | DOMAIN | TYPE;
        if attr.comp_mask & needed != needed
            || attr.comp_mask & !(needed | CONTEXT) != 0
            || attr.qp_type != QPT_XRC_RECV
        {
            return Err(Errno::INVAL);
        }
        // SAFETY: `find` validates the handle.
        let xrcd = unsafe { find::<XrcdObject>(attr.xrcd)? };
        let same = |qp: &QpObject| {
            // SAFETY: a receiving half keeps its domain alive.
            let domain = unsafe { find::<XrcdObject>(qp.xrcd) };
            qp.qp.qpn() == attr.qp_num
                && domain.is_ok_and(|of| Arc::ptr_eq(&of.domain, &xrcd.domain))
        };
        let found = QPS.find_map(|qp| same(qp).then(|| qp.qp.clone()));
        let qp = &found.ok_or(Errno::INVAL)?;
        let with_context = attr.comp_mask & CONTEXT != 0;
        let qp_context = if with_context {
            attr.qp_context
        } else {
            std::ptr::null_mut()
        };
        let handle = handle_for(context, object, qp, attr.xrcd, qp_context, true)?;
        xrcd.users.add();
        Ok(handle)
    })
}

/// Destroys the remaining XRC domains of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in XrcdObject::pool().live(|xrcd| xrcd.context == context) {
            drop(remove::<XrcdObject>(object.cast()));
        }
    }
}

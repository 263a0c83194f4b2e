//! The calls on EPs, except those that post.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::{find, find_or_null, insert, remove};
use crate::objects::connection::check_data;
use crate::objects::ep::{Ep, Parts};
use crate::objects::evd::Evd;
use crate::objects::ia::Ia;
use crate::objects::pz::Pz;
use crate::objects::srq::Srq;
use crate::sys::consts::*;
use crate::sys::*;
use crate::values::address;
use crate::values::ep_attr::Attr;
use crate::values::ep_state::{State, Step};
use std::sync::Arc;

/// Finds an EVD that has at least one of the flags in `flag`; null means none.
///
/// # Safety
/// No other thread frees the EVD during the call.
unsafe fn evd_for(
    ia: &Arc<Ia>,
    evd: EvdHandle,
    flag: dat_evd_flags,
    subtype: dat_return_subtype,
) -> Result<Option<Arc<Evd>>> {
    // SAFETY: guaranteed by the caller.
    let evd = unsafe { find_or_null::<Evd>(evd) }.map_err(|_| Fail::handle(subtype))?;
    match evd {
        Some(evd) if evd.flags & flag == 0 => Err(Fail::handle(subtype)),
        // Completions come from the IA's own device. Other events may go to an EVD of another open IA (dapltest's limit_ep).
        Some(evd) if flag != EVD_CONNECTION_FLAG && !Arc::ptr_eq(evd.ia(), ia) => {
            Err(Fail::handle(subtype))
        }
        evd => Ok(evd.cloned()),
    }
}

/// Handles that a program passes for an EP.
struct Handles {
    pz: PzHandle,
    recv: EvdHandle,
    request: EvdHandle,
    connect: EvdHandle,
}

/// Creates an EP.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
unsafe fn make(
    ia: IaHandle,
    handles: &Handles,
    srq: Option<&Arc<Srq>>,
    (attr_number, attr): (u32, *const EpAttr),
    (number, ep): (u32, *mut EpHandle),
) -> Result {
    // SAFETY: `find` validates the handles; the caller promises the attributes.
    let (ia, parts) = unsafe {
        let ia = find::<Ia>(ia)?;
        let pz = find::<Pz>(handles.pz)?;
        if !Arc::ptr_eq(pz.ia(), ia) {
            return Err(Fail::handle(INVALID_HANDLE_PZ));
        }
        let attr = match attr.is_null() {
            true => Attr::default(),
            false => Attr::read(attr_number, argument::input(attr_number, attr)?)?,
        };
        let parts = Parts {
            pz: Some(Arc::clone(pz)),
            recv: evd_for(ia, handles.recv, EVD_DTO_FLAG, INVALID_HANDLE_EVD_RECV)?,
            request: evd_for(
                ia,
                handles.request,
                EVD_DTO_FLAG | EVD_RMR_BIND_FLAG,
                INVALID_HANDLE_EVD_REQUEST,
            )?,
            connect: evd_for(
                ia,
                handles.connect,
                EVD_CONNECTION_FLAG,
                INVALID_HANDLE_EVD_CONN,
            )?,
            srq: srq.cloned(),
            attr,
            qp: None,
        };
        (ia, parts)
    };
    argument::room(number, ep)?;
    if srq.is_some_and(|srq| !parts.pz.as_ref().is_some_and(|pz| Arc::ptr_eq(pz, &srq.pz))) {
        return Err(Fail::handle(INVALID_HANDLE_SRQ));
    }
    let handle = insert::<Ep>(ia.table, |handle| {
        Ep::new(ia, handle, parts, State::Unconnected)
    })?;
    // SAFETY: room for a handle.
    unsafe { argument::store(number, ep, handle) }
}

/// `dat_ep_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    pz: PzHandle,
    recv: EvdHandle,
    request: EvdHandle,
    connect: EvdHandle,
    attr: *const EpAttr,
    ep: *mut EpHandle,
) -> Return {
    let handles = Handles {
        pz,
        recv,
        request,
        connect,
    };
    // SAFETY: guaranteed by the caller.
    call("dat_ep_create", || unsafe {
        make(ia, &handles, None, (6, attr), (7, ep))
    })
}

/// `dat_ep_create_with_srq`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[allow(clippy::too_many_arguments)] // of the C function
pub unsafe extern "C" fn create_with_srq(
    ia: IaHandle,
    pz: PzHandle,
    recv: EvdHandle,
    request: EvdHandle,
    connect: EvdHandle,
    srq: SrqHandle,
    attr: *const EpAttr,
    ep: *mut EpHandle,
) -> Return {
    let handles = Handles {
        pz,
        recv,
        request,
        connect,
    };
    // SAFETY: `find` validates the handle; the caller promises the rest.
    call("dat_ep_create_with_srq", || unsafe {
        let srq = find::<Srq>(srq)?;
        make(ia, &handles, Some(srq), (7, attr), (8, ep))
    })
}

/// `dat_ep_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(ep: EpHandle, mask: EpParamMask, param: *mut EpParam) -> Return {
    call("dat_ep_query", || {
        // SAFETY: `find` validates the handle.
        let ep = unsafe { find::<Ep>(ep)? };
        argument::mask(2, mask, EP_FIELD_ALL)?;
        let parts = ep.parts();
        let ends = ep.ends();
        let evd = |evd: &Option<Arc<Evd>>| evd.as_ref().map_or(0, |evd| evd.handle) as EvdHandle;
        let value = EpParam {
            ia_handle: ep.ia().number(),
            ep_state: ep.state() as dat_ep_state,
            comm: Comm {
                domain: libc::AF_INET,
                type_: libc::SOCK_STREAM,
                protocol: 0,
            },
            local_ia_address_ptr: ep.ia().visible.pointer(),
            local_port_qual: ends.local_port,
            remote_ia_address_ptr: ends.remote_address,
            remote_port_qual: ends.remote_port,
            pz_handle: parts.pz.as_ref().map_or(0, |pz| pz.handle) as PzHandle,
            recv_evd_handle: evd(&parts.recv),
            request_evd_handle: evd(&parts.request),
            connect_evd_handle: evd(&parts.connect),
            srq_handle: parts.srq.as_ref().map_or(0, |srq| srq.handle) as SrqHandle,
            ep_attr: parts.attr.c(),
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// The parts of an EP that can be changed.
const MODIFIABLE: EpParamMask = EP_FIELD_PZ_HANDLE
    | EP_FIELD_RECV_EVD_HANDLE
    | EP_FIELD_REQUEST_EVD_HANDLE
    | EP_FIELD_CONNECT_EVD_HANDLE
    | EP_FIELD_EP_ATTR_ALL;

/// `dat_ep_modify`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn modify(ep: EpHandle, mask: EpParamMask, param: *const EpParam) -> Return {
    call("dat_ep_modify", || {
        // SAFETY: `find` validates the handle; the caller promises the parameters.
        let (ep, param) = unsafe { (find::<Ep>(ep)?, argument::input(3, param)?) };
        argument::mask(2, mask, MODIFIABLE)?;
        // SAFETY: as in the manual page.
        let parts = unsafe { changed(ep, mask, param)? };
        ep.modify(parts)
    })
}

/// The parts of an EP after a change.
///
/// # Safety
/// No other thread may free an object that `param` names.
unsafe fn changed(ep: &Arc<Ep>, mask: EpParamMask, param: &EpParam) -> Result<Parts> {
    let ia = ep.ia();
    let mut parts = ep.parts();
    let has = |field: EpParamMask| mask & field != 0;
    // SAFETY: `find` validates the handles.
    unsafe {
        if has(EP_FIELD_PZ_HANDLE) {
            let pz = find::<Pz>(param.pz_handle)?;
            if !Arc::ptr_eq(pz.ia(), ia) {
                return Err(Fail::handle(INVALID_HANDLE_PZ));
            }
            parts.pz = Some(Arc::clone(pz));
        }
        let evd = |handle, flag, subtype| evd_for(ia, handle, flag, subtype);
        if has(EP_FIELD_RECV_EVD_HANDLE) {
            parts.recv = evd(param.recv_evd_handle, EVD_DTO_FLAG, INVALID_HANDLE_EVD_RECV)?;
        }
        if has(EP_FIELD_REQUEST_EVD_HANDLE) {
            let flags = EVD_DTO_FLAG | EVD_RMR_BIND_FLAG;
            parts.request = evd(param.request_evd_handle, flags, INVALID_HANDLE_EVD_REQUEST)?;
        }
        if has(EP_FIELD_CONNECT_EVD_HANDLE) {
            let (flag, subtype) = (EVD_CONNECTION_FLAG, INVALID_HANDLE_EVD_CONN);
            parts.connect = evd(param.connect_evd_handle, flag, subtype)?;
        }
    }
    if has(EP_FIELD_EP_ATTR_ALL) {
        let (old, new) = (parts.attr.c(), &param.ep_attr);
        let mut asked = old;
        macro_rules! take {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $(if has($bit) { asked.$field = new.$field; })*
            };
        }
        take! {
            EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE => max_message_size,
            EP_FIELD_EP_ATTR_MAX_RDMA_SIZE => max_rdma_size,
            EP_FIELD_EP_ATTR_QOS => qos,
            EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS => recv_completion_flags,
            EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS => request_completion_flags,
            EP_FIELD_EP_ATTR_MAX_RECV_DTOS => max_recv_dtos,
            EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS => max_request_dtos,
            EP_FIELD_EP_ATTR_MAX_RECV_IOV => max_recv_iov,
            EP_FIELD_EP_ATTR_MAX_REQUEST_IOV => max_request_iov,
            EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN => max_rdma_read_in,
            EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT => max_rdma_read_out,
            EP_FIELD_EP_ATTR_SRQ_SOFT_HW => srq_soft_hw,
            EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV => max_rdma_read_iov,
            EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV => max_rdma_write_iov,
        }
        let service = has(EP_FIELD_EP_ATTR_SERVICE_TYPE);
        if service && new.service_type != old.service_type {
            return Err(Fail::argument(2));
        }
        parts.attr = Attr::read(3, &asked)?;
    }
    Ok(parts)
}

impl Ep {
    /// Replaces the objects that the EP uses.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`: it is (or was) connected, or receives are posted.
    pub fn modify(self: &Arc<Self>, parts: Parts) -> Result {
        // Keep `control` locked, so that no other thread connects or accepts with the old queue pair during the change.
        let control = self.control.lock();
        let posted = match self.qp() {
            Some(qp) => qp.query()?.receives > 0,
            None => false,
        };
        let ready = matches!(
            self.state(),
            State::Unconnected
                | State::Unconfigured
                | State::Reserved
                | State::PassivePending
                | State::UnconfiguredPassive
        );
        if posted || !ready {
            return Err(self.not_now());
        }
        let configured = parts.pz.is_some();
        self.rebuild(parts)?;
        let waits = matches!(
            self.state(),
            State::Unconfigured | State::UnconfiguredPassive
        );
        match waits && configured {
            true => self.step(&control, Step::Configure),
            false => Ok(()),
        }
    }
}

/// `dat_ep_connect`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[allow(clippy::too_many_arguments)] // of the C function
pub unsafe extern "C" fn connect(
    ep: EpHandle,
    remote: IaAddressPtr,
    conn_qual: ConnQual,
    timeout: Timeout,
    size: Count,
    data: Pvoid,
    _qos: dat_qos,
    flags: dat_connect_flags,
) -> Return {
    call("dat_ep_connect", || {
        // SAFETY: `find` validates the handle; the caller promises the rest.
        let (ep, address, data) = unsafe {
            let ep = find::<Ep>(ep)?;
            let address = address::read(2, remote)?;
            let data = argument::list((5, size), (6, data.cast_const().cast::<u8>()))?;
            (ep, address, data)
        };
        check_data(5, data)?;
        match flags {
            CONNECT_DEFAULT_FLAG | CONNECT_MULTIPATH_FLAG => {}
            CONNECT_MULTIPATH_REQUIRED_FLAG => return Err(Fail::NO_MODEL),
            _ => return Err(Fail::argument(8)),
        }
        if timeout == 0 {
            return Err(Fail::argument(4));
        }
        ep.connect(address, conn_qual, timeout, data)
    })
}

/// `dat_ep_dup_connect`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn dup_connect(
    ep: EpHandle,
    like: EpHandle,
    timeout: Timeout,
    size: Count,
    data: Pvoid,
    _qos: dat_qos,
) -> Return {
    call("dat_ep_dup_connect", || {
        // SAFETY: `find` validates the handles; the caller promises the data.
        let (ep, like, data) = unsafe {
            let data = argument::list((4, size), (5, data.cast_const().cast::<u8>()))?;
            (find::<Ep>(ep)?, find::<Ep>(like)?, data)
        };
        check_data(4, data)?;
        if timeout == 0 {
            return Err(Fail::argument(3));
        }
        if !Arc::ptr_eq(ep.ia(), like.ia()) {
            return Err(Fail::handle(INVALID_HANDLE2));
        }
        ep.connect_like(like, timeout, data)
    })
}

/// `dat_ep_disconnect`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn disconnect(ep: EpHandle, flags: dat_close_flags) -> Return {
    call("dat_ep_disconnect", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Ep>(ep)? }.disconnect(flags)
    })
}

/// `dat_ep_get_status`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn get_status(
    ep: EpHandle,
    state: *mut dat_ep_state,
    recv_idle: *mut dat_boolean,
    request_idle: *mut dat_boolean,
) -> Return {
    call("dat_ep_get_status", || {
        // SAFETY: `find` validates the handle.
        let ep = unsafe { find::<Ep>(ep)? };
        let info = ep.qp().and_then(|qp| qp.query().ok());
        let (sends, receives) = info.map_or((0, 0), |info| (info.sends, info.receives));
        let idle = |posted: u32| if posted == 0 { TRUE } else { FALSE };
        // SAFETY: null, or room for each.
        unsafe {
            argument::store_if(2, state, ep.state() as dat_ep_state)?;
            argument::store_if(3, recv_idle, idle(receives))?;
            argument::store_if(4, request_idle, idle(sends))
        }
    })
}

/// `dat_ep_recv_query`: how many receives are posted, and how many more can be.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn recv_query(
    ep: EpHandle,
    allocated: *mut Count,
    span: *mut Count,
) -> Return {
    call("dat_ep_recv_query", || {
        // SAFETY: `find` validates the handle.
        let ep = unsafe { find::<Ep>(ep)? };
        let info = ep.qp().and_then(|qp| qp.query().ok());
        let posted = info.map_or(0, |info| info.receives) as Count;
        // Messages arrive in order and fill the oldest receive, so the allocated receives are the spanned ones.
        // SAFETY: null, or room for each.
        unsafe {
            argument::store_if(2, allocated, posted)?;
            argument::store_if(3, span, posted)
        }
    })
}

/// `dat_ep_set_watermark`: an EP takes one receive of its SRQ for each message, so it never holds more than one and no
/// watermark can be reached.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn set_watermark(ep: EpHandle, soft: Count, hard: Count) -> Return {
    call("dat_ep_set_watermark", || {
        // SAFETY: `find` validates the handle.
        let ep = unsafe { find::<Ep>(ep)? };
        if ep.parts().srq.is_none() {
            return Err(Fail::NO_MODEL);
        }
        for (number, mark) in [(2, soft), (3, hard)] {
            if mark < WATERMARK_INFINITE || mark == 0 {
                return Err(Fail::argument(number));
            }
        }
        Ok(())
    })
}

/// `dat_ep_reset`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn reset(ep: EpHandle) -> Return {
    call("dat_ep_reset", || {
        // SAFETY: `find` validates the handle.
        Arc::clone(unsafe { find::<Ep>(ep)? }).reset()
    })
}

/// `dat_ep_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(ep: EpHandle) -> Return {
    call("dat_ep_free", || {
        // SAFETY: `find` validates the handle.
        Arc::clone(unsafe { find::<Ep>(ep)? }).free()?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Ep>(ep as usize) }.map(drop)
    })
}

//! `rdma_create_ep`, `rdma_destroy_ep`, `rdma_get_request`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::calls::bind::bind;
use crate::calls::resolve::{find_route, resolve};
use crate::fetching::next_event::{complete, fetch_from};
use crate::lookup::address;
use crate::lookup::addrinfo;
use crate::objects::event::{id_of, kind, release_event};
use crate::objects::id::{IdObject, QpInit};
use crate::objects::ids;
use crate::queues::qp;
use crate::sys::*;
use rkey_kit::argument::{input, store};
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;

/// The timeout for [`find_route`]. Every value but 0 has the same effect.
const TIMEOUT_MS: c_int = 2000;

/// Prepares a new identifier: binds it (`RAI_PASSIVE`), or resolves its address and path and creates its queue pair.
unsafe fn prepare(
    object: &IdObject,
    info: &Addrinfo,
    pd: *mut Pd,
    qp_init: *mut QpInitAttr,
) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if info.ai_flags & RAI_PASSIVE != 0 {
            bind(object, address::read(info.ai_src_addr)?)?;
            if !pd.is_null() {
                object.set_pd(pd);
            }
            if !qp_init.is_null() {
                let mut attr = *input(qp_init.cast_const())?;
                attr.qp_type = info.ai_qp_type as ibv_qp_type;
                *object.qp_init.lock() = Some(QpInit(attr));
            }
            return Ok(());
        }
        let source = address::read_or_null(info.ai_src_addr)?;
        resolve(object, source, address::read(info.ai_dst_addr)?)?;
        complete(object)?;
        find_route(object, TIMEOUT_MS)?;
        complete(object)?;
        if !qp_init.is_null() {
            let mut attr = *input(qp_init.cast_const())?;
            attr.qp_type = info.ai_qp_type as ibv_qp_type;
            qp::create_plain(object, pd, &mut attr)?;
            store(qp_init, attr)?;
        }
        if info.ai_connect_len > 0 {
            let len = u8::try_from(info.ai_connect_len).map_err(|_| Errno::INVAL)?;
            *object.connect_data.lock() = address::private_data(info.ai_connect, len);
        }
    }
    Ok(())
}

/// `rdma_create_ep`.
///
/// # Safety
/// `id` is null or valid for writes; the others are null or valid.
pub unsafe extern "C" fn create_ep(
    id: *mut *mut CmId,
    info: *mut Addrinfo,
    pd: *mut Pd,
    qp_init: *mut QpInitAttr,
) -> c_int {
    c_call_or_minus_one(|| {
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let info = input(info.cast_const())?;
            let space = info.ai_port_space as rdma_port_space;
            addrinfo::qp_type_of(space)?;
            let qp_type = info.ai_qp_type as ibv_qp_type;
            let handle = ids::create(std::ptr::null_mut(), std::ptr::null_mut(), space, qp_type)?;
            let prepared = prepare(find(handle)?, info, pd, qp_init);
            prepared.inspect_err(|_| {
                let _ = destroy_all(handle);
            })?;
            store(id, handle)?;
        }
        Ok(0)
    })
}

/// Destroys an identifier with its queue pair and shared receive queue.
///
/// # Errors
/// `EINVAL`: no live identifier has this address.
///
/// # Safety
/// They must not be used afterwards.
unsafe fn destroy_all(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let object = find::<IdObject>(id)?;
        if !object.qp().is_null() {
            qp::destroy(object);
        }
        if !object.srq().is_null() {
            crate::queues::srq::destroy(object);
        }
        ids::destroy(id)
    }
}

/// `rdma_destroy_ep`.
///
/// # Safety
/// The identifier must not be used afterwards.
pub unsafe extern "C" fn destroy_ep(id: *mut CmId) {
    // SAFETY: guaranteed by the caller.
    rkey_kit::c_call(|| unsafe { destroy_all(id) });
}

unsafe fn next_request(listener: &IdObject) -> Result<*mut CmId, Errno> {
    if !listener.is_sync() {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        release_event(listener);
        let event = fetch_from(listener.channel())?;
        let checked = match kind(event)? {
            (CM_EVENT_CONNECT_REQUEST, 0) => Ok(()),
            (CM_EVENT_REJECTED, _) => Err(Errno::from_raw(libc::ECONNREFUSED)),
            (_, 0) => Err(Errno::INVAL),
            (_, status) => Err(Errno::from_raw(status.abs())),
        };
        if let Err(error) = checked {
            listener.set_event(event);
            return Err(error);
        }
        let handle = id_of(event)?;
        let child = find::<IdObject>(handle)?;
        let qp_init = *listener.qp_init.lock();
        if let Some(QpInit(mut attr)) = qp_init
            && let Err(error) = qp::create_plain(child, listener.pd(), &mut attr)
        {
            listener.set_event(event);
            release_event(listener);
            let _ = ids::destroy(handle);
            return Err(error);
        }
        child.set_event(event);
        Ok(handle)
    }
}

/// `rdma_get_request`.
///
/// # Safety
/// `id` is null or valid for writes; the listener must not be destroyed during the call.
pub unsafe extern "C" fn get_request(listen: *mut CmId, id: *mut *mut CmId) -> c_int {
    c_call_or_minus_one(|| {
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { store(id, next_request(find(listen)?)?)? };
        Ok(0)
    })
}

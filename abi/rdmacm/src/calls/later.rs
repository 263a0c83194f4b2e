//! Calls added after rdma-core 44: asynchronous name lookups, and the program's own events.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::fetching::next_event::complete;
use crate::lookup::addrinfo::{self, Failed, Wanted};
use crate::objects::event::CM_EVENT_USER;
use crate::objects::id::IdObject;
use crate::state::front::{entry, with};
use crate::state::hub::{IdKey, PendingEvent};
use crate::sys::*;
use rkey_device::threads;
use rkey_kit::argument::store;
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{CString, c_char, c_int};

/// `RAI_SA`: ask the InfiniBand subnet administrator.
const RAI_SA: c_int = 16;
/// `RAI_DNS`: ask as `getaddrinfo(3)` does. This is the default.
const RAI_DNS: c_int = 32;

/// Looks up a name, and queues the event.
fn look_up(key: IdKey, node: Option<CString>, service: Option<CString>, wanted: &Wanted) {
    let found = addrinfo::find(node.as_deref(), service.as_deref(), wanted);
    let status = match found {
        Ok(_) => 0,
        // The codes of `getaddrinfo(3)` are negative on Linux.
        Err(Failed::Lookup(code)) => code,
        Err(Failed::System(error)) => -error.raw(),
    };
    // An error means that the identifier has ended.
    let _ = with(|parts| {
        entry(parts.handler, key)?.found = found.ok();
        parts.handler.push(key, PendingEvent::AddressInfo(status));
        Ok(())
    });
}

/// `rdma_resolve_addrinfo`: like `rdma_getaddrinfo`, but the result is an event.
///
/// # Safety
/// The strings and hints are null or valid; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn resolve_addrinfo(
    id: *mut CmId,
    node: *const c_char,
    service: *const c_char,
    hints: *const Addrinfo,
) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, wanted) = unsafe { (find::<IdObject>(id)?, addrinfo::wanted(hints)?) };
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(Errno::INVAL);
        }
        match wanted.flags & (RAI_SA | RAI_DNS) {
            0 | RAI_DNS => {}
            RAI_SA => {
                tracing::info!(
                    "rdma_resolve_addrinfo: RAI_SA is not supported, because only InfiniBand has a subnet administrator: use RAI_DNS"
                );
                return Err(Errno::OPNOTSUPP);
            }
            _ => return Err(Errno::INVAL),
        }
        let key = object.key;
        with(|parts| {
            entry(parts.handler, key)?.found = None;
            Ok(())
        })?;
        // SAFETY: guaranteed by the caller.
        let [node, service] = [node, service].map(|it| unsafe { addrinfo::text(it) });
        let [node, service] = [node, service].map(|it| it.map(ToOwned::to_owned));
        let looking = move || look_up(key, node, service, &wanted);
        // The thread is detached: it ends after the lookup.
        threads::spawn("rkey-addrinfo", looking).map_err(|error| Errno::from(&error))?;
        // SAFETY: guaranteed by the caller.
        unsafe { complete(object) }?;
        Ok(0)
    })
}

/// `rdma_query_addrinfo`.
///
/// # Safety
/// `info` is null or valid for writes; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn query_addrinfo(id: *mut CmId, info: *mut *mut Addrinfo) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { find::<IdObject>(id) }?;
        if info.is_null() {
            return Err(Errno::INVAL);
        }
        let found = with(|parts| Ok(entry(parts.handler, object.key)?.found))?;
        let found = found.ok_or(Errno::from_raw(libc::ENODATA))?;
        // SAFETY: guaranteed by the caller.
        unsafe { store(info, addrinfo::to_c(&found))? };
        Ok(0)
    })
}

/// `rdma_write_cm_event`.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn write_cm_event(
    id: *mut CmId,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { find::<IdObject>(id) }?;
        if event != CM_EVENT_USER {
            return Err(Errno::INVAL);
        }
        with(|parts| {
            entry(parts.handler, object.key)?;
            parts
                .handler
                .push(object.key, PendingEvent::User(status, arg));
            Ok(0)
        })
    })
}

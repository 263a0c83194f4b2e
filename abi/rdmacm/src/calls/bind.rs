//! `rdma_bind_addr` and `rdma_listen`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::lookup::address::{self, is_any, is_ours};
use crate::objects::id::IdObject;
use crate::queues::qp::attach_device;
use crate::state::front::{entry, errno, with};
use crate::state::hub::{Entry, Phase};
use crate::state::ports::{self, leaves_device_undetermined};
use crate::sys::*;
use ibverbs::sys::{QPT_RC, QPT_UC, QPT_XRC_RECV, QPT_XRC_SEND};
use rkey_cm::address::ServiceId;
use rkey_cm::manager::{Kind, ListenOn};
use rkey_cm::wire::Transport;
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};

/// The maximum backlog, also used when a program passes 0 or less.
const BACKLOG_MAX: c_int = 1024;

/// Binds an identifier to an address.
///
/// # Errors
/// `EINVAL`: the identifier is already bound, or the address is link-local and has no scope id. `EADDRNOTAVAIL`: the address does
/// not belong to this host. `ENODEV`: the port space is `RDMA_PS_IPOIB`. The errors of [`ports::bind`] and [`attach_device`].
pub fn bind(object: &IdObject, address: SocketAddr) -> Result<(), Errno> {
    if let SocketAddr::V6(six) = address
        && six.ip().is_unicast_link_local()
        && six.scope_id() == 0
    {
        tracing::info!(
            "cannot bind to {}: it is link-local, so sin6_scope_id must be the index of its interface",
            six.ip()
        );
        return Err(Errno::INVAL);
    }
    if !is_any(address.ip()) && !is_ours(address.ip()) {
        tracing::info!(
            "cannot bind to {}: it is not an address of this host",
            address.ip()
        );
        return Err(Errno::from_raw(libc::EADDRNOTAVAIL));
    }
    let key = object.key;
    let bound = with(|parts| {
        let own = entry(parts.handler, key)?;
        if own.phase != Phase::Idle {
            return Err(Errno::INVAL);
        }
        if own.space == PS_IPOIB {
            tracing::info!(
                "cannot bind an identifier of RDMA_PS_IPOIB, which exists on InfiniBand only: use RDMA_PS_UDP"
            );
            return Err(Errno::NODEV);
        }
        let bound = ports::bind(parts, key, address)?;
        entry(parts.handler, key)?.phase = Phase::Bound;
        Ok(bound)
    })?;
    object.set_source(bound);
    if !leaves_device_undetermined(bound.ip()) {
        attach_device(object)?;
    }
    Ok(())
}

/// The addresses at which an identifier listens.
fn listen_on(entry: &Entry, local: SocketAddr) -> ListenOn {
    match local.ip() {
        ip if !is_any(ip) => ListenOn::Address(ip.to_canonical()),
        ip if ip.is_ipv4() => ListenOn::AnyV4,
        _ if entry.has_one_family(local) => ListenOn::AnyV6,
        _ => ListenOn::Any,
    }
}

/// The kind of queue pair for which an identifier listens.
///
/// # Errors
/// `EINVAL`: this type of queue pair cannot listen.
fn kind(entry: &Entry) -> Result<Kind, Errno> {
    match entry.qp_type {
        _ if entry.is_datagram() => Ok(Kind::Datagram),
        QPT_RC => Ok(Kind::Connected(Transport::Rc)),
        QPT_UC => Ok(Kind::Connected(Transport::Uc)),
        QPT_XRC_RECV => Ok(Kind::Connected(Transport::Xrc)),
        other => {
            let name = match other {
                QPT_XRC_SEND => "IBV_QPT_XRC_SEND".to_owned(),
                _ => other.to_string(),
            };
            tracing::info!(
                "rdma_listen: an identifier with queue pair type {name} cannot listen; use IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD or IBV_QPT_XRC_RECV"
            );
            Err(Errno::INVAL)
        }
    }
}

/// Starts listening. An identifier without an address is bound to a free port on all IPv4 addresses.
///
/// # Errors
/// `EINVAL`: the identifier is in use, or is for a type of queue pair that cannot listen. `EADDRINUSE`, `EADDRNOTAVAIL`: another
/// identifier has the address.
pub fn listen_at(object: &IdObject, backlog: c_int) -> Result<(), Errno> {
    let key = object.key;
    let phase = with(|parts| Ok(entry(parts.handler, key)?.phase))?;
    if phase == Phase::Idle {
        bind(object, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    }
    let backlog = match backlog {
        1..=BACKLOG_MAX => backlog,
        _ => BACKLOG_MAX,
    };
    with(|parts| {
        let own = entry(parts.handler, key)?;
        let (Phase::Bound, Some(local)) = (own.phase, own.local) else {
            return Err(Errno::INVAL);
        };
        let (on, kind) = (listen_on(own, local), kind(own)?);
        // A listener cannot share its address.
        ports::is_free(parts.handler, key, local, false)?;
        let own = entry(parts.handler, key)?;
        let service = ServiceId::new(own.port_space(), local.port());
        let made = parts.manager.listen(on, service, kind, backlog as usize);
        let listener = made.map_err(errno("rdma_listen"))?;
        if let Err(error) = parts.open(service) {
            let now = parts.now;
            let ended = parts.manager.unlisten(now, listener);
            ended.map_err(errno("rdma_listen"))?;
            tracing::error!("cannot listen on port {}: {error}", local.port());
            return Err(Errno::from(&error));
        }
        entry(parts.handler, key)?.phase = Phase::Listening;
        parts.handler.set_listener(key, listener);
        Ok(())
    })
}

/// `rdma_bind_addr`.
///
/// # Safety
/// `addr` is null or points to an address; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn bind_addr(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, address) = unsafe { (find::<IdObject>(id)?, address::read(addr)?) };
        bind(object, address)?;
        Ok(0)
    })
}

/// `rdma_listen`.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn listen(id: *mut CmId, backlog: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| listen_at(unsafe { find(id)? }, backlog).map(|()| 0))
}

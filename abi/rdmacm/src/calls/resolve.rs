//! `rdma_resolve_addr` and `rdma_resolve_route`. Both complete immediately: peers are on this host, or the routing table determines
//! from which of our addresses the wire reaches them.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::calls::bind::bind;
use crate::fetching::next_event::complete;
use crate::lookup::address::{self, is_any, is_ours, loopback};
use crate::objects::id::IdObject;
use crate::state::front::{entry, with};
use crate::state::hub::{Entry, PendingEvent, Phase};
use crate::state::ports;
use crate::sys::*;
use rkey_cm::manager::PathOptions;
use rkey_cm::wire::Mtu;
use rkey_device::wire::{Wire, WirePath};
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The packet lifetime of a path if the program does not set `RDMA_OPTION_ID_ACK_TIMEOUT`: 4.096 µs * 2^18, about 1 s.
const LIFE_TIME: u8 = 18;
/// `IBV_MTU_4096`, the MTU of the device's port.
const MTU: Mtu = Mtu::B4096;
/// Resolves an address. Queues an event with the result.
///
/// # Errors
/// `EINVAL`: the identifier is in use, or the addresses are of different families. The errors of [`bind`].
pub fn resolve(
    object: &IdObject,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Result<(), Errno> {
    let key = object.key;
    let phase = with(|parts| Ok(entry(parts.handler, key)?.phase))?;
    if !matches!(phase, Phase::Idle | Phase::Bound) {
        return Err(Errno::INVAL);
    }
    if source.is_some_and(|source| source.is_ipv4() != destination.is_ipv4()) {
        return Err(Errno::INVAL);
    }
    if let (Some(source), Phase::Idle) = (source, phase) {
        bind(object, source)?;
    }
    let peer = match is_any(destination.ip()) {
        true => SocketAddr::new(loopback(destination), destination.port()),
        false => destination,
    };
    object.set_destination(peer);
    let (is_group, is_here) = (peer.ip().is_multicast(), is_ours(peer.ip()));
    with(|parts| {
        let own = entry(parts.handler, key)?;
        let (space, bound) = (own.space, own.local);
        if bound.is_some_and(|bound| bound.is_ipv4() != peer.is_ipv4()) {
            return Err(Errno::INVAL);
        }
        let port = match bound {
            Some(bound) => bound.port(),
            None => ports::unclaimed(parts.handler, space)?,
        };
        let ip = bound.map(|bound| bound.ip()).filter(|ip| !is_any(*ip));
        let local = match (is_group, is_here) {
            (true, _) => Some(ip.unwrap_or_else(|| source_towards(peer))),
            (false, true) => Some(ip.unwrap_or(peer.ip())),
            (false, false) => route(parts.wire(), peer.ip(), ip).map(|path| path.local),
        };
        let own = entry(parts.handler, key)?;
        let pending = match local {
            Some(ip) => {
                own.local = Some(SocketAddr::new(ip, port));
                own.peer = Some(peer);
                own.phase = Phase::AddressResolved;
                PendingEvent::AddressResolved
            }
            None => PendingEvent::AddressError(-libc::ETIMEDOUT),
        };
        parts.handler.push(key, pending);
        Ok(())
    })
}

/// The route to another host, from `local` if given. If there is none, logs why.
fn route(wire: Option<&Wire>, peer: IpAddr, local: Option<IpAddr>) -> Option<WirePath> {
    let Some(wire) = wire else {
        tracing::warn!(
            "{peer} is not an address of this host; to reach other hosts, set RKEY_WIRE=auto"
        );
        return None;
    };
    let path = wire.path(peer, local);
    if path.is_none() {
        tracing::warn!("the wire has no route to {peer}; `rkey info` lists the wire's addresses");
    }
    path
}

/// Our source address for datagrams to a group: the one that the kernel would choose, or the loopback address if it has no route.
fn source_towards(group: SocketAddr) -> IpAddr {
    let wildcard: IpAddr = match group {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a UDP socket sends nothing. Port 0 cannot be connected to.
    let to = SocketAddr::new(group.ip(), group.port().max(1));
    let chosen = UdpSocket::bind((wildcard, 0)).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    let chosen = chosen.map(|address| address.ip()).ok();
    chosen
        .filter(|ip| is_ours(*ip))
        .unwrap_or_else(|| loopback(group))
}

/// The path MTU between two addresses. Members of multicast groups are on this host.
fn mtu_between(wire: Option<&Wire>, local: Option<SocketAddr>, peer: Option<SocketAddr>) -> Mtu {
    let is_here = |peer: SocketAddr| peer.ip().is_multicast() || is_ours(peer.ip());
    let (Some(wire), Some(peer)) = (wire, peer.filter(|peer| !is_here(*peer))) else {
        return MTU;
    };
    let path = wire.path(peer.ip(), local.map(|it| it.ip()));
    path.map_or(Mtu::B1024, |path| path.message_mtu())
}

/// Builds the path of an identifier.
fn path(own: &Entry, mtu: Mtu) -> PathOptions {
    let port = |address: Option<SocketAddr>| address.map_or(0, |it| u32::from(it.port()));
    let flow_label = port(own.local)
        .wrapping_mul(31)
        .wrapping_add(port(own.peer))
        & 0xf_ffff;
    PathOptions {
        mtu,
        flow_label,
        traffic_class: own.options.tos,
        ack_timeout: own.options.ack_timeout.unwrap_or(LIFE_TIME + 1),
        ..PathOptions::default()
    }
}

/// Resolves the path. Queues an event with the result.
///
/// # Errors
/// `EINVAL`: the address is not resolved, or the timeout is 0.
pub fn find_route(object: &IdObject, timeout_ms: c_int) -> Result<(), Errno> {
    let key = object.key;
    with(|parts| {
        let own = entry(parts.handler, key)?;
        if own.phase != Phase::AddressResolved || timeout_ms == 0 {
            return Err(Errno::INVAL);
        }
        let (local, peer) = (own.local, own.peer);
        let mtu = mtu_between(parts.wire(), local, peer);
        let own = entry(parts.handler, key)?;
        own.path = path(own, mtu);
        own.phase = Phase::RouteResolved;
        parts.handler.push(key, PendingEvent::RouteResolved);
        Ok(())
    })
}

/// `rdma_resolve_addr`.
///
/// # Safety
/// The pointers are null or point to addresses; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn resolve_addr(
    id: *mut CmId,
    source: *mut libc::sockaddr,
    destination: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let object = find::<IdObject>(id)?;
            let destination = address::read(destination)?;
            resolve(object, address::read_or_null(source)?, destination)?;
            complete(object)?;
        }
        Ok(0)
    })
}

/// `rdma_resolve_route`.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn resolve_route(id: *mut CmId, timeout_ms: c_int) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let object = find::<IdObject>(id)?;
            find_route(object, timeout_ms)?;
            complete(object)?;
        }
        Ok(0)
    })
}

//! What happens when a program fetches an event: identifiers get their addresses, requests become identifiers, and queue pairs move
//! to RTS. A program that does not fetch its events does not connect.

#![allow(unsafe_code)]
// UNSAFETY: verbs calls on the identifier's queue pair.

use crate::fetching::path::record;
use crate::objects::event::{
    CM_EVENT_ADDRINFO_ERROR, CM_EVENT_ADDRINFO_RESOLVED, CM_EVENT_USER, Draft, Param,
};
use crate::objects::id::{IdObject, of_handle};
use crate::queues::qp::{attach_device, attach_to_group, make_ready};
use crate::queues::qp_attr::{GROUP_QP, address_of_group, address_of_peer};
use crate::queues::verbs;
use crate::state::front::{entry, errno, with, with_entry};
use crate::state::hub::{IdKey, PendingEvent, Phase, Remote, Request};
use crate::state::member::GroupKey;
use crate::sys::*;
use rkey_cm::manager::{ConnectRequest, PathOptions};
use rkey_cm::wire::{Mtu, Rej, Rep, SidrRep, SidrStatus};
use rkey_device::cm::random;
use rkey_kit::Errno;
use std::ffi::c_int;
use std::ptr::{null, null_mut};

/// Builds the event for the program. If that fails for a request, rejects the request.
///
/// # Errors
/// `ENOMEM`. `EINVAL`: the identifier has ended. For a request, those of [`attach_device`].
pub fn make(id: &IdObject, pending: PendingEvent) -> Result<Draft, Errno> {
    Ok(match pending {
        PendingEvent::AddressResolved => address_resolved(id)?,
        PendingEvent::AddressError(status) => plain(id, CM_EVENT_ADDR_ERROR, status),
        PendingEvent::RouteResolved => route_resolved(id)?,
        PendingEvent::Request(request) => connect_request(id, &request)?,
        PendingEvent::Response(rep) => response(id, &rep)?,
        PendingEvent::Established => Draft {
            param: Param::Connection(no_param()),
            ..plain(id, CM_EVENT_ESTABLISHED, 0)
        },
        PendingEvent::Datagram(rep) => datagram(id, &rep)?,
        PendingEvent::Rejected(rej) => rejected(id, &rej),
        PendingEvent::Unreachable => unreachable(id),
        PendingEvent::Disconnected(_) => plain(id, CM_EVENT_DISCONNECTED, 0),
        PendingEvent::TimeWaitExit => plain(id, CM_EVENT_TIMEWAIT_EXIT, 0),
        PendingEvent::Joined(group) => joined(id, group)?,
        PendingEvent::AddressInfo(0) => plain(id, CM_EVENT_ADDRINFO_RESOLVED, 0),
        PendingEvent::AddressInfo(status) => plain(id, CM_EVENT_ADDRINFO_ERROR, status),
        PendingEvent::User(status, arg) => Draft {
            param: Param::User(arg),
            ..plain(id, CM_EVENT_USER, status)
        },
    })
}

fn plain(id: &IdObject, event: rdma_cm_event_type, status: c_int) -> Draft {
    Draft {
        id: id.handle(),
        listen_id: null_mut(),
        event,
        status,
        param: Param::None,
        data: Vec::new(),
        about: id.key,
        group: None,
    }
}

fn no_param() -> ConnParam {
    ConnParam {
        private_data: null(),
        private_data_len: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

fn address_resolved(id: &IdObject) -> Result<Draft, Errno> {
    let (local, peer) = with_entry(id.key, |own| Ok((own.local, own.peer)))?;
    if let (Some(local), Some(peer)) = (local, peer) {
        id.set_source(local);
        id.set_destination(peer);
    }
    Ok(match attach_device(id) {
        Ok(()) => plain(id, CM_EVENT_ADDR_RESOLVED, 0),
        Err(error) => {
            with_entry(id.key, |own| {
                // Unless the program bound the address, it was chosen for this peer: forget it.
                if !own.claims {
                    own.local = None;
                }
                own.phase = if own.claims {
                    Phase::Bound
                } else {
                    Phase::Idle
                };
                Ok(())
            })?;
            plain(id, CM_EVENT_ADDR_ERROR, -error.raw())
        }
    })
}

fn route_resolved(id: &IdObject) -> Result<Draft, Errno> {
    id.set_path(with_entry(id.key, |own| Ok(record(own)))?);
    Ok(plain(id, CM_EVENT_ROUTE_RESOLVED, 0))
}

/// The path in a request.
fn path_of(it: &ConnectRequest) -> PathOptions {
    PathOptions {
        // The connection manager has checked the MTU, so the default does not apply.
        mtu: it.req.path_mtu().unwrap_or(Mtu::B1024),
        flow_label: it.req.path.flow_label,
        traffic_class: it.req.path.traffic_class,
        hop_limit: it.req.path.hop_limit,
        ack_timeout: it.req.path.ack_timeout,
    }
}

/// Creates the identifier for a request. If that fails, closes the connection.
fn connect_request(listener: &IdObject, request: &Request) -> Result<Draft, Errno> {
    let connection = request.connection();
    let made = crate::objects::ids::create_child(listener).and_then(|(handle, key)| {
        let filled = fill_in(listener, request, handle, key);
        filled.inspect_err(|_| {
            // SAFETY: just created; the program has not seen it.
            let _ = unsafe { crate::objects::ids::destroy(handle) };
        })
    });
    made.inspect_err(|_| {
        let _ = with(|parts| {
            // The connection may already have ended.
            let _ = parts.manager.close(parts.now, connection);
            Ok(())
        });
    })
}

/// Fills in the identifier for a request, and builds the event.
fn fill_in(
    listener: &IdObject,
    request: &Request,
    handle: *mut CmId,
    key: IdKey,
) -> Result<Draft, Errno> {
    let connection = request.connection();
    let (from, to, param, data) = match request {
        Request::Connection(it) => {
            let param = ConnParam {
                // The peer's limit as a responder is our limit as a requester, and vice versa.
                responder_resources: it.req.initiator_depth,
                initiator_depth: it.req.responder_resources,
                flow_control: it.req.flow_control.into(),
                retry_count: it.req.retry_count,
                rnr_retry_count: it.req.rnr_retry,
                srq: it.req.srq.into(),
                qp_num: it.req.qpn,
                ..no_param()
            };
            let data = it.data.as_bytes().to_vec();
            (it.from, it.to, Param::Connection(param), data)
        }
        Request::Datagram(it) => {
            let data = it.data.as_bytes().to_vec();
            (it.from, it.to, Param::Datagram(no_ud_param()), data)
        }
    };
    // A program that creates its own queue pair needs the PSN before it accepts.
    let starting_psn = new_psn()?;
    with(|parts| {
        // From now on, the request does not count against the backlog. An error means that it has already ended.
        let _ = parts.manager.take_request(connection);
        let own = entry(parts.handler, key)?;
        own.phase = Phase::Requested;
        (own.local, own.peer) = (Some(to), Some(from));
        own.starting_psn = starting_psn;
        if let Request::Connection(it) = request {
            own.path = path_of(it);
            own.responder_resources = it.req.initiator_depth;
            own.initiator_depth = it.req.responder_resources;
            own.rnr_retry = it.req.rnr_retry;
            own.remote_ece = it.ece;
            own.remote = Some(Remote {
                qpn: it.req.qpn,
                starting_psn: it.req.starting_psn,
            });
        }
        parts.handler.set_connection(key, connection);
        Ok(())
    })?;
    // SAFETY: just created; no other thread has seen it.
    let child: &IdObject = unsafe { of_handle(handle.expose_provenance()) }?;
    let (local, peer, path) = with_entry(key, |own| Ok((own.local, own.peer, record(own))))?;
    if let (Some(local), Some(peer)) = (local, peer) {
        child.set_source(local);
        child.set_destination(peer);
    }
    if matches!(request, Request::Connection(_)) {
        child.set_path(path);
    }
    attach_device(child)?;
    if listener.is_sync() {
        // SAFETY: as above.
        unsafe { crate::objects::ids::migrate(child, null_mut()) }?;
    }
    Ok(Draft {
        id: handle,
        listen_id: listener.handle(),
        param,
        data,
        ..plain(listener, CM_EVENT_CONNECT_REQUEST, 0)
    })
}

/// A random initial PSN for our queue pair.
///
/// # Errors
/// No random number is available.
pub fn new_psn() -> Result<u32, Errno> {
    let psn = random().map_err(|error| Errno::from(&error))?;
    Ok(psn & 0xff_ffff)
}

/// Sends the RTU, which tells the peer that our queue pair is ready.
///
/// # Errors
/// `EINVAL`: there is no response, or the connection has ended.
pub fn establish_now(key: IdKey) -> Result<(), Errno> {
    with(|parts| {
        let now = parts.now;
        let own = entry(parts.handler, key)?;
        let connection = own.connection.ok_or(Errno::INVAL)?;
        let result = parts.manager.establish(now, connection);
        result.map_err(errno("rdma_establish"))?;
        entry(parts.handler, key)?.phase = Phase::Connected;
        Ok(())
    })
}

/// The peer has accepted: moves the queue pair to RTS and sends the RTU. A program that creates its own queue pair does both itself.
fn response(id: &IdObject, rep: &Rep) -> Result<Draft, Errno> {
    let transport = with_entry(id.key, |own| Ok(own.transport()))?;
    let param = ConnParam {
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.flow_control.into(),
        rnr_retry_count: rep.rnr_retry,
        srq: rep.srq.into(),
        qp_num: rep.queue_pair(transport),
        ..no_param()
    };
    with_entry(id.key, |own| {
        // Each limit is the smaller one of what one side can have outstanding and the other side can execute.
        own.initiator_depth = own.initiator_depth.min(rep.responder_resources);
        own.responder_resources = own.responder_resources.min(rep.initiator_depth);
        own.rnr_retry = rep.rnr_retry;
        Ok(())
    })?;
    let (event, status) = if id.qp().is_null() {
        (CM_EVENT_CONNECT_RESPONSE, 0)
    } else {
        // SAFETY: the program does not destroy the queue pair of a connection whose event it fetches.
        let ready = unsafe { make_ready(id) }.and_then(|()| establish_now(id.key));
        match ready {
            Ok(()) => (CM_EVENT_ESTABLISHED, 0),
            Err(error) => {
                let _ = with_entry(id.key, |own| {
                    own.has_failed = true;
                    Ok(())
                });
                // SAFETY: as above.
                unsafe { verbs::fail_qp(id.qp()) };
                (CM_EVENT_CONNECT_ERROR, -error.raw())
            }
        }
    };
    Ok(Draft {
        param: Param::Connection(param),
        data: rep.data.as_bytes().to_vec(),
        ..plain(id, event, status)
    })
}

fn no_ud_param() -> UdParam {
    UdParam {
        private_data: null(),
        private_data_len: 0,
        ah_attr: AhAttr::default(),
        qp_num: 0,
        qkey: 0,
    }
}

fn datagram(id: &IdObject, rep: &SidrRep) -> Result<Draft, Errno> {
    let status = rep.checked_status();
    if status != SidrStatus::VALID {
        tracing::info!(
            "the peer has no datagram queue pair for the service id {:#x}: {status}",
            rep.service.0
        );
        return Ok(plain(id, CM_EVENT_UNREACHABLE, status.0.into()));
    }
    let param = UdParam {
        ah_attr: with_entry(id.key, |own| address_of_peer(own))?,
        qp_num: rep.qpn,
        qkey: rep.qkey,
        ..no_ud_param()
    };
    Ok(Draft {
        param: Param::Datagram(param),
        data: rep.data.as_bytes().to_vec(),
        ..plain(id, CM_EVENT_ESTABLISHED, 0)
    })
}

/// Attaches the queue pair to a group that the identifier has joined.
fn joined(id: &IdObject, group: GroupKey) -> Result<Draft, Errno> {
    let (member, ah_attr) = with_entry(id.key, |own| {
        let member = own.member(group).ok_or(Errno::INVAL)?.clone();
        let ah_attr = address_of_group(own, &member)?;
        Ok((member, ah_attr))
    })?;
    let param = UdParam {
        private_data: std::ptr::with_exposed_provenance(member.context),
        ah_attr,
        qp_num: GROUP_QP,
        qkey: UDP_QKEY,
        ..no_ud_param()
    };
    // SAFETY: the program does not destroy the queue pair of an identifier whose event it fetches.
    let (event, status) = match unsafe { attach_to_group(id, &member) } {
        Ok(()) => (CM_EVENT_MULTICAST_JOIN, 0),
        Err(error) => (CM_EVENT_MULTICAST_ERROR, -error.raw()),
    };
    Ok(Draft {
        param: Param::Group(param),
        group: Some(group),
        ..plain(id, event, status)
    })
}

fn rejected(id: &IdObject, rej: &Rej) -> Draft {
    match with_entry(id.key, |own| Ok(own.peer)) {
        Ok(Some(peer)) => tracing::info!("{peer} refused the connection: {}", rej.reason),
        _ => tracing::info!("the peer refused the connection: {}", rej.reason),
    }
    // SAFETY: the program does not destroy the queue pair of a connection whose event it fetches.
    unsafe { verbs::fail_qp(id.qp()) };
    Draft {
        param: Param::Connection(no_param()),
        data: rej.data.as_bytes().to_vec(),
        ..plain(id, CM_EVENT_REJECTED, rej.reason.0.into())
    }
}

fn unreachable(id: &IdObject) -> Draft {
    // SAFETY: the program does not destroy the queue pair of a connection whose event it fetches.
    unsafe { verbs::fail_qp(id.qp()) };
    plain(id, CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT)
}

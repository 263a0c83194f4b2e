//! The active side: `rdma_connect` and `rdma_establish`; for both sides, `rdma_disconnect` and `rdma_notify`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::fetching::fetch::{establish_now, new_psn};
use crate::fetching::next_event::complete;
use crate::lookup::address::private_data;
use crate::objects::id::IdObject;
use crate::queues::verbs::{self, READS_MAX};
use crate::state::front::{entry, errno, with};
use crate::state::hub::{Entry, Hub, IdKey, Phase};
use crate::sys::*;
use ibverbs::sys::QPT_XRC_RECV;
use rkey_cm::State;
use rkey_cm::manager::{self, QueuePair, Resolve};
use rkey_cm::wire::{PrivateData, Req, SidrReq};
use rkey_device::cm::{Parts, Why};
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;

/// `EISCONN`.
const ISCONN: Errno = Errno::from_raw(libc::EISCONN);
/// The retry count and the RNR retry count if the program passes no parameters.
const RETRIES: u8 = 7;
/// `IBV_EVENT_COMM_EST`.
const COMM_EST: c_int = ibverbs::sys::EVENT_COMM_EST;

/// The arguments of `rdma_connect` or `rdma_accept`, with the identifier's queue pair.
pub struct Arguments {
    /// The identifier's queue pair: its number, and whether it has a shared receive queue.
    pub qp: Option<(u32, bool)>,
    /// The parameters, if there are any.
    pub param: Option<ConnParam>,
    /// The private data.
    pub data: Vec<u8>,
}

/// Reads the arguments that a program passes.
///
/// # Errors
/// `EINVAL`: the identifier has no device; its queue pair is not live; or, for connected queue pairs, there is neither a queue
/// pair nor parameters, or the parameters request more outstanding reads than the device supports.
///
/// # Safety
/// `param` is null or valid; the identifier must not be destroyed during the call.
pub unsafe fn read_arguments(object: &IdObject, param: *mut ConnParam) -> Result<Arguments, Errno> {
    if object.verbs().is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    let (param, qp) = unsafe {
        let param = param.cast_const();
        let param = (!param.is_null()).then(|| param.read_unaligned());
        let qp = object.qp();
        let qp = (!qp.is_null()).then(|| verbs::qp_number(qp)).transpose()?;
        (param, qp)
    };
    let is_datagram = crate::state::front::with_entry(object.key, |own| Ok(own.is_datagram()))?;
    if !is_datagram && qp.is_none() && param.is_none() {
        return Err(Errno::INVAL);
    }
    if let Some(param) = param.filter(|_| !is_datagram) {
        let fits = |count: u8| count == MAX_RESP_RES || count <= READS_MAX;
        if !fits(param.responder_resources) || !fits(param.initiator_depth) {
            tracing::info!(
                "responder_resources {} or initiator_depth {} exceeds the device's limit of {READS_MAX}",
                param.responder_resources,
                param.initiator_depth
            );
            return Err(Errno::INVAL);
        }
    }
    // Data from `rdma_create_ep` precedes the program's own.
    let mut data = object.connect_data.lock().clone();
    if let Some(param) = param {
        // SAFETY: guaranteed by the caller.
        data.extend(unsafe { private_data(param.private_data, param.private_data_len) });
    }
    Ok(Arguments { qp, param, data })
}

impl Arguments {
    /// The number of the queue pair, and whether it has a shared receive queue. If the program created the queue pair itself, both
    /// come from the parameters.
    #[must_use]
    pub fn number(&self) -> (u32, bool) {
        let given = || self.param.map_or((0, false), |it| (it.qp_num, it.srq != 0));
        self.qp.unwrap_or_else(given)
    }

    /// The attributes of our queue pair that the message carries.
    #[must_use]
    pub fn queue_pair(&self, own: &Entry) -> QueuePair {
        let (qpn, srq) = self.number();
        QueuePair {
            qpn,
            starting_psn: own.starting_psn,
            responder_resources: own.responder_resources,
            initiator_depth: own.initiator_depth,
            retry_count: self.param.map_or(RETRIES, |it| it.retry_count.min(7)),
            rnr_retry: self.param.map_or(RETRIES, |it| it.rnr_retry_count.min(7)),
            srq,
            flow_control: self.param.is_some_and(|it| it.flow_control != 0),
        }
    }

    /// The private data, as a field of a message.
    ///
    /// # Errors
    /// `EINVAL`: it is too long.
    pub fn data<const N: usize>(&self) -> Result<PrivateData<N>, Errno> {
        to_field(&self.data)
    }
}

/// Converts private data to a field of a message.
///
/// # Errors
/// `EINVAL`: it is too long.
pub fn to_field<const N: usize>(data: &[u8]) -> Result<PrivateData<N>, Errno> {
    PrivateData::new(data).map_err(|error| {
        tracing::info!("{error}");
        Errno::INVAL
    })
}

/// Checks the length of private data. If it is too long, records a refusal for `rkey explain`.
///
/// # Errors
/// `EINVAL`: it is longer than `limit`.
pub fn check_length(
    parts: &mut Parts<'_, Hub>,
    key: IdKey,
    data: &[u8],
    limit: usize,
) -> Result<(), Errno> {
    let given = data.len();
    if given <= limit {
        return Ok(());
    }
    let peer = entry(parts.handler, key)?.peer;
    parts.refuse_call(peer, Why::PrivateData { given, most: limit });
    Err(Errno::INVAL)
}

fn begin(parts: &mut Parts<'_, Hub>, key: IdKey, arguments: &Arguments) -> Result<(), Errno> {
    let (now, starting_psn) = (parts.now, new_psn()?);
    let own = entry(parts.handler, key)?;
    let (Phase::RouteResolved, Some(from), Some(to)) = (own.phase, own.local, own.peer) else {
        return Err(Errno::INVAL);
    };
    // Groups have no listeners, and an XRC receiving half cannot request a connection.
    if to.ip().is_multicast() || own.qp_type == QPT_XRC_RECV {
        return Err(Errno::INVAL);
    }
    let limit = match own.is_datagram() {
        true => SidrReq::DATA,
        false => Req::DATA,
    };
    check_length(parts, key, &arguments.data, limit)?;
    let own = entry(parts.handler, key)?;
    let space = own.port_space();
    let made = if own.is_datagram() {
        let data = arguments.data()?;
        let resolve = Resolve {
            from,
            to,
            space,
            data,
        };
        parts.manager.resolve_datagram(now, &resolve)
    } else {
        let depth = |given: Option<u8>| match given {
            Some(count) if count != MAX_RESP_RES => count,
            _ => READS_MAX,
        };
        own.responder_resources = depth(arguments.param.map(|it| it.responder_resources));
        own.initiator_depth = depth(arguments.param.map(|it| it.initiator_depth));
        own.starting_psn = starting_psn;
        let connect = manager::Connect {
            from,
            to,
            space,
            transport: own.transport(),
            queue_pair: arguments.queue_pair(own),
            path: own.path,
            ece: own.ece,
            data: arguments.data()?,
        };
        own.rnr_retry = connect.queue_pair.rnr_retry;
        parts.manager.connect(now, &connect)
    };
    let connection = made.map_err(errno("rdma_connect"))?;
    entry(parts.handler, key)?.phase = Phase::Connecting;
    parts.handler.set_connection(key, connection);
    Ok(())
}

/// `rdma_connect`.
///
/// # Safety
/// `param` is null or valid; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let object = find::<IdObject>(id)?;
            let arguments = read_arguments(object, param)?;
            with(|parts| begin(parts, object.key, &arguments))?;
            object.connect_data.lock().clear();
            complete(object)?;
        }
        Ok(0)
    })
}

/// `rdma_establish`.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn establish(id: *mut CmId) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { find::<IdObject>(id)? };
        if !object.qp().is_null() {
            return Err(Errno::INVAL);
        }
        establish_now(object.key)?;
        Ok(0)
    })
}

/// Disconnects, unless the queue pair is for datagrams. Returns whether an event follows.
fn end(parts: &mut Parts<'_, Hub>, key: IdKey) -> Result<bool, Errno> {
    let now = parts.now;
    let own = entry(parts.handler, key)?;
    let connection = own.connection.ok_or(Errno::INVAL)?;
    if own.is_datagram() {
        return Ok(false);
    }
    let follows = match parts.manager.state(connection) {
        Some(State::Established | State::DreqSent) => true,
        // The program may already have fetched the event.
        Some(State::DreqReceived) => parts.handler.has_events(key),
        _ => false,
    };
    // An error means that there is nothing to disconnect, or that the disconnection is under way.
    let _ = parts.manager.disconnect(now, connection);
    Ok(follows)
}

/// `rdma_disconnect`.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn disconnect(id: *mut CmId) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let object = find::<IdObject>(id)?;
            let key = object.key;
            if object.verbs().is_null() {
                return Err(Errno::INVAL);
            }
            with(|parts| entry(parts.handler, key)?.connection.ok_or(Errno::INVAL))?;
            verbs::fail_qp(object.qp());
            let has_event = with(|parts| end(parts, key))?;
            if has_event {
                complete(object)?;
            }
        }
        Ok(0)
    })
}

/// `rdma_notify`: a queue pair has received data before its connection is established.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn notify(id: *mut CmId, event: c_int) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { find::<IdObject>(id)? };
        if event != COMM_EST {
            return Err(Errno::INVAL);
        }
        with(|parts| {
            let now = parts.now;
            let connection = entry(parts.handler, object.key)?.connection;
            let connection = connection.ok_or(Errno::INVAL)?;
            if parts.manager.state(connection) == Some(State::Established) {
                return Err(ISCONN);
            }
            let result = parts.manager.communication_established(now, connection);
            result.map_err(errno("rdma_notify"))
        })?;
        Ok(0)
    })
}

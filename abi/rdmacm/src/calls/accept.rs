//! The passive side: `rdma_accept` and `rdma_reject`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::calls::connect::{Arguments, check_length, read_arguments, to_field};
use crate::fetching::next_event::complete;
use crate::lookup::address::private_data;
use crate::objects::id::IdObject;
use crate::queues::qp::make_ready;
use crate::queues::verbs::{self, READS_MAX};
use crate::state::front::{entry, errno, with};
use crate::state::hub::{Hub, IdKey, Phase};
use crate::sys::*;
use rkey_cm::manager::{Accept, DatagramAnswer};
use rkey_cm::wire::{Rej, RejectReason, Rep, SidrRep, SidrStatus};
use rkey_device::cm::Parts;
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{c_int, c_void};

/// Sets the limits for outstanding reads and atomics, before the queue pair is moved to RTS.
fn prepare(parts: &mut Parts<'_, Hub>, key: IdKey, arguments: &Arguments) -> Result<(), Errno> {
    let own = entry(parts.handler, key)?;
    if own.phase != Phase::Requested {
        return Err(Errno::INVAL);
    }
    let depth = |given: Option<u8>, requested: u8| match given {
        Some(count) if count != MAX_RESP_RES => count,
        _ => requested.min(READS_MAX),
    };
    let given = arguments.param;
    own.responder_resources = depth(
        given.map(|it| it.responder_resources),
        own.responder_resources,
    );
    own.initiator_depth = depth(given.map(|it| it.initiator_depth), own.initiator_depth);
    Ok(())
}

fn answer(parts: &mut Parts<'_, Hub>, key: IdKey, arguments: &Arguments) -> Result<(), Errno> {
    let now = parts.now;
    let own = entry(parts.handler, key)?;
    let connection = own.connection.ok_or(Errno::INVAL)?;
    if own.phase != Phase::Requested {
        return Err(Errno::INVAL);
    }
    let limit = match own.is_datagram() {
        true => SidrRep::DATA,
        false => Rep::DATA,
    };
    check_length(parts, key, &arguments.data, limit)?;
    let own = entry(parts.handler, key)?;
    let answered = if own.is_datagram() {
        let answer = DatagramAnswer {
            qpn: arguments.number().0,
            qkey: UDP_QKEY,
            data: arguments.data()?,
        };
        parts.manager.accept_datagram(now, connection, &answer)
    } else {
        let with = Accept {
            queue_pair: arguments.queue_pair(own),
            ece: own.ece,
            data: arguments.data()?,
        };
        parts.manager.accept(now, connection, &with)
    };
    answered.map_err(errno("rdma_accept"))?;
    // From now on, the program receives the events of the connection.
    entry(parts.handler, key)?.phase = Phase::Connected;
    Ok(())
}

/// Rejects a request that could not be accepted, as the kernel does.
fn give_up(key: IdKey) {
    let phase = with(|parts| Ok(entry(parts.handler, key)?.phase));
    if phase == Ok(Phase::Requested) {
        // An error means that the peer has also given up.
        let _ = refuse(key, RejectReason::CONSUMER, &[], 0);
    }
}

unsafe fn accept_request(object: &IdObject, param: *mut ConnParam) -> Result<(), Errno> {
    let key = object.key;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let arguments = read_arguments(object, param)?;
        let is_datagram = with(|parts| Ok(entry(parts.handler, key)?.is_datagram()))?;
        let accepted = with(|parts| prepare(parts, key, &arguments))
            .and_then(|()| match is_datagram || object.qp().is_null() {
                true => Ok(()),
                false => make_ready(object),
            })
            .and_then(|()| with(|parts| answer(parts, key, &arguments)));
        accepted.inspect_err(|_| {
            verbs::fail_qp(object.qp());
            give_up(key);
        })?;
        match is_datagram {
            true => Ok(()),
            false => complete(object),
        }
    }
}

/// `rdma_accept`.
///
/// # Safety
/// `param` is null or valid; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| unsafe { accept_request(find(id)?, param) }.map(|()| 0))
}

fn refuse(key: IdKey, reason: RejectReason, data: &[u8], options: u32) -> Result<(), Errno> {
    with(|parts| {
        let now = parts.now;
        let own = entry(parts.handler, key)?;
        let connection = own.connection.ok_or(Errno::INVAL)?;
        // The active side may reject a response that the program has fetched.
        if !matches!(own.phase, Phase::Requested | Phase::Connecting) {
            return Err(Errno::INVAL);
        }
        let limit = match own.is_datagram() {
            true => SidrRep::DATA,
            false => Rej::DATA,
        };
        check_length(parts, key, data, limit)?;
        let own = entry(parts.handler, key)?;
        let refused = if own.is_datagram() {
            let (status, data) = (SidrStatus::REJECT, to_field(data)?);
            parts.manager.reject_datagram(now, connection, status, data)
        } else {
            let data = to_field(data)?;
            parts.manager.reject(now, connection, reason, data, options)
        };
        refused.map_err(errno("rdma_reject"))?;
        entry(parts.handler, key)?.phase = Phase::Ended;
        Ok(())
    })
}

/// `rdma_reject`.
///
/// # Safety
/// If not null, `data` points to `len` bytes; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn reject(id: *mut CmId, data: *const c_void, len: u8) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, data) = unsafe { (find::<IdObject>(id)?, private_data(data, len)) };
        refuse(object.key, RejectReason::CONSUMER, &data, 0)?;
        Ok(0)
    })
}

/// `rdma_reject_ece`.
///
/// # Safety
/// If not null, `data` points to `len` bytes; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn reject_ece(id: *mut CmId, data: *const c_void, len: u8) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, data) = unsafe { (find::<IdObject>(id)?, private_data(data, len)) };
        let ece = with(|parts| Ok(entry(parts.handler, object.key)?.ece))?;
        refuse(object.key, RejectReason::VENDOR, &data, ece.options)?;
        Ok(0)
    })
}

//! Multicast groups: `rdma_join_multicast`, `rdma_join_multicast_ex`, `rdma_leave_multicast`.
//!
//! The groups are the device's own (`ibv_attach_mcast`), and all members are on this host. So a join completes at once, and sends no
//! IGMP or MLD reports to the network.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and addresses that C code passes.

use crate::fetching::next_event::complete;
use crate::objects::event::release_event;
use crate::objects::id::IdObject;
use crate::queues::verbs;
use crate::state::front::{entry, wait_until, with};
use crate::state::hub::{Hub, IdKey, PendingEvent, Phase};
use crate::state::member::{Address, Member};
use crate::sys::*;
use rkey_device::cm::Parts;
use rkey_kit::argument::input;
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{c_int, c_void};

fn add(
    parts: &mut Parts<'_, Hub>,
    key: IdKey,
    address: Address,
    only_sends: bool,
    context: usize,
) -> Result<(), Errno> {
    let group = parts.handler.new_group();
    let own = entry(parts.handler, key)?;
    let is_ready = matches!(own.phase, Phase::Bound | Phase::AddressResolved);
    if !own.is_datagram() || !is_ready || address.gid == [0; 16] {
        return Err(Errno::INVAL);
    }
    own.groups.push(Member {
        key: group,
        address,
        only_sends,
        context,
        is_left: false,
        fetched: 0,
        acknowledged: 0,
    });
    parts.handler.push(key, PendingEvent::Joined(group));
    Ok(())
}

/// Joins a group. Queues an event with the result.
///
/// # Errors
/// `EINVAL`: the identifier has no device or no address, or is not for datagrams; or the group's address is unspecified.
///
/// # Safety
/// `address` is null or points to an address; the identifier must not be destroyed during the call.
unsafe fn join(
    id: *mut CmId,
    address: *const libc::sockaddr,
    only_sends: bool,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    // SAFETY: guaranteed by the caller.
    let (object, address) = unsafe { (find::<IdObject>(id)?, Address::read(address)?) };
    if object.verbs().is_null() {
        return Err(Errno::INVAL);
    }
    let context = context.expose_provenance();
    with(|parts| add(parts, object.key, address, only_sends, context))?;
    // SAFETY: guaranteed by the caller.
    unsafe { complete(object) }?;
    Ok(0)
}

/// Leaves a group.
///
/// # Errors
/// `EADDRNOTAVAIL`: the identifier has not joined it.
///
/// # Safety
/// The identifier must not be destroyed during the call.
unsafe fn leave(object: &IdObject, address: &Address) -> Result<(), Errno> {
    let key = object.key;
    let group = with(|parts| {
        let own = entry(parts.handler, key)?;
        let mut latest_first = own.groups.iter_mut().rev();
        let member = latest_first.find(|it| !it.is_left && it.address == *address);
        let member = member.ok_or(Errno::from_raw(libc::EADDRNOTAVAIL))?;
        member.is_left = true;
        let group = member.key;
        let is_of_group = |event: &PendingEvent| event.group() == Some(group);
        parts.handler.drop_matching(key, is_of_group);
        Ok(group)
    })?;
    if object.is_sync() {
        // The identifier may still hold the event of the join.
        // SAFETY: guaranteed by the caller.
        unsafe { release_event(object) };
    }
    wait_until(key, |entry| {
        let member = entry.member(group);
        member.is_none_or(|member| member.fetched == member.acknowledged)
    })?;
    let member = with(|parts| {
        let groups = &mut entry(parts.handler, key)?.groups;
        let index = groups.iter().position(|member| member.key == group);
        Ok(index.map(|index| groups.remove(index)))
    })?;
    if member.is_some_and(|member| !member.only_sends) && !object.qp().is_null() {
        // The call fails if the queue pair was never attached: the program did not fetch the event, or created the queue pair later.
        // SAFETY: guaranteed by the caller.
        let _ = unsafe { verbs::detach(object.qp(), &address.gid) };
    }
    Ok(())
}

/// `rdma_join_multicast`.
///
/// # Safety
/// `addr` is null or points to an address; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn join_multicast(
    id: *mut CmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| unsafe { join(id, addr, false, context) })
}

/// `rdma_join_multicast_ex`.
///
/// # Safety
/// `attr` is null or valid; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn join_multicast_ex(
    id: *mut CmId,
    attr: *mut CmJoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    const NEEDED: u32 = CM_JOIN_MC_ATTR_ADDRESS | CM_JOIN_MC_ATTR_JOIN_FLAGS;
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { input(attr.cast_const()) }?;
        if attr.comp_mask >= CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno::OPNOTSUPP);
        }
        if attr.comp_mask & NEEDED != NEEDED || attr.join_flags >= MC_JOIN_FLAG_RESERVED {
            return Err(Errno::INVAL);
        }
        let only_sends = attr.join_flags == MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        // SAFETY: guaranteed by the caller.
        unsafe { join(id, attr.addr, only_sends, context) }
    })
}

/// `rdma_leave_multicast`.
///
/// # Safety
/// `addr` is null or points to an address; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn leave_multicast(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { leave(find(id)?, &Address::read(addr)?) }?;
        Ok(0)
    })
}

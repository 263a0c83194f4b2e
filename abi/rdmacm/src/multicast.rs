//! Multicast groups: `rdma_join_multicast`, `rdma_join_multicast_ex`, `rdma_leave_multicast`.
//!
//! The groups are the device's own (`ibv_attach_mcast`), and all members are on this host. So a join completes at once, and sends no
//! IGMP or MLD reports to the network.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and addresses that C code passes.

use crate::bind::PORT;
use crate::event::{complete, release_event};
use crate::front::{entry, wait_until, with};
use crate::hub::{Entry, GroupKey, Hub, IdKey, PendingEvent, Phase};
use crate::id::IdObject;
use crate::sys::*;
use crate::verbs::{self, gid_index};
use ibverbs::sys::GlobalRoute;
use rkey_device::cm::Parts;
use rkey_kit::argument::input;
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;

/// The queue pair number that addresses all members of a group.
pub const QP: u32 = 0xff_ffff;
/// `AF_IB`, the family of InfiniBand addresses.
const AF_IB: c_int = 27;
/// The length of an InfiniBand address (`struct sockaddr_ib`).
const IB_LEN: usize = 48;
const HOP_LIMIT: u8 = 64;

/// An identifier's membership in a group.
#[derive(Clone, Debug)]
pub struct Member {
    /// The key of the membership.
    pub key: GroupKey,
    /// The group.
    pub address: Address,
    /// Whether the queue pair only sends to the group.
    pub only_sends: bool,
    /// The context pointer that the program passed.
    pub context: usize,
    /// Whether the program is leaving the group. The membership ends when its events are acknowledged.
    pub is_left: bool,
    /// How many events of the membership the program has fetched.
    pub fetched: u64,
    /// How many events of the membership the program has acknowledged.
    pub acknowledged: u64,
}

/// The address of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address as the program passed it. The program must pass the same bytes to leave the group.
    bytes: Vec<u8>,
    /// The GID of the group.
    gid: [u8; 16],
}

impl Address {
    /// # Errors
    /// `EINVAL`: null, or neither IPv4, IPv6 nor InfiniBand.
    ///
    /// # Safety
    /// If not null, it points to an address as long as its family requires.
    unsafe fn read(address: *const libc::sockaddr) -> Result<Self, Errno> {
        if address.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null; every address begins with its family. It may be unaligned.
        let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
        let len = match c_int::from(family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            AF_IB => IB_LEN,
            _ => return Err(Errno::INVAL),
        };
        // SAFETY: the caller guarantees that it is as long as its family requires.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
        let gid = match len {
            // `sockaddr_in`: the address follows the family and the port.
            16 => {
                let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
                match ip.is_unspecified() {
                    true => [0; 16],
                    false => ip.to_ipv6_mapped().octets(),
                }
            }
            // `sockaddr_in6` and `sockaddr_ib`: 8 bytes precede the address.
            _ => std::array::from_fn(|index| bytes[8 + index]),
        };
        let bytes = bytes.to_vec();
        Ok(Self { bytes, gid })
    }
}

/// The attributes of an address handle for a group.
///
/// # Errors
/// `EINVAL`: the identifier has no address.
pub fn address_of(own: &Entry, member: &Member) -> Result<AhAttr, Errno> {
    let local = own.local.ok_or(Errno::INVAL)?;
    Ok(AhAttr {
        grh: GlobalRoute {
            dgid: Gid(member.address.gid),
            flow_label: 0,
            sgid_index: gid_index(local),
            hop_limit: HOP_LIMIT,
            traffic_class: own.options.tos,
        },
        is_global: 1,
        port_num: PORT,
        ..AhAttr::default()
    })
}

/// Attaches the queue pair of an identifier to a group. Does nothing if there is no queue pair, if it only sends, or if the program
/// has left the group.
///
/// # Errors
/// The errors of `ibv_attach_mcast`, such as `EINVAL`: the address is not a multicast address.
///
/// # Safety
/// The queue pair must not be destroyed during the call.
pub unsafe fn attach(object: &IdObject, member: &Member) -> Result<(), Errno> {
    if object.qp().is_null() || member.only_sends || member.is_left {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { verbs::attach(object.qp(), &member.address.gid) }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn read(address: SocketAddr) -> Address {
        let c = crate::address::storage(address);
        // SAFETY: a whole address.
        unsafe { Address::read((&raw const c).cast()) }.unwrap()
    }

    #[test]
    fn a_group_has_the_gid_of_its_address() {
        let mapped = "::ffff:239.1.2.3".parse::<std::net::Ipv6Addr>().unwrap();
        assert_eq!(read("239.1.2.3:0".parse().unwrap()).gid, mapped.octets());
        assert_eq!(read("0.0.0.0:9".parse().unwrap()).gid, [0; 16]);
        let six = read("[ff0e::7]:0".parse().unwrap());
        assert_eq!(six.gid[..2], [0xff, 0x0e]);
        assert_eq!(six.gid[15], 7);
    }

    #[test]
    fn the_gid_of_an_infiniband_address_is_the_address() {
        let mut bytes = [0u8; IB_LEN];
        bytes[..2].copy_from_slice(&(AF_IB as u16).to_ne_bytes());
        bytes[8..24].copy_from_slice(&[9; 16]);
        // SAFETY: a whole address.
        let address = unsafe { Address::read(bytes.as_ptr().cast()) }.unwrap();
        assert_eq!(address.gid, [9; 16]);
    }

    #[test]
    fn group_addresses_with_different_ports_differ() {
        let (one, other) = ("239.1.2.3:1", "239.1.2.3:2");
        assert_ne!(read(one.parse().unwrap()), read(other.parse().unwrap()));
        assert_eq!(read(one.parse().unwrap()), read(one.parse().unwrap()));
    }

    #[test]
    fn null_and_other_address_families_are_refused() {
        let mut bytes = [0u8; IB_LEN];
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        // SAFETY: null, and an address that begins with its family.
        unsafe {
            assert_eq!(Address::read(std::ptr::null()), Err(Errno::INVAL));
            assert_eq!(Address::read(bytes.as_ptr().cast()), Err(Errno::INVAL));
        }
    }
}

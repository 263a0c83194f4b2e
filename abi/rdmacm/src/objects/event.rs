//! Events (`struct rdma_cm_event`), as programs see them, until they are acknowledged.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and a structure that points to its own private data.

use crate::objects::id::IdObject;
use crate::state::front::with;
use crate::state::hub::IdKey;
use crate::state::member::GroupKey;
use crate::sys::*;
use rkey_kit::object::{find, insert, remove};
use rkey_kit::{Errno, c_call_or_minus_one};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

/// The maximum number of events that are fetched but not acknowledged.
pub const MAX: u32 = 1 << 18;
/// The maximum length of private data, which is that of a REP.
pub const DATA_MAX: usize = 196;

/// `RDMA_CM_EVENT_ADDRINFO_RESOLVED`.
pub const CM_EVENT_ADDRINFO_RESOLVED: rdma_cm_event_type = 16;
/// `RDMA_CM_EVENT_ADDRINFO_ERROR`.
pub const CM_EVENT_ADDRINFO_ERROR: rdma_cm_event_type = 17;
/// `RDMA_CM_EVENT_USER`.
pub const CM_EVENT_USER: rdma_cm_event_type = 18;

/// A fetched event.
#[repr(C)]
pub struct EventObject {
    c: UnsafeCell<CmEvent>,
    data: UnsafeCell<[u8; DATA_MAX]>,
    /// The identifier that waits for the acknowledgement.
    about: IdKey,
    /// The membership in a multicast group that also waits for the acknowledgement.
    group: Option<GroupKey>,
}

// SAFETY: the C structure is written only while the event is created.
unsafe impl Sync for EventObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for EventObject {}

rkey_kit::object!(EventObject, c: CmEvent, MAX);

/// The parameters of an event.
#[derive(Clone, Copy)]
pub enum Param {
    /// No parameters.
    None,
    /// The parameters of a connection.
    Connection(ConnParam),
    /// The parameters of a datagram queue pair.
    Datagram(UdParam),
    /// The parameters of a multicast group. The private data is the context pointer that the program passed when it joined.
    Group(UdParam),
    /// The argument of the program's own event.
    User(u64),
}

/// An event that is not allocated yet.
pub struct Draft {
    /// The identifier that the event is for.
    pub id: *mut CmId,
    /// The listener, for a connection request.
    pub listen_id: *mut CmId,
    /// The type of the event.
    pub event: rdma_cm_event_type,
    /// The status of the event.
    pub status: c_int,
    /// The parameters of the event; [`new`] adds the private data.
    pub param: Param,
    /// The private data.
    pub data: Vec<u8>,
    /// The identifier that waits for the acknowledgement.
    pub about: IdKey,
    /// The membership in a multicast group that also waits for the acknowledgement.
    pub group: Option<GroupKey>,
}

/// Copies the fields one by one: copying the whole structure would expose the contents of its padding.
fn fill_connection(param: &mut EventParam, from: &ConnParam) {
    // SAFETY: the union is all zeros, which is a value of each member.
    let conn = unsafe { &mut param.conn };
    conn.responder_resources = from.responder_resources;
    conn.initiator_depth = from.initiator_depth;
    conn.flow_control = from.flow_control;
    conn.retry_count = from.retry_count;
    conn.rnr_retry_count = from.rnr_retry_count;
    conn.srq = from.srq;
    conn.qp_num = from.qp_num;
}

/// Like [`fill_connection`].
fn fill_datagram(param: &mut EventParam, from: &UdParam) {
    // SAFETY: the union is all zeros, which is a value of each member.
    let ud = unsafe { &mut param.ud };
    ud.private_data = from.private_data;
    let (to, from_attr) = (&mut ud.ah_attr, &from.ah_attr);
    to.grh.dgid = from_attr.grh.dgid;
    to.grh.flow_label = from_attr.grh.flow_label;
    to.grh.sgid_index = from_attr.grh.sgid_index;
    to.grh.hop_limit = from_attr.grh.hop_limit;
    to.grh.traffic_class = from_attr.grh.traffic_class;
    to.dlid = from_attr.dlid;
    to.sl = from_attr.sl;
    to.src_path_bits = from_attr.src_path_bits;
    to.static_rate = from_attr.static_rate;
    to.is_global = from_attr.is_global;
    to.port_num = from_attr.port_num;
    ud.qp_num = from.qp_num;
    ud.qkey = from.qkey;
}

/// Allocates an event.
///
/// # Errors
/// `ENOMEM`.
pub fn new(draft: Draft) -> Result<*mut CmEvent, Errno> {
    let mut data = [0; DATA_MAX];
    let len = draft.data.len().min(DATA_MAX);
    data[..len].copy_from_slice(&draft.data[..len]);
    // SAFETY: all fields are numbers or pointers, which may be all zeros.
    let mut c: CmEvent = unsafe { std::mem::zeroed() };
    c.id = draft.id;
    c.listen_id = draft.listen_id;
    c.event = draft.event;
    c.status = draft.status;
    match draft.param {
        Param::None => {}
        Param::Connection(conn) => fill_connection(&mut c.param, &conn),
        Param::Datagram(ud) | Param::Group(ud) => fill_datagram(&mut c.param, &ud),
        // SAFETY: the C union has this member since rdma-core 60; it fits, and every byte of the union may be written.
        Param::User(arg) => unsafe { (&raw mut c.param).cast::<u64>().write(arg) },
    }
    let handle = insert(EventObject {
        c: UnsafeCell::new(c),
        data: UnsafeCell::new(data),
        about: draft.about,
        group: draft.group,
    })?;
    // SAFETY: just created, so it is live, and no other thread has seen it.
    unsafe {
        let at = find::<EventObject>(handle)?.data.get().cast::<c_void>();
        let at = if len == 0 { null_mut() } else { at };
        match draft.param {
            Param::None | Param::Group(_) | Param::User(_) => {}
            Param::Connection(_) => {
                (*handle).param.conn.private_data = at;
                (*handle).param.conn.private_data_len = len as u8;
            }
            Param::Datagram(_) => {
                (*handle).param.ud.private_data = at;
                (*handle).param.ud.private_data_len = len as u8;
            }
        }
    }
    Ok(handle)
}

/// Counts an event as acknowledged: for its identifier, and for its membership in a multicast group, if any.
pub(crate) fn acknowledge(about: IdKey, group: Option<GroupKey>) {
    let _ = with(|parts| {
        if let Some(entry) = parts.handler.entries.get_mut(&about) {
            entry.acknowledged += 1;
            if let Some(member) = group.and_then(|group| entry.member(group)) {
                member.acknowledged += 1;
            }
        }
        Ok(())
    });
}

/// Acknowledges an event and frees it.
///
/// # Errors
/// `EINVAL`: no live event has this address.
///
/// # Safety
/// The event must not be used afterwards.
pub unsafe fn ack(event: *mut CmEvent) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { remove::<EventObject>(event) }?;
    acknowledge(object.about, object.group);
    Ok(())
}

/// The type and the status of an event.
///
/// # Errors
/// `EINVAL`: no live event has this address.
///
/// # Safety
/// The event must not be acknowledged during the call.
pub unsafe fn kind(event: *mut CmEvent) -> Result<(rdma_cm_event_type, c_int), Errno> {
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    unsafe {
        find::<EventObject>(event)?;
        Ok(((*event).event, (*event).status))
    }
}

/// The identifier of an event.
///
/// # Errors
/// `EINVAL`: no live event has this address.
///
/// # Safety
/// The event must not be acknowledged during the call.
pub unsafe fn id_of(event: *mut CmEvent) -> Result<*mut CmId, Errno> {
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    unsafe {
        find::<EventObject>(event)?;
        Ok((*event).id)
    }
}

/// Acknowledges the event in a synchronous identifier.
///
/// # Safety
/// No other thread may use the identifier during the call.
pub unsafe fn release_event(id: &IdObject) {
    let event = id.event();
    id.set_event(null_mut());
    if !event.is_null() {
        // SAFETY: guaranteed by the caller. An error means that the program has already acknowledged it.
        let _ = unsafe { ack(event) };
    }
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// The event must not be used afterwards.
pub unsafe extern "C" fn ack_cm_event(event: *mut CmEvent) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| unsafe { ack(event) }.map(|()| 0))
}

/// `rdma_event_str`.
pub extern "C" fn event_str(event: rdma_cm_event_type) -> *const c_char {
    let text: &CStr = match event {
        CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        _ => c"UNKNOWN EVENT",
    };
    text.as_ptr()
}

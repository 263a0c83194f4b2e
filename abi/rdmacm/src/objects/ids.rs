//! Creating, destroying and migrating identifiers.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::lookup::addrinfo::qp_type_of;
use crate::objects::channel;
use crate::objects::event::release_event;
use crate::objects::id::{self, IdObject};
use crate::state::front::{entry, wait_for_acks, with};
use crate::state::hub::{Entry, IdKey};
use crate::state::ports;
use crate::sys::*;
use rkey_kit::argument::store;
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one, caught};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

/// Creates an identifier. If `channel` is null, creates a channel of its own for it.
///
/// # Errors
/// `EINVAL`: no live channel has this address. `ENOMEM`. The error of the system if no descriptor is available.
///
/// # Safety
/// The channel must not be destroyed during the call.
pub unsafe fn create(
    channel: *mut EventChannel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut CmId, Errno> {
    let is_sync = channel.is_null();
    let channel = if is_sync { channel::new()? } else { channel };
    // SAFETY: guaranteed by the caller, or made above.
    let made = unsafe { create_on(channel, context, space, qp_type, is_sync) };
    made.inspect_err(|_| {
        if is_sync {
            // SAFETY: the program has not seen it.
            let _ = unsafe { channel::destroy(channel) };
        }
    })
}

unsafe fn create_on(
    channel: *mut EventChannel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: ibv_qp_type,
    is_sync: bool,
) -> Result<*mut CmId, Errno> {
    // SAFETY: guaranteed by the caller.
    let channel_key = unsafe { channel::find_channel(channel) }?.key;
    let key = with(|parts| Ok(parts.handler.add(Entry::new(channel_key, space, qp_type))))?;
    let made = id::new(key, channel, context, space, qp_type);
    with(|parts| {
        match made {
            Ok(handle) => entry(parts.handler, key)?.handle = handle.expose_provenance(),
            Err(_) => drop(parts.handler.remove(key)),
        }
        Ok(())
    })?;
    let handle = made?;
    // SAFETY: just created.
    unsafe { find::<IdObject>(handle) }?
        .sync
        .store(is_sync, Ordering::Relaxed);
    Ok(handle)
}

/// Destroys an identifier.
///
/// # Errors
/// `EINVAL`: no live identifier has this address.
///
/// # Safety
/// The identifier must not be used afterwards.
pub unsafe fn destroy(handle: *mut CmId) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { find::<IdObject>(handle) }?;
    let key = object.key;
    // SAFETY: guaranteed by the caller.
    unsafe { release_event(object) };
    end_connection(key)?;
    wait_for_acks(key)?;
    with(|parts| {
        ports::release(parts, key);
        parts.handler.remove(key);
        Ok(())
    })?;
    let (is_sync, channel) = (object.is_sync(), object.channel());
    // SAFETY: guaranteed by the caller; the channel belongs to the identifier.
    unsafe {
        id::free(handle);
        if is_sync {
            let _ = channel::destroy(channel);
        }
    }
    Ok(())
}

/// Ends the listener or connection of an identifier, and drops its pending events.
fn end_connection(key: IdKey) -> Result<(), Errno> {
    with(|parts| {
        let now = parts.now;
        parts.handler.drop_events(key);
        let entry = entry(parts.handler, key)?;
        // An error means that it has already ended.
        if let Some(listener) = entry.listener {
            let _ = parts.manager.unlisten(now, listener);
        }
        if let Some(connection) = entry.connection {
            let _ = parts.manager.close(now, connection);
        }
        Ok(())
    })
}

/// Moves an identifier to another channel.
///
/// # Errors
/// `EINVAL`: `to` is null, but the identifier already has a channel of its own.
///
/// # Safety
/// Neither the identifier nor the channel may be destroyed during the call.
pub unsafe fn migrate(object: &IdObject, to: *mut EventChannel) -> Result<(), Errno> {
    let was_sync = object.is_sync();
    let is_sync = to.is_null();
    if was_sync && is_sync {
        return Err(Errno::INVAL);
    }
    let to = if is_sync { channel::new()? } else { to };
    let key = object.key;
    // SAFETY: guaranteed by the caller, or made above.
    let to_key = unsafe { channel::find_channel(to) }?.key;
    // SAFETY: guaranteed by the caller.
    unsafe { release_event(object) };
    let from = object.channel();
    // Set the channel before another thread can fetch an event from it.
    object.set_channel(to);
    with(|parts| {
        parts.handler.migrate(key, to_key);
        Ok(())
    })?;
    // The program may not have acknowledged all events that it fetched from the old channel.
    wait_for_acks(key)?;
    if was_sync {
        // SAFETY: it belonged to the identifier.
        let _ = unsafe { channel::destroy(from) };
    }
    object.sync.store(is_sync, Ordering::Relaxed);
    Ok(())
}

/// Creates the identifier for a request, with the listener's channel and context.
///
/// # Errors
/// `ENOMEM`.
pub fn create_child(listener: &IdObject) -> Result<(*mut CmId, IdKey), Errno> {
    let space = with(|parts| Ok(entry(parts.handler, listener.key)?.space))?;
    let (channel, context) = (listener.channel(), listener.context());
    // SAFETY: the listener's channel outlives the listener.
    let handle = unsafe { create_on(channel, context, space, listener.qp_type(), false) }?;
    // SAFETY: just created.
    let key = unsafe { find::<IdObject>(handle) }?.key;
    Ok((handle, key))
}

/// `rdma_create_id`.
///
/// # Safety
/// `id` is null or valid for writes; the channel must not be destroyed during the call.
pub unsafe extern "C" fn create_id(
    channel: *mut EventChannel,
    id: *mut *mut CmId,
    context: *mut c_void,
    space: rdma_port_space,
) -> c_int {
    c_call_or_minus_one(|| {
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        let qp_type = qp_type_of(space)?;
        // SAFETY: guaranteed by the caller.
        unsafe { store(id, create(channel, context, space, qp_type)?)? };
        Ok(0)
    })
}

/// `rdma_destroy_id`.
///
/// # Safety
/// The identifier must not be used afterwards.
pub unsafe extern "C" fn destroy_id(id: *mut CmId) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| unsafe { destroy(id) }.map(|()| 0))
}

/// `rdma_migrate_id`.
///
/// # Safety
/// Neither the identifier nor the channel may be destroyed during the call.
pub unsafe extern "C" fn migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| unsafe { migrate(find(id)?, channel) }.map(|()| 0))
}

/// `rdma_get_src_port`: returns our port in network byte order, or 0 if there is none.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: guaranteed by the caller.
    let port = caught(|| unsafe { find::<IdObject>(id) }.map_or(0, |object| object.ports().0));
    port.unwrap_or(0)
}

/// `rdma_get_dst_port`: returns the peer's port in network byte order, or 0 if there is none.
///
/// # Safety
/// The identifier must not be destroyed during the call.
pub unsafe extern "C" fn get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: guaranteed by the caller.
    let port = caught(|| unsafe { find::<IdObject>(id) }.map_or(0, |object| object.ports().1));
    port.unwrap_or(0)
}

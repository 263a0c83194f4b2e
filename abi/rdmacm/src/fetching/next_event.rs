//! Fetching the next event of a channel: `rdma_get_cm_event`, and the calls on synchronous identifiers, which wait for
//! their event.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::fetching::fetch;
use crate::objects::channel::find_channel;
use crate::objects::event::{acknowledge, kind, new, release_event};
use crate::objects::id::{IdObject, of_handle};
use crate::objects::unpolled;
use crate::state::front::with;
use crate::state::hub::PendingEvent;
use crate::sys::*;
use rkey_kit::argument::store;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;

/// Fetches the next event of a channel.
///
/// # Errors
/// The errors of [`crate::objects::channel::ChannelObject::next`]; `ENOMEM`.
///
/// # Safety
/// The channel must not be destroyed during the call.
pub unsafe fn fetch_from(channel: *mut EventChannel) -> Result<*mut CmEvent, Errno> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { find_channel(channel) }?;
    loop {
        let (key, pending) = object.next()?;
        let handle = with(|parts| {
            let entry = parts.handler.entries.get(&key);
            Ok(entry.map(|entry| entry.handle))
        })?;
        let Some(handle) = handle else {
            continue;
        };
        // SAFETY: `rdma_destroy_id` waits until the event is acknowledged.
        let id: &IdObject = unsafe { of_handle(handle) }?;
        if let PendingEvent::Disconnected(since) = pending
            // SAFETY: the program does not destroy the queue pair of a connection whose event it fetches.
            && let Some(since) = unsafe { unpolled::postponed_since(id.qp(), since) }
        {
            object.postpone(key, PendingEvent::Disconnected(Some(since)))?;
            continue;
        }
        let group = pending.group();
        let made = fetch::make(id, pending).and_then(|draft| {
            let child = (draft.event == CM_EVENT_CONNECT_REQUEST).then_some(draft.id);
            new(draft).inspect_err(|_| {
                if let Some(child) = child {
                    // SAFETY: the program has not seen it.
                    let _ = unsafe { crate::objects::ids::destroy(child) };
                }
            })
        });
        return made.inspect_err(|_| acknowledge(key, group));
    }
}

/// Waits for the event of a synchronous identifier's call, and stores it in the identifier. Does nothing for other identifiers.
///
/// # Errors
/// The error that the event reports; `ECONNREFUSED` for a rejection.
///
/// # Safety
/// No other thread may use the identifier during the call.
pub unsafe fn complete(id: &IdObject) -> Result<(), Errno> {
    if !id.is_sync() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        release_event(id);
        let event = fetch_from(id.channel())?;
        id.set_event(event);
        let (kind, status) = kind(event)?;
        match (kind, status) {
            (_, 0) => Ok(()),
            (CM_EVENT_REJECTED, _) => Err(Errno::from_raw(libc::ECONNREFUSED)),
            (_, status) => Err(Errno::from_raw(status.abs())),
        }
    }
}

/// `rdma_get_cm_event`.
///
/// # Safety
/// `event` is null or valid for writes; the channel must not be destroyed during the call.
pub unsafe extern "C" fn get_cm_event(
    channel: *mut EventChannel,
    event: *mut *mut CmEvent,
) -> c_int {
    c_call_or_minus_one(|| {
        if event.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { store(event, fetch_from(channel)?)? };
        Ok(0)
    })
}

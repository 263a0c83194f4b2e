//! Completion events: fetching and acknowledging them. Destroying a completion queue waits until the program has
//! acknowledged all of its events.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::acks::{completed, is_nonblocking};
use crate::completion::channel::ChannelObject;
use crate::completion::cq::CqObject;
use crate::device::context::ContextObject;
use crate::device::registry::Events;
use crate::object::{find, output};
use crate::sys::{CompChannel, Cq};
use crate::translate::errno;
use rkey_device::engine::CqId;
use rkey_kit::{Errno, c_call, c_call_or_minus_one};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

/// Counts a completion event as fetched, and returns the handle of its completion queue, which stays valid
/// until the event is acknowledged.
fn fetched(events: &Events, id: CqId) -> Option<*mut Cq> {
    events.with_cq(id, |handle| {
        // SAFETY: objects leave the registry before they are destroyed.
        let object = unsafe { find::<CqObject>(handle) }.ok()?;
        object.comp_acks.add_fetched();
        Some(handle)
    })
}

/// `ibv_get_cq_event`. A signal interrupts this call, as it interrupts `read`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let body = || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<ChannelObject>(channel)? };
        // SAFETY: a live channel belongs to a live context.
        let context = unsafe { find::<ContextObject>(object.context)? };
        // SAFETY: the caller guarantees that both are writable.
        let (cq, cq_context) = unsafe { (output(cq)?, output(cq_context)?) };
        loop {
            let event = match object.channel.try_next_event().map_err(errno::from)? {
                None if is_nonblocking(object.channel.fd().as_raw_fd()) => {
                    return Err(Errno::AGAIN);
                }
                None => object.channel.next_event_or_signal().map_err(errno::from)?,
                some => some,
            };
            let Some(handle) = event.and_then(|id| fetched(&context.open.events, id)) else {
                continue;
            };
            *cq = handle;
            // SAFETY: an event is unacknowledged, and that keeps the completion queue alive.
            *cq_context = unsafe { (*handle).cq_context };
            return Ok(0);
        }
    };
    c_call_or_minus_one(body)
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn ack_cq_events(cq: *mut Cq, count: u32) {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<CqObject>(cq)? };
        // SAFETY: the completion queue is live.
        unsafe { completed(&raw mut (*cq).comp_events_completed, count) };
        object.comp_acks.acknowledge(count);
        Ok(())
    });
}

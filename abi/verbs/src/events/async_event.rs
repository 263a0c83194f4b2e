//! Asynchronous events. Destroying an object waits until the program has acknowledged all of its events.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::acks::{completed, is_nonblocking};
use crate::completion::cq::CqObject;
use crate::device::context::ContextObject;
use crate::device::registry::Events;
use crate::object::{find, input, output};
use crate::queues::qp::QpObject;
use crate::queues::srq::SrqObject;
use crate::sys::consts::*;
use crate::sys::{AsyncEvent, Context, Cq, Qp, Srq};
use crate::translate::errno;
use rkey_device::AsyncEvent as Event;
use rkey_device::engine::QpId;
use rkey_kit::{Errno, c_call, c_call_or_minus_one};
use std::ffi::c_int;
use std::time::Duration;

/// Counts an event as fetched, and returns it in the form of verbs. `None` if its object no longer exists, the program did not request
/// such events, or verbs does not have them.
fn translate(events: &Events, event: Event) -> Option<AsyncEvent> {
    let (element, event_type) = match event {
        Event::CqOverrun(cq) => events.with_cq(cq, |handle| {
            // SAFETY: objects leave the registry before they are destroyed.
            let object = unsafe { find::<CqObject>(handle) }.ok()?;
            object.async_acks.add_fetched();
            Some((handle as usize, EVENT_CQ_ERR))
        })?,
        Event::SrqLimit(srq) => events.with_srq(srq, |handle| {
            // SAFETY: objects leave the registry before they are destroyed.
            let object = unsafe { find::<SrqObject>(handle) }.ok()?;
            object.acks.add_fetched();
            Some((handle as usize, EVENT_SRQ_LIMIT_REACHED))
        })?,
        Event::QpFatal { qp, .. } => of_qp(events, qp, EVENT_QP_FATAL)?,
        Event::AccessError { qp, .. } => of_qp(events, qp, EVENT_QP_ACCESS_ERR)?,
        Event::RequestError { qp, .. } => of_qp(events, qp, EVENT_QP_REQ_ERR)?,
        Event::SqDrained { qp, .. } => of_qp(events, qp, EVENT_SQ_DRAINED)?,
        Event::LastWqeReached { qp, .. } => of_qp(events, qp, EVENT_QP_LAST_WQE_REACHED)?,
        Event::CommEstablished { qp, .. } => of_qp(events, qp, EVENT_COMM_EST)?,
        // Verbs has no event for a lost peer: requests to it complete in error.
        _ => return None,
    };
    Some(AsyncEvent {
        element,
        event_type,
    })
}

fn of_qp(events: &Events, qp: QpId, event_type: c_int) -> Option<(usize, c_int)> {
    events.with_qp(qp, |handle| {
        // SAFETY: objects leave the registry before they are destroyed.
        let object = unsafe { find::<QpObject>(handle) }.ok()?;
        if event_type == EVENT_SQ_DRAINED && !object.wants_drained_event() {
            return None;
        }
        object.acks.add_fetched();
        Some((handle as usize, event_type))
    })
}

/// `ibv_get_async_event`. A signal interrupts this call, as it interrupts `read`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
    let body = || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<ContextObject>(context)? };
        // SAFETY: the caller guarantees that it is writable.
        let event = unsafe { output(event)? };
        let device = object.device();
        // SAFETY: the context is live.
        let fd = unsafe { (*context).async_fd };
        loop {
            let found = if is_nonblocking(fd) {
                let found = device.next_event(Some(Duration::ZERO));
                found.map_err(errno::from)?.ok_or(Errno::AGAIN)?
            } else {
                let found = device.next_event_or_signal();
                found.map_err(errno::from)?.ok_or(Errno::IO)?
            };
            if let Some(found) = translate(&object.open.events, found) {
                *event = found;
                return Ok(0);
            }
        }
    };
    c_call_or_minus_one(body)
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// `event` was filled in by [`get_async_event`].
pub unsafe extern "C" fn ack_async_event(event: *mut AsyncEvent) {
    c_call(|| {
        // SAFETY: the caller guarantees an event.
        let event = unsafe { input(event)? };
        // SAFETY: an object is destroyed only after this call, so its handle is live; `find` refuses others.
        unsafe {
            match event.event_type {
                EVENT_CQ_ERR => {
                    let cq = find::<CqObject>(event.element as *const Cq)?;
                    completed(&raw mut (*cq.c()).async_events_completed, 1);
                    cq.async_acks.acknowledge(1);
                }
                EVENT_SRQ_ERR | EVENT_SRQ_LIMIT_REACHED => {
                    let srq = find::<SrqObject>(event.element as *const Srq)?;
                    completed(&raw mut (*srq.c()).events_completed, 1);
                    srq.acks.acknowledge(1);
                }
                EVENT_QP_FATAL..=EVENT_PATH_MIG_ERR | EVENT_QP_LAST_WQE_REACHED => {
                    let qp = find::<QpObject>(event.element as *const Qp)?;
                    completed(&raw mut (*qp.c()).events_completed, 1);
                    qp.acks.acknowledge(1);
                }
                _ => {}
            }
        }
        Ok(())
    });
}

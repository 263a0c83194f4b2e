//! Asynchronous events. Destroying an object waits until the program has acknowledged all of its events.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::context::ContextObject;
use crate::cq::CqObject;
use crate::errno;
use crate::object::{find, input, output};
use crate::qp::QpObject;
use crate::srq::SrqObject;
use crate::sys::consts::*;
use crate::sys::{AsyncEvent, Context, Cq, Qp, Srq};
use parking_lot::{Condvar, Mutex};
use rkey_device::AsyncEvent as Event;
use rkey_device::engine::{CqId, QpId, SrqId};
use rkey_kit::{Errno, c_call, c_call_or_minus_one};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Counts an object's events that the program has fetched and not yet acknowledged.
#[derive(Debug, Default)]
pub struct Acks {
    open: Mutex<u32>,
    less: Condvar,
}

impl Acks {
    /// Counts an event that the program fetches.
    pub fn add_fetched(&self) {
        *self.open.lock() += 1;
    }

    /// Counts `count` acknowledgements.
    pub fn acknowledge(&self, count: u32) {
        let mut open = self.open.lock();
        *open = open.saturating_sub(count);
        self.less.notify_all();
    }

    /// Waits until every event is acknowledged.
    pub fn wait(&self) {
        let mut open = self.open.lock();
        while *open > 0 {
            self.less.wait(&mut open);
        }
    }
}

/// Maps each object that can have events to its handle.
#[derive(Debug, Default)]
pub struct Events {
    cqs: Mutex<HashMap<CqId, usize>>,
    qps: Mutex<HashMap<QpId, usize>>,
    srqs: Mutex<HashMap<SrqId, usize>>,
}

impl Events {
    /// From now on, events of this completion queue name `handle`.
    pub fn add_cq(&self, id: CqId, handle: *mut Cq) {
        self.cqs.lock().insert(id, handle as usize);
    }

    /// Undoes [`Events::add_cq`].
    pub fn remove_cq(&self, id: CqId) {
        self.cqs.lock().remove(&id);
    }

    /// Counts a completion event as fetched, and returns the handle of its completion queue, which stays valid
    /// until the event is acknowledged.
    #[must_use]
    pub fn completion(&self, id: CqId) -> Option<*mut Cq> {
        // The registry stays locked until the event is counted, so the object stays alive.
        let cqs = self.cqs.lock();
        let handle = *cqs.get(&id)? as *mut Cq;
        // SAFETY: objects leave the registry before they are destroyed.
        unsafe { find::<CqObject>(handle) }
            .ok()?
            .comp_acks
            .add_fetched();
        Some(handle)
    }

    /// From now on, events of this queue pair name `handle`.
    pub fn add_qp(&self, id: QpId, handle: *mut Qp) {
        self.qps.lock().insert(id, handle as usize);
    }

    /// Undoes [`Events::add_qp`].
    pub fn remove_qp(&self, id: QpId) {
        self.qps.lock().remove(&id);
    }

    /// From now on, events of this shared receive queue name `handle`.
    pub fn add_srq(&self, id: SrqId, handle: *mut Srq) {
        self.srqs.lock().insert(id, handle as usize);
    }

    /// Undoes [`Events::add_srq`].
    pub fn remove_srq(&self, id: SrqId) {
        self.srqs.lock().remove(&id);
    }

    /// Counts an event as fetched, and returns it in the form of verbs. `None` if its object no longer exists, the program did not request
    /// such events, or verbs does not have them.
    fn translate(&self, event: Event) -> Option<AsyncEvent> {
        let (element, event_type) = match event {
            Event::CqOverrun(cq) => {
                // The registry stays locked until the event is counted, so the object stays alive.
                let cqs = self.cqs.lock();
                let handle = *cqs.get(&cq)?;
                // SAFETY: objects leave the registry before they are destroyed.
                unsafe { find::<CqObject>(handle as *const Cq) }
                    .ok()?
                    .async_acks
                    .add_fetched();
                (handle, EVENT_CQ_ERR)
            }
            Event::SrqLimit(srq) => {
                let srqs = self.srqs.lock();
                let handle = *srqs.get(&srq)?;
                // SAFETY: objects leave the registry before they are destroyed.
                unsafe { find::<SrqObject>(handle as *const Srq) }
                    .ok()?
                    .acks
                    .add_fetched();
                (handle, EVENT_SRQ_LIMIT_REACHED)
            }
            Event::QpFatal { qp, .. } => self.of_qp(qp, EVENT_QP_FATAL)?,
            Event::AccessError { qp, .. } => self.of_qp(qp, EVENT_QP_ACCESS_ERR)?,
            Event::RequestError { qp, .. } => self.of_qp(qp, EVENT_QP_REQ_ERR)?,
            Event::SqDrained { qp, .. } => self.of_qp(qp, EVENT_SQ_DRAINED)?,
            Event::LastWqeReached { qp, .. } => self.of_qp(qp, EVENT_QP_LAST_WQE_REACHED)?,
            Event::CommEstablished { qp, .. } => self.of_qp(qp, EVENT_COMM_EST)?,
            // Verbs has no event for a lost peer: requests to it complete in error.
            _ => return None,
        };
        Some(AsyncEvent {
            element,
            event_type,
        })
    }

    fn of_qp(&self, qp: QpId, event_type: c_int) -> Option<(usize, c_int)> {
        let qps = self.qps.lock();
        let handle = *qps.get(&qp)?;
        // SAFETY: objects leave the registry before they are destroyed.
        let object = unsafe { find::<QpObject>(handle as *const Qp) }.ok()?;
        if event_type == EVENT_SQ_DRAINED && !object.wants_drained_event() {
            return None;
        }
        object.acks.add_fetched();
        Some((handle, event_type))
    }
}

/// Makes a descriptor blocking, which is the default of verbs. Programs that must not wait set `O_NONBLOCK`.
pub fn make_blocking(fd: c_int) {
    // SAFETY: the calls only read and write flags of our own descriptor.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
    }
}

/// Whether the program set `O_NONBLOCK`.
#[must_use]
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: only reads flags.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
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
            if let Some(found) = object.open.events.translate(found) {
                *event = found;
                return Ok(0);
            }
        }
    };
    c_call_or_minus_one(body)
}

/// Adds to a counter of acknowledged events. Programs may read it; any thread may acknowledge.
///
/// # Safety
/// `counter` is a field of a live object.
pub(crate) unsafe fn completed(counter: *mut u32, count: u32) {
    // SAFETY: a live field, which only this function writes.
    unsafe { AtomicU32::from_ptr(counter) }.fetch_add(count, Ordering::Relaxed);
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

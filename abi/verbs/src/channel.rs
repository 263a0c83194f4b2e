//! Completion channels.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::async_event::{completed, is_nonblocking, make_blocking};
use crate::context::ContextObject;
use crate::cq::CqObject;
use crate::errno;
use crate::object::{Object, Users, find, handle_of, insert, output, remove};
use crate::sys::{CompChannel, Context, Cq};
use rkey_device::Channel;
use rkey_kit::{Errno, c_call, c_call_or_minus_one};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

/// A channel, as the program sees it.
#[repr(C)]
pub struct ChannelObject {
    c: UnsafeCell<CompChannel>,
    context: *mut Context,
    /// The device's channel.
    pub channel: Channel,
    /// Completion queues that report to the channel.
    pub users: Users,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for ChannelObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for ChannelObject {}

rkey_kit::object!(ChannelObject, c: CompChannel, 1 << 16);

impl ChannelObject {
    /// The program's handle of the channel.
    #[must_use]
    pub fn handle(&self) -> *mut CompChannel {
        handle_of(self)
    }
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<ContextObject>(context)? };
        let channel = object.device().create_channel().map_err(errno::from)?;
        let fd = channel.fd().as_raw_fd();
        make_blocking(fd);
        let c = UnsafeCell::new(CompChannel {
            context,
            fd,
            refcnt: 0,
        });
        insert(ChannelObject {
            c,
            context,
            channel,
            users: Users::default(),
        })
    })
}

/// `ibv_destroy_comp_channel`.
///
/// # Safety
/// No other thread may use the channel.
pub unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ChannelObject>(channel)? }.users.none()?;
        // SAFETY: unused, as the caller guarantees.
        drop(unsafe { remove::<ChannelObject>(channel)? });
        Ok(0)
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
            let Some(handle) = event.and_then(|id| context.open.events.completion(id)) else {
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

/// Destroys the remaining completion channels of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in ChannelObject::pool().live(|channel| channel.context == context) {
            drop(remove::<ChannelObject>(object.cast()));
        }
    }
}

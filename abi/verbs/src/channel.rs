//! Completion channels.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::async_event::{completed, is_nonblocking, make_blocking};
use crate::context::ContextObject;
use crate::cq::CqObject;
use crate::errno;
use crate::object::{Object, Users, find, handle_of, output, place, remove};
use crate::sys::{CompChannel, Context, Cq};
use rkey_device::Channel;
use rkey_kit::{Errno, Pool, fence};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

/// A channel, as a program sees it.
#[repr(C)]
pub struct ChannelObject {
    c: UnsafeCell<CompChannel>,
    context: *mut Context,
    /// The channel of the device.
    pub channel: Channel,
    /// Completion queues that use it.
    pub users: Users,
}

// SAFETY: the structure is written only while it is made.
unsafe impl Sync for ChannelObject {}
// SAFETY: holds addresses of objects, which are checked before use.
unsafe impl Send for ChannelObject {}

static CHANNELS: Pool<ChannelObject> = Pool::new(1 << 16);

// SAFETY: the structure is at the start.
unsafe impl Object for ChannelObject {
    type C = CompChannel;
    fn pool() -> &'static Pool<Self> {
        &CHANNELS
    }
}

impl ChannelObject {
    /// Its handle.
    #[must_use]
    pub fn handle(&self) -> *mut CompChannel {
        handle_of(self)
    }
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// A context, or anything else.
pub unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        let object = unsafe { find::<ContextObject>(context)? };
        let channel = object.device().create_channel().map_err(errno::from)?;
        let fd = channel.fd().as_raw_fd();
        make_blocking(fd);
        let c = UnsafeCell::new(CompChannel {
            context,
            fd,
            refcnt: 0,
        });
        place(ChannelObject {
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
/// No other thread uses it.
pub unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    fence(|| {
        // SAFETY: a channel as the caller promises, or something that is refused.
        unsafe { find::<ChannelObject>(channel)? }.users.none()?;
        // SAFETY: nobody uses it.
        drop(unsafe { remove::<ChannelObject>(channel)? });
        Ok(0)
    })
}

/// `ibv_get_cq_event`. A signal ends it as it ends a `read`.
///
/// # Safety
/// A channel, and room for a handle and a pointer.
pub unsafe extern "C" fn get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let body = || {
        // SAFETY: a channel as the caller promises, or something that is refused.
        let object = unsafe { find::<ChannelObject>(channel)? };
        // SAFETY: a channel stays while its context is open.
        let context = unsafe { find::<ContextObject>(object.context)? };
        // SAFETY: room as the caller promises.
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
            // SAFETY: a completion queue with an event that nobody has acknowledged yet, which keeps it.
            *cq_context = unsafe { (*handle).cq_context };
            return Ok(0);
        }
    };
    if fence(body) == 0 { 0 } else { -1 }
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// A completion queue, or anything else.
pub unsafe extern "C" fn ack_cq_events(cq: *mut Cq, count: u32) {
    fence(|| {
        // SAFETY: a completion queue as the caller promises, or something that is refused.
        let object = unsafe { find::<CqObject>(cq)? };
        // SAFETY: a live completion queue.
        unsafe { completed(&raw mut (*cq).comp_events_completed, count) };
        object.comp_acks.acknowledge(count);
        Ok(())
    });
}

/// Ends what a context that is closed leaves.
///
/// # Safety
/// Nobody uses anything of the context.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: nobody uses the objects, as the caller promises.
    unsafe {
        for object in CHANNELS.live(|channel| channel.context == context) {
            drop(remove::<ChannelObject>(object.cast()));
        }
    }
}

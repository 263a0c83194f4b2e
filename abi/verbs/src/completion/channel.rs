//! Completion channels.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::acks::make_blocking;
use crate::device::context::ContextObject;
use crate::object::{Object, Users, find, handle_of, insert, remove};
use crate::sys::{CompChannel, Context};
use crate::translate::errno;
use rkey_device::Channel;
use rkey_kit::c_call;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::AsRawFd;

/// A channel, as the program sees it.
#[repr(C)]
pub struct ChannelObject {
    c: UnsafeCell<CompChannel>,
    pub(crate) context: *mut Context,
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

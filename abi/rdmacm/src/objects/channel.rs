//! Event channels (`struct rdma_event_channel`): a descriptor that is readable while events are pending.
//!
//! Programs poll the descriptor ([`EventFd`]) and choose whether it blocks; only this library reads it. A thread waits for an event
//! in `read`, so a signal interrupts it unless the program's handler has `SA_RESTART`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::objects::unpolled;
use crate::state::event_fd::EventFd;
use crate::state::front::with;
use crate::state::hub::{ChannelKey, IdKey, PendingEvent};
use crate::sys::EventChannel;
use rkey_kit::Errno;
use rkey_kit::c_call;
use rkey_kit::object::{find, insert, remove};
use std::cell::UnsafeCell;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The maximum number of event channels that exist at once.
pub const MAX: u32 = 1 << 16;

/// An event channel.
#[repr(C)]
pub struct ChannelObject {
    c: UnsafeCell<EventChannel>,
    event_fd: Arc<EventFd>,
    /// The key of the channel in the hub.
    pub key: ChannelKey,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for ChannelObject {}
// SAFETY: has no pointers.
unsafe impl Send for ChannelObject {}

rkey_kit::object!(ChannelObject, c: EventChannel, MAX);

impl ChannelObject {
    /// Waits for the next event, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`: no event is pending, and the descriptor is non-blocking. `EINTR`: a signal arrived. The errors of [`with`].
    pub fn next(&self) -> Result<(IdKey, PendingEvent), Errno> {
        // Programs (rping) destroy a channel while a thread waits here. That thread keeps waiting, and no longer accesses the channel.
        let (key, event_fd) = (self.key, Arc::clone(&self.event_fd));
        loop {
            let popped = with(|parts| Ok(parts.handler.pop(key)));
            if popped.as_ref().err() == Some(&Errno::IO) {
                // No more events will come: wake the other threads that wait here, so that they fail too.
                event_fd.signal();
            }
            if let Some(event) = popped? {
                return Ok(event);
            }
            // Returns when an event arrives. If another thread takes it first, wait again.
            let waited = event_fd.wait();
            waited.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        }
    }

    /// Puts the event that was taken last back at the front of the queue, and sleeps briefly.
    ///
    /// # Errors
    /// `EAGAIN`: the descriptor is non-blocking, so the program should retry later. The errors of [`with`].
    pub fn postpone(&self, key: IdKey, pending: PendingEvent) -> Result<(), Errno> {
        with(|parts| {
            parts.handler.give_back(self.key, key, pending);
            Ok(())
        })?;
        if !self.event_fd.is_blocking() {
            return Err(Errno::AGAIN);
        }
        rkey_device::time::sleep(unpolled::RECHECK_INTERVAL);
        Ok(())
    }
}

/// Creates an event channel.
///
/// # Errors
/// No descriptor or memory is available, or the connection manager cannot be used.
pub fn new() -> Result<*mut EventChannel, Errno> {
    let event_fd = EventFd::new().map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    let number = event_fd.fd().as_raw_fd();
    let event_fd = Arc::new(event_fd);
    let of_hub = Arc::clone(&event_fd);
    let key = with(|parts| Ok(parts.handler.add_channel(of_hub)))?;
    let c = UnsafeCell::new(EventChannel { fd: number });
    insert(ChannelObject { c, event_fd, key }).inspect_err(|_| {
        let _ = with(|parts| {
            parts.handler.remove_channel(key);
            Ok(())
        });
    })
}

/// Destroys an event channel. Its identifiers report no more events.
///
/// # Safety
/// The channel must not be used afterwards.
pub unsafe fn destroy(channel: *mut EventChannel) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { remove::<ChannelObject>(channel) }?;
    with(|parts| {
        parts.handler.remove_channel(object.key);
        Ok(())
    })
}

/// The channel behind a handle.
///
/// # Errors
/// `EINVAL`: no live channel has this address.
///
/// # Safety
/// The channel must not be destroyed while the reference is in use.
pub unsafe fn find_channel<'a>(channel: *mut EventChannel) -> Result<&'a ChannelObject, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { find::<ChannelObject>(channel) }
}

/// `rdma_create_event_channel`.
pub extern "C" fn create_event_channel() -> *mut EventChannel {
    c_call(new)
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// The channel must not be used afterwards.
pub unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: guaranteed by the caller.
    c_call(|| unsafe { destroy(channel) });
}

//! Event channels (`struct rdma_event_channel`): a descriptor that is readable while events wait.
//!
//! Programs poll the descriptor ([`Bell`]) and choose whether it blocks; only this library reads it. A thread that
//! waits for an event does so in `read`, so a signal interrupts it unless the program's handler has `SA_RESTART`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::bell::Bell;
use crate::front::with;
use crate::hub::{ChannelKey, IdKey, What};
use crate::sys::EventChannel;
use crate::unpolled;
use rkey_kit::Errno;
use rkey_kit::fence;
use rkey_kit::object::{find, insert, remove};
use std::cell::UnsafeCell;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The maximum number of event channels at a time.
pub const MAX: u32 = 1 << 16;

/// An event channel.
#[repr(C)]
pub struct ChannelObject {
    c: UnsafeCell<EventChannel>,
    bell: Arc<Bell>,
    /// Its name in the hub.
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
    /// `EAGAIN`: no event, and the descriptor is non-blocking. `EINTR`: a signal arrived. Those of [`with`].
    pub fn next(&self) -> Result<(IdKey, What), Errno> {
        // Programs (rping) destroy a channel while a thread waits here. That thread keeps waiting, and touches nothing of the
        // channel.
        let (key, bell) = (self.key, Arc::clone(&self.bell));
        loop {
            let popped = with(|parts| Ok(parts.handler.pop(key)));
            if popped.as_ref().err() == Some(&Errno::IO) {
                // No event will come: the other threads that wait here must learn of it, too.
                bell.signal();
            }
            if let Some(event) = popped? {
                return Ok(event);
            }
            // It returns when an event comes. If another thread takes the event first, this one waits again.
            let waited = bell.wait();
            waited.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        }
    }

    /// Gives back the event that was taken last, and lets a little time pass.
    ///
    /// # Errors
    /// `EAGAIN`: the program has made the descriptor non-blocking, so it does other work first. Those of [`with`].
    pub fn postpone(&self, key: IdKey, what: What) -> Result<(), Errno> {
        with(|parts| {
            parts.handler.give_back(self.key, key, what);
            Ok(())
        })?;
        match self.bell.is_blocking() {
            true => rkey_device::time::sleep(unpolled::NAP),
            false => return Err(Errno::AGAIN),
        }
        Ok(())
    }
}

/// Makes an event channel.
///
/// # Errors
/// No descriptor or memory is available, or the connection manager cannot be used.
pub fn new() -> Result<*mut EventChannel, Errno> {
    let bell = Bell::new().map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    let number = bell.fd().as_raw_fd();
    let bell = Arc::new(bell);
    let of_hub = Arc::clone(&bell);
    let key = with(|parts| Ok(parts.handler.add_channel(of_hub)))?;
    let c = UnsafeCell::new(EventChannel { fd: number });
    insert(ChannelObject { c, bell, key }).inspect_err(|_| {
        let _ = with(|parts| {
            parts.handler.remove_channel(key);
            Ok(())
        });
    })
}

/// Destroys an event channel. Its identifiers get no more events.
///
/// # Safety
/// Nothing uses it afterwards.
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
/// Nothing destroys it while the reference is used.
pub unsafe fn find_channel<'a>(channel: *mut EventChannel) -> Result<&'a ChannelObject, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { find::<ChannelObject>(channel) }
}

/// `rdma_create_event_channel`.
pub extern "C" fn create_event_channel() -> *mut EventChannel {
    fence(new)
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// Nothing uses it afterwards.
pub unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: guaranteed by the caller.
    fence(|| unsafe { destroy(channel) });
}

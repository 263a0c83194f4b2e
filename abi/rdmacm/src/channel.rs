//! Event channels (`struct rdma_event_channel`): a descriptor that is readable while events wait.
//!
//! The descriptor is an eventfd. Programs poll it and choose whether it blocks; only this library reads it. A thread that
//! waits for an event does so in `read`, so a signal interrupts it unless the program's handler has `SA_RESTART`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::front::with;
use crate::hub::{ChannelKey, IdKey, What};
use crate::sys::EventChannel;
use rkey_kit::Errno;
use rkey_kit::fence;
use rkey_kit::object::{find, insert, remove};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{IoSliceMut, ReadWriteFlags};
use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The maximum number of event channels at a time.
pub const MAX: u32 = 1 << 16;

/// An event channel.
#[repr(C)]
pub struct ChannelObject {
    c: UnsafeCell<EventChannel>,
    fd: Arc<OwnedFd>,
    /// Its name in the hub.
    pub key: ChannelKey,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for ChannelObject {}
// SAFETY: has no pointers.
unsafe impl Send for ChannelObject {}

rkey_kit::object!(ChannelObject, c: EventChannel, MAX);

/// Makes the descriptor of a channel readable.
pub fn signal(fd: &OwnedFd) {
    // The count cannot reach its limit of 2^64.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes the descriptor of a channel unreadable, without waiting.
pub fn drain(fd: &OwnedFd) {
    let mut count = [0; 8];
    let mut into = [IoSliceMut::new(&mut count)];
    // An offset of -1 means that the descriptor has none.
    let _ = rustix::io::preadv2(fd, &mut into, u64::MAX, ReadWriteFlags::NOWAIT);
}

impl ChannelObject {
    /// Waits for the next event, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`: no event, and the descriptor is non-blocking. `EINTR`: a signal came. Those of [`with`].
    pub fn next(&self) -> Result<(IdKey, What), Errno> {
        loop {
            let key = self.key;
            let popped = with(|parts| Ok(parts.handler.pop(key)));
            if popped.as_ref().err() == Some(&Errno::IO) {
                // No event will come: the other threads that wait here must learn it, too.
                signal(&self.fd);
            }
            if let Some(event) = popped? {
                return Ok(event);
            }
            // `read` returns when an event comes. If another thread takes the event first, this one waits again.
            match rustix::io::read(&*self.fd, &mut [0; 8]) {
                Ok(_) => {}
                Err(error) => return Err(Errno::from_raw(error.raw_os_error())),
            }
        }
    }
}

/// Makes an event channel.
///
/// # Errors
/// No descriptor or memory is available, or the connection manager cannot be used.
pub fn new() -> Result<*mut EventChannel, Errno> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Errno::from_raw(e.raw_os_error()))?;
    let fd = Arc::new(fd);
    let number = fd.as_fd().as_raw_fd();
    let of_hub = Arc::clone(&fd);
    let key = with(|parts| Ok(parts.handler.add_channel(of_hub)))?;
    let c = UnsafeCell::new(EventChannel { fd: number });
    insert(ChannelObject { c, fd, key }).inspect_err(|_| {
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

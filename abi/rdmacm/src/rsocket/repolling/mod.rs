//! `repoll_create`, `repoll_ctl` and `repoll_wait`: epoll for sockets and other descriptors.
//!
//! An instance is an epoll descriptor of the kernel. It watches ordinary descriptors with the program's events, and the descriptor of
//! each socket, which becomes readable when something may have happened. After that, the socket itself says what is ready, and how
//! often it has become ready. A socket that is ready is checked again in the next call; all others sleep until their descriptors are
//! readable. Because another thread or instance may rearm a descriptor first, all sockets are also checked every 100 ms.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`instance`] | an instance: what it watches, and how a thread waits for it |
//! | [`entry`] | a descriptor in an instance, and whether it is reported |

#![allow(unsafe_code)]
// UNSAFETY: C functions.

mod entry;
mod instance;

use instance::{End, Instance};
use parking_lot::RwLock;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;

static INSTANCES: RwLock<BTreeMap<RawFd, Arc<Instance>>> = RwLock::new(BTreeMap::new());

fn find(number: RawFd) -> Result<Arc<Instance>, Errno> {
    crate::state::front::service()?;
    INSTANCES.read().get(&number).cloned().ok_or(Errno::BADF)
}

/// Removes an instance, and wakes the threads that wait for it. Returns whether it was there.
fn remove(instance: &Arc<Instance>, how: End) -> bool {
    let number = instance.number();
    let mut all = INSTANCES.write();
    let is_there = all
        .get(&number)
        .is_some_and(|found| Arc::ptr_eq(found, instance));
    if is_there {
        all.remove(&number);
    }
    drop(all);
    if is_there {
        instance.end(how);
    }
    is_there
}

/// Removes the instance with this number, if there is one, because the number stands for a new descriptor: the program has closed
/// the instance with `close`.
pub fn forget(number: RawFd) {
    let found = INSTANCES.read().get(&number).cloned();
    if let Some(instance) = found {
        remove(&instance, End::Gone);
    }
}

/// Removes all instances that the program has closed with `close`.
fn forget_closed() {
    let all: Vec<_> = INSTANCES.read().values().cloned().collect();
    for instance in all {
        if !instance.has_its_number() {
            remove(&instance, End::Gone);
        }
    }
}

/// Closes an instance. Returns whether there is one with this number.
pub fn close(number: RawFd) -> bool {
    let found = INSTANCES.read().get(&number).cloned();
    let Some(instance) = found else {
        return false;
    };
    if instance.has_its_number() {
        remove(&instance, End::Closed)
    } else {
        remove(&instance, End::Gone);
        false
    }
}

/// Removes a socket's descriptor from all instances, while it is open. The kernel would do so when it is closed, but only if no
/// process has a copy, and a forked child may. `wake_fd` of a closed socket stays signalled, so threads that wait for an instance
/// would be woken all the time.
pub fn stop_watching(number: RawFd) {
    for instance in INSTANCES.read().values() {
        instance.stop_watching(number);
    }
}

fn create() -> Result<RawFd, Errno> {
    crate::state::front::service()?;
    forget_closed();
    let made = Instance::new()?;
    let number = made.number();
    // If the program has closed an instance with this number meanwhile.
    forget(number);
    INSTANCES.write().insert(number, Arc::new(made));
    Ok(number)
}

/// `repoll_create`. The argument has no meaning, except that it must not be negative. [`rclose`](super::closing::rclose) closes the
/// instance.
pub extern "C" fn repoll_create(size: c_int) -> c_int {
    c_call_or_minus_one(|| match size {
        ..0 => Err(Errno::INVAL),
        _ => create(),
    })
}

/// `repoll_ctl`, for sockets and other descriptors. `EPOLLWAKEUP` and `EPOLLEXCLUSIVE` have no effect on sockets.
///
/// # Safety
/// `event` is null or points to an event.
pub unsafe extern "C" fn repoll_ctl(
    number: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *const libc::epoll_event,
) -> c_int {
    c_call_or_minus_one(|| {
        let instance = find(number)?;
        if descriptor == number {
            return Err(Errno::INVAL);
        }
        let event = if event.is_null() {
            None
        } else {
            // SAFETY: not null; the program passes a valid event, whose alignment is not known.
            let event = unsafe { event.read_unaligned() };
            Some((event.events, event.u64))
        };
        instance.change(operation, descriptor, event)?;
        Ok(0)
    })
}

/// `repoll_wait`.
///
/// # Safety
/// `events` points to `most` events.
pub unsafe extern "C" fn repoll_wait(
    number: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    c_call_or_minus_one(|| {
        let instance = find(number)?;
        let most = usize::try_from(most).unwrap_or(0);
        if most == 0 {
            return Err(Errno::INVAL);
        }
        if events.is_null() {
            return Err(Errno::FAULT);
        }
        let found = instance.wait(most, super::polling::deadline(timeout))?;
        for (at, found) in found.iter().enumerate() {
            let event = libc::epoll_event {
                events: found.events,
                u64: found.data,
            };
            // SAFETY: there are at most `most` events, for which the caller guarantees room.
            unsafe { events.add(at).write_unaligned(event) };
        }
        Ok(found.len() as c_int)
    })
}

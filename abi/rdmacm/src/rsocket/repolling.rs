//! `repoll_create`, `repoll_ctl` and `repoll_wait`: epoll for sockets and other descriptors.
//!
//! An instance is an epoll descriptor of the kernel. It watches ordinary descriptors with the program's events, and the descriptor of
//! each socket, which becomes readable when something may have happened. After that, the socket itself says what is ready, and how
//! often it has become ready. A socket that is ready is checked again in the next call; all others sleep until their descriptors are
//! readable. Because another thread or instance may rearm a descriptor first, all sockets are also checked every [`TICK`].

#![allow(unsafe_code)]
// UNSAFETY: C functions, and `epoll_ctl` on descriptors that programs pass.

use super::datagram::Datagram;
use super::edges::Edges;
use super::polling::{Rearm, check_edges};
use super::socket::Socket;
use super::table::{self, Any};
use super::waiting::{TICK, errno};
use crate::state::event_fd::EventFd;
use parking_lot::{Mutex, RwLock};
use rkey_kit::{Errno, c_call_or_minus_one};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_short};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The maximum number of events that one call takes from the kernel.
const BATCH: usize = 64;
/// The bits of `events` that are flags.
const FLAGS: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;
const EXISTS: Errno = Errno::from_raw(libc::EEXIST);
const NOT_FOUND: Errno = Errno::from_raw(libc::ENOENT);

/// A socket that an instance watches, unless the program has closed it.
#[derive(Debug)]
enum Watched {
    Stream(Weak<Socket>),
    Datagram(Weak<Datagram>),
}

impl Watched {
    fn new(socket: &Any) -> Self {
        match socket {
            Any::Stream(socket) => Self::Stream(Arc::downgrade(socket)),
            Any::Datagram(socket) => Self::Datagram(Arc::downgrade(socket)),
        }
    }

    fn is(&self, socket: &Any) -> bool {
        match (self, socket) {
            (Self::Stream(own), Any::Stream(other)) => own.as_ptr() == Arc::as_ptr(other),
            (Self::Datagram(own), Any::Datagram(other)) => own.as_ptr() == Arc::as_ptr(other),
            _ => false,
        }
    }
}

/// A descriptor in an instance.
#[derive(Debug)]
struct Entry {
    /// The socket; `None` for an ordinary descriptor.
    socket: Option<Watched>,
    /// `events` as the program passed it.
    events: u32,
    data: u64,
    /// The events that were ready in the last check, and how often the socket had become ready, for `EPOLLET`.
    seen: (c_short, Edges),
    /// Whether the next call checks the socket, although its descriptor is not readable.
    is_due: bool,
    /// Whether `EPOLLONESHOT` has disabled it.
    is_disabled: bool,
}

impl Entry {
    fn has(&self, flag: c_int) -> bool {
        self.events & flag as u32 != 0
    }

    /// The events that are to be reported.
    fn ready(&mut self, socket: &Any) -> c_short {
        let wanted = (self.events & !FLAGS) as c_short;
        if self.has(libc::EPOLLET) {
            // Rearmed first, so that its descriptor becomes readable with the next edge.
            let (found, edges) = check_edges(socket, wanted, Rearm::First);
            let (reported, earlier) = std::mem::replace(&mut self.seen, (found, edges));
            let is_new = edges.are_new(earlier, wanted) || found & !reported != 0;
            self.is_due = false;
            return if is_new { found } else { 0 };
        }
        let (found, _) = check_edges(socket, wanted, Rearm::IfNothing);
        self.is_due = found != 0;
        found
    }
}

/// The descriptors of an instance.
#[derive(Debug)]
struct Set {
    entries: BTreeMap<RawFd, Entry>,
    /// The socket from which the next call starts, so that a small array does not starve the others.
    next: RawFd,
    /// When all sockets were checked last.
    checked: Instant,
}

/// An instance. Its number is the number of its epoll descriptor.
#[derive(Debug)]
struct Instance {
    epoll: ManuallyDrop<OwnedFd>,
    /// Whether the program has closed the descriptor with `close`, so that its number now stands for another one.
    is_gone: AtomicBool,
    /// Signalled when the set changes.
    wake: EventFd,
    set: Mutex<Set>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        if !self.is_gone.load(Ordering::Relaxed) {
            // SAFETY: only here, so the descriptor is closed once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.epoll) };
        }
    }
}

static INSTANCES: RwLock<BTreeMap<RawFd, Arc<Instance>>> = RwLock::new(BTreeMap::new());

fn find(number: RawFd) -> Result<Arc<Instance>, Errno> {
    crate::state::front::service()?;
    INSTANCES.read().get(&number).cloned().ok_or(Errno::BADF)
}

/// Removes the instance with this number, if there is one, because the number stands for a new descriptor: the program has closed
/// the instance with `close`.
pub fn forget(number: RawFd) {
    if let Some(instance) = INSTANCES.write().remove(&number) {
        instance.is_gone.store(true, Ordering::Relaxed);
    }
}

/// Closes an instance. Returns whether there is one with this number.
pub fn close(number: RawFd) -> bool {
    INSTANCES.write().remove(&number).is_some()
}

fn create() -> Result<RawFd, Errno> {
    crate::state::front::service()?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(errno)?;
    let wake = EventFd::new().map_err(errno)?;
    let of_wake = EventData::new_u64(wake.fd().as_raw_fd() as u64);
    epoll::add(&epoll, wake.fd(), of_wake, EventFlags::IN).map_err(errno)?;
    let number = epoll.as_raw_fd();
    forget(number);
    let made = Instance {
        epoll: ManuallyDrop::new(epoll),
        is_gone: AtomicBool::new(false),
        wake,
        set: Mutex::new(Set {
            entries: BTreeMap::new(),
            next: 0,
            checked: rkey_device::time::now(),
        }),
    };
    INSTANCES.write().insert(number, Arc::new(made));
    Ok(number)
}

/// An event that is reported to the program.
struct Found {
    events: u32,
    data: u64,
}

impl Instance {
    /// Calls `epoll_ctl` for a descriptor. The kernel identifies it by its number in later events.
    fn control(&self, operation: c_int, number: RawFd, events: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events,
            u64: number as u64,
        };
        // SAFETY: our own descriptor and event; the kernel checks the program's descriptor.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, number, &raw mut event) }
        {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }

    /// Adds, changes or removes a descriptor.
    fn change(
        &self,
        operation: c_int,
        number: RawFd,
        event: Option<(u32, u64)>,
    ) -> Result<(), Errno> {
        let mut set = self.set.lock();
        let socket = table::get(number);
        // The program may have closed a socket, and its number may stand for another descriptor now.
        let is_stale =
            set.entries
                .get(&number)
                .is_some_and(|entry| match (&entry.socket, &socket) {
                    (Some(own), Some(socket)) => !own.is(socket),
                    (Some(_), None) | (None, Some(_)) => true,
                    (None, None) => false,
                });
        if is_stale {
            set.entries.remove(&number);
        }
        if operation == libc::EPOLL_CTL_DEL {
            let entry = set.entries.remove(&number).ok_or(NOT_FOUND)?;
            return match entry.socket.is_some() && entry.is_disabled {
                true => Ok(()),
                false => self.control(operation, number, 0),
            };
        }
        let (events, data) = event.ok_or(Errno::FAULT)?;
        let earlier = set.entries.get(&number);
        match operation {
            // The kernel knows whether an ordinary descriptor is still the one that was added.
            libc::EPOLL_CTL_ADD if socket.is_some() && earlier.is_some() => return Err(EXISTS),
            libc::EPOLL_CTL_MOD if earlier.is_none() => return Err(NOT_FOUND),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {}
            _ => return Err(Errno::INVAL),
        }
        match &socket {
            None => self.control(operation, number, events)?,
            Some(_) if earlier.is_none_or(|entry| entry.is_disabled) => {
                self.control(libc::EPOLL_CTL_ADD, number, libc::EPOLLIN as u32)?;
            }
            Some(_) => {}
        }
        let entry = Entry {
            socket: socket.as_ref().map(Watched::new),
            events,
            data,
            seen: Default::default(),
            is_due: true,
            is_disabled: false,
        };
        set.entries.insert(number, entry);
        drop(set);
        // A thread that waits must check the descriptor.
        self.wake.signal();
        Ok(())
    }

    /// Returns at most `most` events. Checks the sockets that are due or whose descriptors are readable, or all of them: at times, and
    /// when a thread was woken (`is_woken`) by a descriptor that is no longer readable.
    fn check(&self, most: usize, is_woken: bool) -> Result<Vec<Found>, Errno> {
        let mut set = self.set.lock();
        let mut arrived = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; BATCH];
        let room = most.min(BATCH);
        let count = loop {
            match epoll::wait(
                &*self.epoll,
                &mut arrived[..room],
                Some(&Default::default()),
            ) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result.map_err(errno)?,
            }
        };
        let mut found = Vec::new();
        let mut fired = Vec::new();
        for event in &arrived[..count] {
            let (events, number) = (event.flags, event.data);
            let number = number.u64() as RawFd;
            if number == self.wake.fd().as_raw_fd() {
                self.wake.drain();
                continue;
            }
            match set.entries.get(&number) {
                Some(entry) if entry.socket.is_some() => fired.push(number),
                Some(entry) => found.push(Found {
                    events: events.bits(),
                    data: entry.data,
                }),
                None => {}
            }
        }
        let all = (is_woken && count == 0) || rkey_device::time::since(set.checked) >= TICK;
        if all {
            set.checked = rkey_device::time::now();
        }
        self.check_sockets(&mut set, &fired, all, most, &mut found);
        Ok(found)
    }

    fn check_sockets(
        &self,
        set: &mut Set,
        fired: &[RawFd],
        all: bool,
        most: usize,
        found: &mut Vec<Found>,
    ) {
        let Set { entries, next, .. } = set;
        let due = |(_, entry): &(&RawFd, &Entry)| {
            entry.socket.is_some() && !entry.is_disabled && (all || entry.is_due)
        };
        let mut numbers: Vec<RawFd> = entries
            .iter()
            .filter(due)
            .map(|(number, _)| *number)
            .collect();
        numbers.extend(fired);
        numbers.sort_unstable();
        numbers.dedup();
        let first = numbers.partition_point(|number| number < next);
        numbers.rotate_left(first);
        for number in numbers {
            if found.len() == most {
                // Checked first in the next call. A socket that has fired stays readable until then.
                *next = number;
                return;
            }
            let Some(entry) = entries.get_mut(&number) else {
                continue;
            };
            let socket = table::get(number);
            let own = entry.socket.as_ref();
            let Some(socket) = socket.filter(|socket| own.is_some_and(|own| own.is(socket))) else {
                // The program has closed it. The kernel has removed its descriptor, too.
                entries.remove(&number);
                continue;
            };
            let events = entry.ready(&socket);
            if events == 0 {
                continue;
            }
            found.push(Found {
                events: u32::from(events as u16),
                data: entry.data,
            });
            if entry.has(libc::EPOLLONESHOT) {
                entry.is_disabled = true;
                // It is in the kernel's set: enabled entries are. If the program has just closed it, there is nothing to remove.
                let _ = self.control(libc::EPOLL_CTL_DEL, number, 0);
            }
        }
    }

    /// Waits until there are events, or the deadline has passed.
    fn wait(&self, most: usize, deadline: Option<Instant>) -> Result<Vec<Found>, Errno> {
        let mut is_woken = false;
        loop {
            let found = self.check(most, is_woken)?;
            let now = rkey_device::time::now();
            let left = deadline.map_or(TICK, |at| at.saturating_duration_since(now));
            if !found.is_empty() || left.is_zero() {
                return Ok(found);
            }
            is_woken = self.sleep(left.min(TICK))?;
        }
    }

    /// Sleeps until a descriptor is readable. Returns whether one is.
    fn sleep(&self, time: Duration) -> Result<bool, Errno> {
        let time = rustix::event::Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let mut fds = [rustix::event::PollFd::new(
            &*self.epoll,
            rustix::event::PollFlags::IN,
        )];
        let count = rustix::event::poll(&mut fds, Some(&time)).map_err(errno)?;
        Ok(count > 0)
    }
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

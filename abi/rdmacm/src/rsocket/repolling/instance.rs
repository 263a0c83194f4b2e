//! An instance: the kernel's epoll descriptor, and the descriptors that it watches.

#![allow(unsafe_code)]
// UNSAFETY: `epoll_ctl` on descriptors that programs pass, and closing a descriptor that may no longer be ours.

use super::super::table;
use super::super::waiting::{TICK, errno, sleep_on};
use super::entry::Entry;
use crate::state::event_fd::EventFd;
use parking_lot::Mutex;
use rkey_kit::Errno;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

/// The maximum number of events that one call takes from the kernel.
const BATCH: usize = 64;
const EXISTS: Errno = Errno::from_raw(libc::EEXIST);
const NOT_FOUND: Errno = Errno::from_raw(libc::ENOENT);

/// Whether an instance can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The program has closed it with `rclose`.
    Closed,
    /// The program has closed its descriptor with `close`. Its number may stand for another descriptor.
    Gone,
}

/// The descriptors of an instance.
#[derive(Debug)]
struct Set {
    entries: BTreeMap<RawFd, Entry>,
    /// The socket from which the next call starts, so that a small array does not starve the others.
    next: RawFd,
    /// Whether the next call leaves the larger half of the array to ordinary descriptors.
    favours_others: bool,
    /// When all sockets were checked last.
    all_checked: Instant,
    /// How often the instance was checked.
    checks: u64,
    /// Whether `wake` is signalled.
    is_signalled: bool,
    end: Option<End>,
}

/// An instance. Its number is the number of its epoll descriptor.
#[derive(Debug)]
pub(super) struct Instance {
    epoll: ManuallyDrop<OwnedFd>,
    /// Signalled when the set changes.
    wake: EventFd,
    set: Mutex<Set>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.set.get_mut().end != Some(End::Gone) {
            // SAFETY: only here, so the descriptor is closed once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.epoll) };
        }
    }
}

/// An event that is reported to the program.
pub(super) struct Found {
    pub(super) events: u32,
    pub(super) data: u64,
}

/// What a check found.
struct Checked {
    found: Vec<Found>,
    /// The number of this check.
    number: u64,
}

impl Instance {
    /// Creates an empty instance.
    ///
    /// # Errors
    /// No descriptor or memory is available.
    pub(super) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(errno)?;
        let wake = EventFd::new().map_err(errno)?;
        let of_wake = EventData::new_u64(wake.fd().as_raw_fd() as u64);
        epoll::add(&epoll, wake.fd(), of_wake, EventFlags::IN).map_err(errno)?;
        let set = Set {
            entries: BTreeMap::new(),
            next: 0,
            favours_others: false,
            all_checked: rkey_device::time::now(),
            checks: 0,
            is_signalled: false,
            end: None,
        };
        Ok(Self {
            epoll: ManuallyDrop::new(epoll),
            wake,
            set: Mutex::new(set),
        })
    }

    pub(super) fn number(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Whether the number still stands for the instance's descriptor: only this epoll descriptor has `wake`.
    pub(super) fn has_its_number(&self) -> bool {
        let wake = self.wake.fd().as_raw_fd();
        self.control(libc::EPOLL_CTL_MOD, wake, libc::EPOLLIN as u32)
            .is_ok()
    }

    /// Ends the instance. Threads that wait get `EBADF`.
    pub(super) fn end(&self, how: End) {
        let mut set = self.set.lock();
        set.end = Some(how);
        self.signal(&mut set);
    }

    /// Wakes the threads that wait.
    fn signal(&self, set: &mut Set) {
        set.is_signalled = true;
        self.wake.signal();
    }

    /// Calls `epoll_ctl` for a descriptor. The kernel identifies it by its number in later events.
    fn control(&self, operation: c_int, number: RawFd, events: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events,
            u64: number as u64,
        };
        // SAFETY: our own event. The kernel checks both descriptors: the program's, and ours, which the program may have closed.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, number, &raw mut event) }
        {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }

    /// Removes the descriptor of a socket that the program closes. The entry remains until the next check, or until the number gets
    /// a new one. Takes no lock: threads that hold it may close a socket.
    pub(super) fn stop_watching(&self, number: RawFd) {
        // It fails if the instance does not have the descriptor.
        let _ = self.control(libc::EPOLL_CTL_DEL, number, 0);
    }

    /// Adds, changes or removes a descriptor.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub(super) fn change(
        &self,
        operation: c_int,
        number: RawFd,
        event: Option<(u32, u64)>,
    ) -> Result<(), Errno> {
        let mut set = self.set.lock();
        set.is_open()?;
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
        let entry = Entry::new(socket.as_ref(), events, data);
        set.entries.insert(number, entry);
        // A thread that waits must check the descriptor.
        self.signal(&mut set);
        Ok(())
    }

    /// Returns at most `most` events. Checks the sockets that are due or whose descriptors are readable. At times, and when a thread was
    /// woken by a descriptor that is no longer readable, checks all of them: another instance, or a thread in `rpoll`, may have rearmed
    /// a socket first. `slept_after` is the number of the check before the sleep that something ended.
    fn check(&self, most: usize, slept_after: Option<u64>) -> Result<Checked, Errno> {
        let mut set = self.set.lock();
        set.is_open()?;
        let is_signalled = std::mem::take(&mut set.is_signalled);
        if is_signalled {
            self.wake.drain();
        }
        let mut found = Vec::new();
        let mut room = set.room_for_arrived(most);
        let mut arrived = self.take_arrived(&mut set, room, &mut found)?;
        // Something else than `wake` has woken this thread, and no other thread that waits for this instance has taken it.
        let is_stolen =
            arrived == 0 && room > 0 && !is_signalled && slept_after == Some(set.checks);
        if is_stolen || rkey_device::time::since(set.all_checked) >= TICK {
            set.all_checked = rkey_device::time::now();
            for entry in set.entries.values_mut() {
                entry.is_due = true;
            }
        }
        set.checks += 1;
        self.check_sockets(&mut set, most, &mut found);
        // Sockets that are not ready may have taken the room of those that are, or of ordinary descriptors. They are rearmed now.
        for _ in 0..set.entries.len() {
            if !found.is_empty() || (arrived == 0 && room == most) {
                break;
            }
            room = most;
            arrived = self.take_arrived(&mut set, room, &mut found)?;
            self.check_sockets(&mut set, most, &mut found);
        }
        Ok(Checked {
            found,
            number: set.checks,
        })
    }

    /// Takes at most `room` of the descriptors that are readable: adds ordinary ones to `found`, and makes sockets due. Returns how many
    /// there were.
    fn take_arrived(
        &self,
        set: &mut Set,
        room: usize,
        found: &mut Vec<Found>,
    ) -> Result<usize, Errno> {
        if room == 0 {
            return Ok(0);
        }
        let mut arrived = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; BATCH];
        let count = loop {
            let into = &mut arrived[..room.min(BATCH)];
            match epoll::wait(&*self.epoll, into, Some(&Default::default())) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result.map_err(errno)?,
            }
        };
        for event in &arrived[..count] {
            let (events, number) = (event.flags, event.data);
            let number = number.u64() as RawFd;
            match set.entries.get_mut(&number) {
                Some(entry) if entry.socket.is_some() => entry.is_due = true,
                Some(entry) => found.push(Found {
                    events: events.bits(),
                    data: entry.data,
                }),
                None => {}
            }
        }
        Ok(count)
    }

    fn check_sockets(&self, set: &mut Set, most: usize, found: &mut Vec<Found>) {
        let Set { entries, next, .. } = set;
        let mut numbers: Vec<RawFd> = entries
            .iter()
            .filter(|(_, entry)| entry.is_due_socket())
            .map(|(number, _)| *number)
            .collect();
        let first = numbers.partition_point(|number| number < next);
        numbers.rotate_left(first);
        for number in numbers {
            if found.len() == most {
                // Checked first in the next call.
                *next = number;
                return;
            }
            let Some(entry) = entries.get_mut(&number) else {
                continue;
            };
            let socket = table::get(number);
            let own = entry.socket.as_ref();
            let Some(socket) = socket.filter(|socket| own.is_some_and(|own| own.is(socket))) else {
                // The program has closed it. `stop_watching` has removed its descriptor.
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
    ///
    /// # Errors
    /// `EBADF`: the instance was closed. `EINTR`: a signal arrived.
    pub(super) fn wait(&self, most: usize, deadline: Option<Instant>) -> Result<Vec<Found>, Errno> {
        let mut slept_after = None;
        loop {
            let Checked { found, number } = self.check(most, slept_after)?;
            let now = rkey_device::time::now();
            let left = deadline.map_or(TICK, |at| at.saturating_duration_since(now));
            if !found.is_empty() || left.is_zero() {
                return Ok(found);
            }
            slept_after = sleep_on(&self.epoll, left.min(TICK))?.then_some(number);
        }
    }
}

impl Set {
    fn is_open(&self) -> Result<(), Errno> {
        match self.end {
            None => Ok(()),
            Some(_) => Err(Errno::BADF),
        }
    }

    /// How many readable descriptors a call takes that has room for `most` events: about half as many if sockets are due, so that neither
    /// kind starves the other.
    fn room_for_arrived(&mut self, most: usize) -> usize {
        if !self.entries.values().any(Entry::is_due_socket) {
            return most;
        }
        self.favours_others = !self.favours_others;
        (most + usize::from(self.favours_others)) / 2
    }
}

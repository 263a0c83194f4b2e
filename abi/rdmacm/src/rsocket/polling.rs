//! `rpoll` and `rselect`: waiting for sockets and other descriptors.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and `poll` on descriptors that programs pass.

use super::edges::Edges;
use super::socket::{Phase, State};
use super::table::{self, Any};
use super::waiting::{Progress, SPIN, TICK, Waiting};
use rkey_kit::argument::output;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{c_int, c_short};
use std::time::{Duration, Instant};

/// The maximum number of descriptors in one call.
const MAX: usize = 1 << 20;

/// When to rearm a socket's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rearm {
    /// Not at all.
    Never,
    /// For a sleep, if nothing is ready.
    IfNothing,
    /// Before looking.
    First,
}

/// Returns the events that are ready on a socket, and rearms its descriptor.
fn check(socket: &Any, wanted: c_short, rearm: Rearm) -> c_short {
    check_edges(socket, wanted, rearm).0
}

/// Returns the events that are ready on a socket, and how often it has become ready. Rearms its descriptor.
#[must_use]
pub fn check_edges(socket: &Any, wanted: c_short, rearm: Rearm) -> (c_short, Edges) {
    match socket {
        Any::Stream(socket) => {
            let mut state = socket.state.lock();
            look(
                &socket.waiting,
                &mut *state,
                |state| (ready(state, wanted), state.edges),
                rearm,
            )
        }
        Any::Datagram(socket) => {
            let mut state = socket.state.lock();
            look(
                &socket.waiting,
                &mut *state,
                |state| (state.ready(wanted), state.edges),
                rearm,
            )
        }
    }
}

fn look<S: Progress>(
    waiting: &Waiting,
    state: &mut S,
    ready: impl Fn(&S) -> (c_short, Edges),
    rearm: Rearm,
) -> (c_short, Edges) {
    if rearm != Rearm::First {
        state.progress();
        let found = ready(state);
        if found.0 != 0 || rearm == Rearm::Never {
            return found;
        }
    }
    waiting.rearm(state);
    ready(state)
}

/// Returns the events that are ready on a stream.
fn ready(state: &State, wanted: c_short) -> c_short {
    let mut now = 0;
    match &state.phase {
        Phase::New => now |= libc::POLLOUT | libc::POLLHUP,
        Phase::Listening(listening) if !listening.ready.is_empty() => now |= libc::POLLIN,
        Phase::Listening(_) | Phase::Connecting(_) => {}
        Phase::Open(connection) => {
            let stream = connection.stream();
            if stream.waiting() > 0 || !stream.is_readable() {
                now |= libc::POLLIN | libc::POLLRDNORM;
            }
            if !stream.is_readable() {
                now |= libc::POLLRDHUP;
            }
            if stream.accepts_data() {
                now |= libc::POLLOUT | libc::POLLWRNORM;
            }
            // Report the end only after the program has read everything: some programs (rstream) treat POLLHUP as a failure.
            if stream.has_ended() && stream.waiting() == 0 {
                now |= libc::POLLHUP;
            }
            if connection.error.is_some() {
                now |= libc::POLLERR;
            }
        }
        Phase::Refused(_) => now |= libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP,
        Phase::Closed => now |= libc::POLLNVAL,
    }
    now & (wanted | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL)
}

/// The sockets among a call's descriptors, and the list that is passed to `ppoll`.
struct Polled {
    sockets: Vec<Option<Any>>,
    all: Vec<libc::pollfd>,
}

impl Polled {
    fn new(fds: &[libc::pollfd]) -> Self {
        let sockets = fds
            .iter()
            .map(|entry| table::get(entry.fd))
            .collect::<Vec<_>>();
        let all = fds
            .iter()
            .zip(&sockets)
            .map(|(entry, socket)| libc::pollfd {
                // A socket's descriptor becomes readable when something may have happened.
                events: if socket.is_some() {
                    libc::POLLIN
                } else {
                    entry.events
                },
                ..*entry
            });
        let all = all.collect();
        Self { sockets, all }
    }

    /// Stores the ready events of each descriptor. Returns the number of descriptors with events.
    fn check(&mut self, fds: &mut [libc::pollfd], rearm: Rearm) -> Result<usize, Errno> {
        let has_others = self.sockets.iter().any(Option::is_none);
        if has_others {
            self.poll(Duration::ZERO)?;
        }
        for (entry, (socket, polled)) in fds.iter_mut().zip(self.sockets.iter().zip(&self.all)) {
            entry.revents = match socket {
                Some(socket) => check(socket, entry.events, rearm),
                None => polled.revents,
            };
        }
        Ok(fds.iter().filter(|entry| entry.revents != 0).count())
    }

    fn poll(&mut self, time: Duration) -> Result<(), Errno> {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        };
        let (fds, count) = (self.all.as_mut_ptr(), self.all.len() as libc::nfds_t);
        // SAFETY: our own array, and no signal mask.
        match unsafe { libc::ppoll(fds, count, &time, std::ptr::null()) } {
            ..0 => Err(Errno::last()),
            _ => Ok(()),
        }
    }
}

/// Waits until a descriptor has events, or the deadline has passed. Returns the number of descriptors with events.
fn wait(fds: &mut [libc::pollfd], deadline: Option<Instant>) -> Result<usize, Errno> {
    crate::state::front::service()?;
    let mut polled = Polled::new(fds);
    let start = rkey_device::time::now();
    let left = |now: Instant| deadline.map_or(TICK, |it| it.saturating_duration_since(now));
    loop {
        let found = polled.check(fds, Rearm::Never)?;
        if found > 0 || left(rkey_device::time::now()).is_zero() {
            return Ok(found);
        }
        if rkey_device::time::since(start) < SPIN {
            continue;
        }
        let found = polled.check(fds, Rearm::IfNothing)?;
        if found > 0 {
            return Ok(found);
        }
        polled.poll(left(rkey_device::time::now()).min(TICK))?;
    }
}

/// Converts a timeout in milliseconds to a deadline. A negative timeout has none.
#[must_use]
pub fn deadline(timeout: c_int) -> Option<Instant> {
    let millis = u64::try_from(timeout).ok()?;
    rkey_device::time::now().checked_add(Duration::from_millis(millis))
}

/// The array that a program passes.
///
/// # Safety
/// `fds` points to `count` descriptors.
unsafe fn descriptors<'a>(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
) -> Result<&'a mut [libc::pollfd], Errno> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count == 0 {
        return Ok(&mut []);
    }
    if count > MAX {
        return Err(Errno::INVAL);
    }
    if fds.is_null() || !fds.is_aligned() {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null, aligned, and the caller guarantees the count.
    Ok(unsafe { std::slice::from_raw_parts_mut(fds, count) })
}

/// `rpoll`.
///
/// # Safety
/// `fds` points to `count` descriptors.
pub unsafe extern "C" fn rpoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let fds = unsafe { descriptors(fds, count) }?;
        wait(fds, deadline(timeout)).map(|found| found as c_int)
    })
}

/// For each set of `rselect`: the events to poll for, and the events that add a descriptor to the result.
const WANTED: [(c_short, c_short); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// Converts a `timeval`. Null means no timeout.
fn period(time: *mut libc::timeval) -> Result<Option<Duration>, Errno> {
    if time.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; the program passes a valid structure.
    let time = unsafe { output(time) }?;
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::INVAL)?;
    Ok(Some(
        Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)),
    ))
}

/// `rselect`.
///
/// # Safety
/// The sets are null or valid for `count` descriptors; `time` is null or valid.
pub unsafe extern "C" fn rselect(
    count: c_int,
    reads: *mut libc::fd_set,
    writes: *mut libc::fd_set,
    excepts: *mut libc::fd_set,
    time: *mut libc::timeval,
) -> c_int {
    c_call_or_minus_one(|| {
        if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
            return Err(Errno::INVAL);
        }
        let period = period(time)?;
        let deadline = period.and_then(|it| rkey_device::time::now().checked_add(it));
        let sets = [reads, writes, excepts];
        let mut fds = Vec::new();
        for fd in 0..count {
            let mut events = 0;
            for (set, (asks, _)) in sets.iter().zip(WANTED) {
                // SAFETY: guaranteed by the caller; the descriptor is within the set.
                if !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) } {
                    events |= asks;
                }
            }
            if events != 0 {
                fds.push(libc::pollfd {
                    fd,
                    events,
                    revents: 0,
                });
            }
        }
        wait(&mut fds, deadline)?;
        if fds.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let mut found = 0;
        for (set, (asks, answers)) in sets.iter().zip(WANTED) {
            if set.is_null() {
                continue;
            }
            // SAFETY: guaranteed by the caller; the descriptors are within the set.
            unsafe {
                libc::FD_ZERO(*set);
                for entry in fds.iter().filter(|entry| entry.events & asks != 0) {
                    if entry.revents & answers != 0 {
                        libc::FD_SET(entry.fd, *set);
                        found += 1;
                    }
                }
            }
        }
        Ok(found)
    })
}

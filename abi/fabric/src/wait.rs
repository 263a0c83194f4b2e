//! Waiting: descriptors that are readable while there is work, and deadlines of calls.

use crate::errno::{FiError, Result};
use crate::sys::*;
use rkey_device::time;
pub(crate) use rkey_endpoint::signal::Signal;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// A descriptor that becomes readable after a given time.
pub(crate) struct Timer(OwnedFd);

#[allow(unsafe_code)]
// UNSAFETY: system calls on our own descriptors.
impl Timer {
    #[expect(
        clippy::disallowed_methods,
        reason = "a descriptor that programs wait for"
    )]
    pub(crate) fn new() -> Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(rkey_kit::Errno::last().into());
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes the timer readable after this time, or not at all (`None`).
    pub(crate) fn set(&self, after: Option<Duration>) {
        let after = after.unwrap_or_default();
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let time = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: after.as_secs() as _,
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        // SAFETY: the time is only read, and the old one is not requested.
        unsafe { libc::timerfd_settime(self.raw(), 0, &time, std::ptr::null_mut()) };
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An epoll descriptor: readable while one of its members is.
pub(crate) struct Set(OwnedFd);

#[allow(unsafe_code)]
// UNSAFETY: system calls on our own descriptors.
impl Set {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(rkey_kit::Errno::last().into());
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn add(&self, member: RawFd) -> Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: the event is only read.
        let failed =
            unsafe { libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_ADD, member, &mut event) };
        match failed {
            0 => Ok(()),
            _ if rkey_kit::Errno::last() == rkey_kit::Errno::EXIST => Ok(()),
            _ => Err(rkey_kit::Errno::last().into()),
        }
    }

    pub(crate) fn remove(&self, member: RawFd) {
        // SAFETY: no memory is passed; removing an absent member is harmless.
        unsafe {
            libc::epoll_ctl(
                self.raw(),
                libc::EPOLL_CTL_DEL,
                member,
                std::ptr::null_mut(),
            )
        };
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the descriptors is readable; `false` if the deadline passes first.
#[allow(unsafe_code)]
// UNSAFETY: a system call that fills a list.
pub(crate) fn readable(fds: &[RawFd], deadline: &Deadline) -> Result<bool> {
    let mut set: Vec<libc::pollfd> = fds
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    loop {
        // SAFETY: a list of this length.
        let found = unsafe {
            libc::poll(
                set.as_mut_ptr(),
                set.len() as libc::nfds_t,
                deadline.milliseconds(),
            )
        };
        match found {
            0 if deadline.passed() => return Ok(false),
            0 => {}
            n if n > 0 => return Ok(true),
            _ if rkey_kit::Errno::last() == rkey_kit::Errno::INTR => {}
            _ => return Err(rkey_kit::Errno::last().into()),
        }
    }
}

/// A point in time, or never.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// Converts libfabric's milliseconds. A negative number means never.
    pub(crate) fn of(milliseconds: c_int) -> Self {
        Self(
            u64::try_from(milliseconds)
                .ok()
                .map(|ms| time::now() + Duration::from_millis(ms)),
        )
    }

    /// The point in time; `None`: never.
    pub(crate) fn instant(&self) -> Option<Instant> {
        self.0
    }

    pub(crate) fn passed(&self) -> bool {
        self.0.is_some_and(|until| until <= time::now())
    }

    /// The time left, for `poll`; -1 means forever.
    fn milliseconds(&self) -> c_int {
        match self.0 {
            None => -1,
            Some(until) => {
                let left = until.saturating_duration_since(time::now());
                // Rounded up so that waits do not repeatedly end slightly early.
                c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
            }
        }
    }
}

/// Returns whether a wait object has a descriptor, or `FI_ENOSYS` if the provider does not support it.
pub(crate) fn check_object(wait_obj: c_int) -> Result<bool> {
    match wait_obj {
        FI_WAIT_NONE => Ok(false),
        FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD => Ok(true),
        _ => Err(FiError::NOSYS),
    }
}

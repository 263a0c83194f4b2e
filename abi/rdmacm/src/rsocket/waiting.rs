//! How threads wait for a socket: its descriptor, and which thread sleeps on it.

use crate::state::event_fd::EventFd;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rkey_device::cm::UnsharedFd;
use rkey_kit::Errno;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps.
pub const SPIN: Duration = Duration::from_micros(10);
/// The maximum time that a thread sleeps before it checks again: another thread may have taken the event that should wake it.
pub const TICK: Duration = Duration::from_millis(100);

/// The state that threads wait on.
pub trait Progress {
    /// Processes the completions and datagrams that have arrived, and sends the control messages that are due.
    fn progress(&mut self);

    /// Makes the socket's descriptors unreadable until something happens.
    fn rearm(&mut self);
}

/// The descriptor of a socket, and the lock for sleeping on it.
#[derive(Debug)]
pub struct Waiting {
    /// An epoll descriptor, whose number is the socket's number. It becomes readable when something may have happened.
    watch: RwLock<UnsharedFd>,
    /// Signalled when another thread has changed the socket.
    pub wake_fd: EventFd,
    /// Held by the thread that sleeps.
    sleep_lock: Mutex<()>,
    /// `O_NONBLOCK`.
    nonblocking: AtomicBool,
}

/// Converts the error of a system call.
#[must_use]
pub fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// Sleeps until a descriptor is readable, or the time has passed. Returns whether it is readable.
///
/// # Errors
/// `EINTR`: a signal arrived.
pub fn sleep_on(fd: &OwnedFd, time: Duration) -> Result<bool, Errno> {
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let count = poll(&mut fds, Some(&time)).map_err(errno)?;
    Ok(count > 0)
}

/// The highest descriptor above `number` that is open to `/dev/null`, if there is one.
fn highest_null_above(number: RawFd) -> Option<RawFd> {
    let null = rustix::fs::makedev(1, 3);
    let is_null = |fd: &RawFd| {
        std::fs::metadata(format!("/proc/self/fd/{fd}")).is_ok_and(|it| it.rdev() == null)
    };
    let open = std::fs::read_dir("/proc/self/fd").ok()?;
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|fd| *fd > number).filter(is_null).max()
}

impl Waiting {
    /// Creates the descriptors.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn new(nonblocking: bool) -> Result<Self, Errno> {
        let watch = epoll::create(CreateFlags::CLOEXEC).map_err(errno)?;
        let made = Self {
            watch: RwLock::new(watch.into()),
            wake_fd: EventFd::new().map_err(errno)?,
            sleep_lock: Mutex::new(()),
            nonblocking: AtomicBool::new(nonblocking),
        };
        made.watch(made.wake_fd.fd())?;
        Ok(made)
    }

    /// The socket's number.
    #[must_use]
    pub fn number(&self) -> RawFd {
        self.watch.read().as_raw_fd()
    }

    /// Gives the socket a larger number than that of every open `/dev/null`, before the program knows the old number. librspreload
    /// of rdma-core 44 opens `/dev/null` before it creates or accepts a socket, and its `select` finds only sockets whose numbers
    /// are larger than that. A smaller number is possible if it was free again before the socket was created, or if the socket was
    /// created before `/dev/null` was opened.
    pub fn renumber(&self) {
        let mut watch = self.watch.write();
        let Some(highest) = highest_null_above(watch.as_raw_fd()) else {
            return;
        };
        // If no descriptor is available, the socket keeps the old one.
        if let Ok(new) = rustix::io::fcntl_dupfd_cloexec(&**watch, highest + 1) {
            *watch = new.into();
        }
    }

    /// Makes the socket's descriptor readable while another one is.
    ///
    /// # Errors
    /// No memory is available.
    pub fn watch(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::add(
            &*self.watch.read(),
            fd,
            EventData::new_u64(0),
            EventFlags::IN,
        )
        .map_err(errno)
    }

    /// Whether `O_NONBLOCK` is set.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sets or clears `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// Makes the descriptor unreadable until something happens, and processes what happened before.
    pub fn rearm(&self, state: &mut impl Progress) {
        self.wake_fd.drain();
        state.rearm();
        state.progress();
    }

    /// Waits until `ready` returns a result. Unless `blocks`, tries only once.
    ///
    /// # Errors
    /// `EAGAIN`: there is no result, and the call does not block, or the deadline has passed. `EINTR`: a signal arrived. The errors of
    /// `ready`.
    pub fn wait<S: Progress, R>(
        &self,
        state: &Mutex<S>,
        blocks: bool,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut S) -> Option<Result<R, Errno>>,
    ) -> Result<R, Errno> {
        let mut attempt = |rearms: bool| {
            let mut state = state.lock();
            state.progress();
            let first = ready(&mut state);
            if first.is_some() || !rearms {
                return first;
            }
            self.rearm(&mut *state);
            ready(&mut state)
        };
        if let Some(result) = attempt(false) {
            return result;
        }
        if !blocks {
            return Err(Errno::AGAIN);
        }
        let start = rkey_device::time::now();
        while rkey_device::time::since(start) < SPIN {
            if let Some(result) = attempt(false) {
                return result;
            }
        }
        loop {
            let sleep_lock = self.sleep_lock.lock();
            if let Some(result) = attempt(true) {
                return result;
            }
            let now = rkey_device::time::now();
            let left = deadline.map_or(TICK, |deadline| deadline.saturating_duration_since(now));
            if left.is_zero() {
                return Err(Errno::AGAIN);
            }
            self.sleep(left.min(TICK))?;
            // The event that woke this thread may be for another thread: let that thread check next.
            MutexGuard::unlock_fair(sleep_lock);
        }
    }

    fn sleep(&self, time: Duration) -> Result<(), Errno> {
        sleep_on(&self.watch.read(), time)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_renumbered_descriptor_is_above_those_of_dev_null() {
        let waiting = Waiting::new(false).unwrap();
        let null = File::open("/dev/null").unwrap();
        // Choose a number far above, so that other threads do not take the numbers in between.
        let lowest = waiting.number() + 100;
        let placeholder = rustix::io::fcntl_dupfd_cloexec(null, lowest).unwrap();
        waiting.renumber();
        assert!(waiting.number() > placeholder.as_raw_fd());
        // The new descriptor is as readable as the old one.
        waiting.wake_fd.signal();
        let watch = waiting.watch.read();
        let mut fds = [PollFd::new(&*watch, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(1));
    }
}

//! A queue of events with a file descriptor that can be polled: used for completion channels and for asynchronous
//! events.
//!
//! The descriptor is an eventfd that is readable exactly while there are events. A program may put it into its own `poll` or
//! `epoll` set, but must take events through the calls here.
//!
//! There are two ways to wait. [`EventQueue::next`] has a time limit and ignores signals. [`EventQueue::next_or_signal`] behaves
//! like a blocking `read` of a descriptor: a signal whose handler was installed without `SA_RESTART` ends it. A futex has exactly
//! that behaviour; `poll` does not.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::error::DeviceError;
use crate::lifecycle::WaitPoint;

/// A queue of events of type `T` whose descriptor is readable while it is not empty.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    entries: Mutex<VecDeque<T>>,
    capacity: usize,
    closed: AtomicBool,
    /// Counts pushes, and the closing of the queue.
    changes: AtomicU32,
    /// Threads that wait for `changes` to change.
    sleepers: AtomicU32,
}

impl<T> EventQueue<T> {
    /// An empty queue. If it holds `capacity` events, a push drops the oldest one.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new(capacity: usize) -> Result<Self, DeviceError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(DeviceError::io("creating an event descriptor"))?;
        Ok(Self {
            fd,
            entries: Mutex::new(VecDeque::new()),
            capacity,
            closed: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
        })
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: T) {
        let mut entries = self.entries.lock();
        if entries.len() >= self.capacity {
            entries.pop_front();
        }
        entries.push_back(event);
        if entries.len() == 1 {
            // The write can fail only if the counter is full, and then the descriptor is readable as intended.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
        drop(entries);
        self.wake_sleepers();
    }

    fn wake_sleepers(&self) {
        // Either the sleeper is already counted, or it sees that `changes` has changed.
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.changes, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Takes the oldest event, if any.
    pub(crate) fn try_next(&self) -> Option<T> {
        let mut entries = self.entries.lock();
        let event = entries.pop_front();
        if event.is_some() && entries.is_empty() && !self.is_closed() {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        event
    }

    /// Takes the oldest event, waiting for one up to `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// `poll` failed.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Result<Option<T>, DeviceError> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if let Some(event) = self.try_next() {
                return Ok(Some(event));
            }
            if self.is_closed() || !wait_readable(self.fd.as_fd(), deadline)? {
                return Ok(self.try_next());
            }
        }
    }

    /// Takes the oldest event, waiting for one as a blocking `read` would. `None` if the queue is closed.
    ///
    /// # Errors
    /// `EINTR`: a signal arrived whose handler was installed without `SA_RESTART`.
    pub(crate) fn next_or_signal(&self) -> Result<Option<T>, DeviceError> {
        loop {
            let seen = self.changes.load(Ordering::SeqCst);
            if let Some(event) = self.try_next() {
                return Ok(Some(event));
            }
            if self.closed.load(Ordering::Acquire) {
                return Ok(None);
            }
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let waited = futex::wait(&self.changes, futex::Flags::PRIVATE, seen, None);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            match waited {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(error) => return Err(DeviceError::io("waiting for an event")(error)),
            }
        }
    }

    /// Closes the queue: once it is empty, threads that wait, now or later, get `None`.
    pub(crate) fn close(&self) {
        // Under the lock, so that a thread that takes the last event does not make the descriptor unreadable again.
        let _entries = self.entries.lock();
        self.closed.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        self.wake_sleepers();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Removes the events for which `gone` returns `true`.
    pub(crate) fn forget(&self, gone: impl Fn(&T) -> bool) {
        let mut entries = self.entries.lock();
        let before = entries.len();
        entries.retain(|event| !gone(event));
        if before > 0 && entries.is_empty() && !self.is_closed() {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: Send> WaitPoint for EventQueue<T> {
    fn device_failed(&self) {
        self.close();
    }
}

/// Waits until a descriptor is readable (or has hung up). Returns `false` if `deadline` passed first. Signals do not end the wait.
pub(crate) fn wait_readable(
    fd: BorrowedFd<'_>,
    deadline: Option<Instant>,
) -> Result<bool, DeviceError> {
    wait_until_ready(fd, PollFlags::IN, deadline)
}

/// Like [`wait_readable`], for these events.
pub(crate) fn wait_until_ready(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> Result<bool, DeviceError> {
    wait_for_any(&mut [PollFd::from_borrowed_fd(fd, events)], deadline)
}

/// Like [`wait_until_ready`], for several descriptors.
pub(super) fn wait_for_any(
    set: &mut [PollFd<'_>],
    deadline: Option<Instant>,
) -> Result<bool, DeviceError> {
    loop {
        let timeout = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timespec = timeout.map(|t| Timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        match poll(set, timespec.as_ref()) {
            Ok(0) if timeout.is_some_and(|t| t.is_zero()) => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(DeviceError::io("waiting for an event")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(queue: &EventQueue<u32>) -> bool {
        wait_readable(queue.fd(), Some(Instant::now())).unwrap()
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_there_are_events() {
        let queue = EventQueue::new(8).unwrap();
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue));
        assert_eq!(queue.try_next(), Some(1));
        assert!(readable(&queue));
        assert_eq!(queue.try_next(), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.try_next(), None);
        queue.push(3);
        queue.forget(|&e| e == 3);
        assert!(!readable(&queue));
    }

    #[test]
    fn waiting_ends_when_the_queue_is_closed() {
        let queue = EventQueue::<u32>::new(8).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| queue.close());
            assert_eq!(queue.next(None).unwrap(), None);
        });
        assert_eq!(queue.next(None).unwrap(), None);
        // The descriptor stays readable after the last event was taken, for programs that poll it.
        let queue = EventQueue::<u32>::new(8).unwrap();
        queue.push(1);
        queue.close();
        assert_eq!(queue.try_next(), Some(1));
        assert!(readable(&queue));
    }

    #[test]
    fn waiting_ends_at_the_timeout_or_with_an_event() {
        let queue = EventQueue::new(8).unwrap();
        assert_eq!(queue.next(Some(Duration::from_millis(5))).unwrap(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| queue.push(7));
            assert_eq!(queue.next(None).unwrap(), Some(7));
        });
    }

    #[test]
    fn an_interruptible_wait_ends_with_an_event_or_when_the_queue_closes() {
        let queue = EventQueue::<u32>::new(8).unwrap();
        std::thread::scope(|scope| {
            let waiters = [0, 1].map(|_| scope.spawn(|| queue.next_or_signal().unwrap()));
            queue.push(7);
            queue.push(8);
            let got = waiters.map(|waiter| waiter.join().unwrap().unwrap());
            assert_eq!(got.iter().sum::<u32>(), 15);
            let last = scope.spawn(|| queue.next_or_signal().unwrap());
            queue.close();
            assert_eq!(last.join().unwrap(), None);
        });
        assert_eq!(queue.next_or_signal().unwrap(), None);
    }

    #[test]
    fn a_full_queue_drops_its_oldest_event() {
        let queue = EventQueue::new(2).unwrap();
        for n in 0..5 {
            queue.push(n);
        }
        assert_eq!(queue.try_next(), Some(3));
        assert_eq!(queue.try_next(), Some(4));
        assert!(!readable(&queue));
    }

    #[test]
    fn each_of_two_waiting_threads_gets_an_event() {
        let queue = EventQueue::new(8).unwrap();
        let got: Vec<u32> = std::thread::scope(|scope| {
            let waiters = [0, 1].map(|_| scope.spawn(|| queue.next(None).unwrap().unwrap()));
            queue.push(1);
            queue.push(2);
            waiters.into_iter().map(|w| w.join().unwrap()).collect()
        });
        assert_eq!(got.iter().sum::<u32>(), 3);
    }
}

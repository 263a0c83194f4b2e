//! The thread that reads events.
//!
//! A thread of the program that unmaps watched memory sleeps until its event is read, and it may hold any lock, such as
//! the allocator's. So the reader allocates nothing, frees nothing, logs nothing and takes no lock between two reads.

use super::Shared;
use super::sys::{self, EVENT};
use crate::maps::Maps;
use crate::why::Cause;
use linux_raw_sys::general as raw;
use rkey_base::range::VaRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The maximum number of events that one system call reads.
const AT_ONCE: usize = 16;

/// Reads the events of a [`Userfaultfd`](super::Userfaultfd), in a thread that the program provides.
///
/// When it is dropped, the monitor stops: memory is no longer watched, all entries end, and the threads that waited for
/// it continue.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It applied this many events.
    Applied(usize),
    /// It applied no event: the timeout passed, or a signal arrived.
    Nothing,
    /// The monitor was dropped.
    End,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Reads events until the monitor is dropped. Blocks the signals of the calling thread, except those that its own
    /// faults raise.
    ///
    /// ```
    /// # use rkey_cache::Userfaultfd;
    /// if let Ok((monitor, reader)) = Userfaultfd::open() {
    ///     std::thread::spawn(move || reader.run());
    /// #   drop(monitor);
    /// }
    /// ```
    pub fn run(mut self) {
        sys::block_signals();
        while self.step(None) != Step::End {}
    }

    /// Waits for events and applies those that one system call reads, for programs with their own event loop and for
    /// tests. A thread that unmaps watched memory sleeps until another thread calls this.
    pub fn step(&mut self, timeout: Option<&Timespec>) -> Step {
        let mut waiting = [
            PollFd::new(&self.shared.fd, PollFlags::IN),
            PollFd::new(&self.shared.stop, PollFlags::IN),
        ];
        if poll(&mut waiting, timeout).is_err() {
            return Step::Nothing;
        }
        let (events, stop) = (waiting[0].revents(), waiting[1].revents());
        if !stop.is_empty() {
            return Step::End;
        }
        if events.is_empty() {
            return Step::Nothing;
        }
        match self.shared.read_and_apply() {
            0 => Step::Nothing,
            count => Step::Applied(count),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.stop_watching();
    }
}

impl Shared {
    /// Reads events and applies them. The read wakes the threads that caused the events. The epoch is odd from before
    /// the read until the entries have ended.
    pub(super) fn read_and_apply(&self) -> usize {
        let mut buffer = [0; EVENT * AT_ONCE];
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let len = rustix::io::read(&self.fd, &mut buffer).unwrap_or(0);
        let events = buffer[..len].chunks_exact(EVENT);
        let count = events.len();
        for event in events {
            self.apply(event);
        }
        self.events.fetch_add(count as u64, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        count
    }

    /// Applies one event: its number is the first byte, and up to three words begin at byte 8.
    fn apply(&self, event: &[u8]) {
        let word = |at: usize| {
            let bytes = event.get(8 + 8 * at..16 + 8 * at);
            bytes.map_or(0, |bytes| {
                u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
            })
        };
        let between = |start: u64, end: u64| VaRange::new(start, end.saturating_sub(start));
        let (ranges, cause) = match u32::from(event[0]) {
            raw::UFFD_EVENT_UNMAP => ([between(word(0), word(1)), None], Cause::Unmapped),
            raw::UFFD_EVENT_REMOVE => ([between(word(0), word(1)), None], Cause::Discarded),
            raw::UFFD_EVENT_REMAP => (
                [
                    VaRange::new(word(0), word(2)),
                    VaRange::new(word(1), word(2)),
                ],
                Cause::Moved,
            ),
            _ => {
                self.subscribers.tell_all(Cause::Unknown);
                return;
            }
        };
        for range in ranges.into_iter().flatten() {
            self.subscribers.tell(range, cause);
        }
    }

    /// Ends all entries, stops watching all memory, and lets the waiting threads continue. A thread that is about to
    /// watch memory sees `stopped` afterwards, and undoes that.
    fn stop_watching(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.subscribers.tell_all(Cause::Unknown);
        if self.fork.is_child() {
            return;
        }
        if let Ok(maps) = Maps::open() {
            maps.each(|mapping| self.unwatch_while_reading(mapping));
        }
        while self.read_and_apply() > 0 {}
    }

    /// Stops watching memory. Reads waiting events meanwhile, because the kernel refuses while one waits.
    pub(super) fn unwatch_while_reading(&self, range: &VaRange) {
        while sys::unregister(&self.fd, range) == Err(Errno::AGAIN) {
            self.read_and_apply();
        }
        self.read_and_apply();
    }
}

//! The thread that reads events.
//!
//! A thread of the program that unmaps watched memory sleeps until its event is read, and it may hold any lock, such as
//! the allocator's. So the reader allocates nothing, frees nothing, logs nothing and takes no lock between two reads.

use super::Shared;
use super::sys::{self, EVENT};
use crate::why::Cause;
use linux_raw_sys::general as raw;
use rkey_base::process::page_size;
use rkey_base::range::VaRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The maximum number of events that one system call reads.
const AT_ONCE: usize = 16;

/// Reads the events of a [`Userfaultfd`](super::Userfaultfd), in a thread that the program provides.
///
/// When the reader is dropped, the monitor stops: memory is no longer watched, all entries end, and the threads that waited for
/// the reader continue.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The number of events that the step applied.
    Applied(usize),
    /// The step applied no event: the timeout passed, or a signal arrived.
    Nothing,
    /// The monitor was dropped.
    End,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Reads events until the monitor is dropped. During that time, the signals of the calling thread are blocked, except those that
    /// its own faults raise.
    ///
    /// ```
    /// # use rkey_cache::Userfaultfd;
    /// if let Ok((monitor, reader)) = Userfaultfd::open() {
    ///     std::thread::spawn(move || reader.run());
    /// #   drop(monitor);
    /// }
    /// ```
    pub fn run(self) {
        self.run_after(|| {});
    }

    /// Like [`Reader::run`]. Calls `started` when the thread has read once and needs no lock of the linker any more, which a thread
    /// may need while it starts. A program that calls `dlclose` should not watch memory before that: `dlclose` unmaps watched
    /// memory while it has such a lock, and would wait for this thread. After `started` has told the program, it must not free memory.
    ///
    /// ```
    /// # use rkey_cache::Userfaultfd;
    /// # use std::sync::Barrier;
    /// static STARTED: Barrier = Barrier::new(2);
    /// if let Ok((monitor, reader)) = Userfaultfd::open() {
    ///     std::thread::spawn(move || reader.run_after(|| { STARTED.wait(); }));
    ///     STARTED.wait();
    ///     // Now lookups may watch memory.
    /// #   drop(monitor);
    /// }
    /// ```
    pub fn run_after(self, started: impl FnOnce()) {
        let _blocked = sys::BlockedSignals::new();
        // Dropped before the signals are unblocked.
        let mut reader = self;
        reader.shared.read_and_apply();
        started();
        while reader.step(None) != Step::End {}
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

    /// Ends all entries, stops watching all memory, and lets the waiting threads continue. A thread that watches memory at
    /// the same time sees `stopped` afterwards, and stops watching, too.
    fn stop_watching(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.subscribers.tell_all(Cause::Unknown);
        if !self.fork.is_child() {
            self.unwatch_everything();
        }
    }

    /// Stops watching all memory, and reads the last events: no thread reads events afterwards, so none may follow.
    ///
    /// While this goes through the mappings, another thread can move watched memory to an address that it has passed. So it
    /// goes through them again, until nothing was watched, no event arrived, and the kernel says that no change is in
    /// progress. Closing the descriptor instead would not be enough: forked children have copies of it.
    pub(super) fn unwatch_everything(&self) {
        let _blocked = sys::BlockedSignals::new();
        let kernel_checks = kernel_checks_owner();
        loop {
            let before = self.events.load(Ordering::Relaxed);
            let mut watched = false;
            self.maps.each(|mapping| {
                if self.is_watched(mapping) && (kernel_checks || self.is_own(mapping)) {
                    watched |= self.unwatch_while_reading(mapping);
                }
            });
            self.await_changes();
            if !watched && self.events.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }

    /// Applies events until no change is in progress. A thread that makes a change has counted it before it queues the event.
    fn await_changes(&self) {
        // The kernel looks at the count before it looks at the range.
        let anywhere = VaRange::new(0, page_size() as u64).expect("the first page is a range");
        while sys::is_watched(&self.fd, &anywhere) == Err(Errno::AGAIN) {
            let mut waiting = [PollFd::new(&self.fd, PollFlags::IN)];
            let moment = Timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            };
            let _ = poll(&mut waiting, Some(&moment));
            self.read_and_apply();
        }
    }

    /// Whether a descriptor watches a mapping.
    fn is_watched(&self, mapping: &VaRange) -> bool {
        let ask = |range: &VaRange| loop {
            match sys::is_watched(&self.fd, range) {
                Err(Errno::AGAIN) => self.await_changes(),
                answer => break answer,
            }
        };
        let page = page_size() as u64;
        let first = mapping.slice(0, page.min(mapping.len()));
        let watched = match first.map(|first| ask(&first)) {
            // Huge pages: the range must consist of whole pages.
            Some(Err(Errno::INVAL)) => ask(mapping),
            Some(answer) => answer,
            None => return false,
        };
        watched.is_ok()
    }

    /// Whether this descriptor is the one that watches a watched mapping. Asks by registering the mapping again, which fails
    /// if another descriptor watches it.
    fn is_own(&self, mapping: &VaRange) -> bool {
        sys::register(&self.fd, mapping).is_ok()
    }

    /// Stops watching memory. Also reads waiting events, because the kernel refuses while one waits. Returns `false` if
    /// that failed, for example because another descriptor watches the memory.
    fn unwatch_while_reading(&self, range: &VaRange) -> bool {
        let result = loop {
            match sys::unregister(&self.fd, range) {
                Err(Errno::AGAIN) => self.read_and_apply(),
                result => break result,
            };
        };
        self.read_and_apply();
        result.is_ok()
    }
}

/// Whether the kernel refuses to let one descriptor end what another one watches (another library's cache, or a live
/// migration), as it does since Linux 6.17.
fn kernel_checks_owner() -> bool {
    let name = rustix::system::uname();
    let mut numbers = name
        .release()
        .to_bytes()
        .split(|byte| !byte.is_ascii_digit())
        .map(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    version >= (Some(6), Some(17))
}

#[cfg(all(test, not(miri)))]
mod tests {
    // UNSAFETY: maps memory.
    #![allow(unsafe_code)]

    use super::super::Userfaultfd;
    use crate::monitor::Monitor;
    use rkey_base::process::page_size;
    use rkey_base::range::VaRange;

    /// Maps one page. Pages without access on both sides keep it apart from other mappings, with which the kernel would merge it.
    fn map() -> VaRange {
        let len = page_size();
        // SAFETY: new memory at an address of the kernel's choice, and a page inside it.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                3 * len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let page = start.byte_add(len);
            assert_eq!(
                0,
                libc::mprotect(page, len, libc::PROT_READ | libc::PROT_WRITE)
            );
            VaRange::new(page.expose_provenance() as u64, len as u64).unwrap()
        }
    }

    /// Only memory that the monitor's own descriptor watches counts as its own. The kernel's answer to "is it watched?"
    /// covers both descriptors.
    #[test]
    fn a_reader_that_exits_does_not_affect_other_descriptors() {
        let (Ok((first, reader)), Ok((second, _other))) =
            (Userfaultfd::open(), Userfaultfd::open())
        else {
            println!("skipped: no userfaultfd");
            return;
        };
        let (own, foreign, unwatched) = (map(), map(), map());
        first.watch(own).unwrap();
        second.watch(foreign).unwrap();
        assert!(super::sys::is_watched(&first.shared.fd, &foreign).is_ok());
        let mapping = |range: VaRange| first.shared.maps.mapping(range.start()).unwrap().range;
        let shared = &first.shared;
        assert!(shared.is_watched(&mapping(own)) && shared.is_own(&mapping(own)));
        assert!(shared.is_watched(&mapping(foreign)) && !shared.is_own(&mapping(foreign)));
        assert!(!shared.is_watched(&mapping(unwatched)));
        drop(reader);
        assert!(super::sys::is_watched(&first.shared.fd, &own).is_err());
        assert!(super::sys::is_watched(&second.shared.fd, &foreign).is_ok());
    }
}

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
    /// faults raise, meanwhile.
    ///
    /// ```
    /// # use rkey_cache::Userfaultfd;
    /// if let Ok((monitor, reader)) = Userfaultfd::open() {
    ///     std::thread::spawn(move || reader.run());
    /// #   drop(monitor);
    /// }
    /// ```
    pub fn run(self) {
        let _blocked = sys::BlockedSignals::new();
        // Dropped before the signals are unblocked.
        let mut reader = self;
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

    /// Ends all entries, stops watching all memory, and lets the waiting threads continue. A thread that is about to
    /// watch memory sees `stopped` afterwards, and undoes that.
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
        loop {
            let mut found = 0;
            self.maps.each(|mapping| {
                if self.is_own(mapping) {
                    found += self.unwatch_while_reading(mapping);
                }
            });
            found += self.read_and_apply() + self.await_changes();
            if found == 0 {
                return;
            }
        }
    }

    /// Applies events until no change is in progress. A thread that makes a change has counted it before it queues the event.
    fn await_changes(&self) -> usize {
        // The kernel looks at the count before it looks at the range.
        let anywhere = VaRange::new(0, page_size() as u64).expect("the first page is a range");
        let mut count = 0;
        while sys::is_watched(&self.fd, &anywhere) == Err(Errno::AGAIN) {
            let mut waiting = [PollFd::new(&self.fd, PollFlags::IN)];
            let moment = Timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            };
            let _ = poll(&mut waiting, Some(&moment));
            count += self.read_and_apply();
        }
        count
    }

    /// Whether this descriptor watches a mapping. Before Linux 6.17, the kernel lets one descriptor end what another one
    /// watches (another library's cache, or a live migration), so this asks by registering the mapping again: that
    /// fails if it is another one's.
    fn is_own(&self, mapping: &VaRange) -> bool {
        let page = page_size() as u64;
        let first = mapping.slice(0, page.min(mapping.len()));
        // No descriptor watches most mappings. If a change is in progress, the answer is not known.
        if first.is_none_or(|first| sys::is_watched(&self.fd, &first) == Err(Errno::NOENT)) {
            return false;
        }
        sys::register(&self.fd, mapping).is_ok()
    }

    /// Stops watching memory that this descriptor watches. Reads waiting events meanwhile, because the kernel refuses
    /// while one waits. Returns how many events it applied, plus 1 if the memory was watched.
    fn unwatch_while_reading(&self, range: &VaRange) -> usize {
        let mut count = 0;
        let result = loop {
            match sys::unregister(&self.fd, range) {
                Err(Errno::AGAIN) => count += self.read_and_apply(),
                result => break result,
            }
        };
        count + self.read_and_apply() + usize::from(result.is_ok())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    // UNSAFETY: maps memory.
    #![allow(unsafe_code)]

    use super::super::Userfaultfd;
    use crate::monitor::Monitor;
    use rkey_base::process::page_size;
    use rkey_base::range::VaRange;

    /// Maps one page. Pages without access on both sides keep it apart from other mappings: neighbours become one.
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

    /// Only memory that the monitor's own descriptor watches counts as its own. The kernel answers the question "is it
    /// watched?" for both descriptors.
    #[test]
    fn the_end_of_a_reader_leaves_other_descriptors_alone() {
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
        assert!(first.shared.is_own(&mapping(own)));
        assert!(!first.shared.is_own(&mapping(foreign)));
        assert!(!first.shared.is_own(&mapping(unwatched)));
        drop(reader);
        assert!(super::sys::is_watched(&first.shared.fd, &own).is_err());
        assert!(super::sys::is_watched(&second.shared.fd, &foreign).is_ok());
    }
}

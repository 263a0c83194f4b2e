//! The monitor that the kernel notifies (`FI_MR_CACHE_MONITOR=userfaultfd`).
//!
//! The kernel reports `munmap`, `mremap`, `brk` and `madvise` of watched memory, and `mmap` over it, no matter whether the
//! program, its allocator or the C library calls them. Memory is registered for write protection but never protected, so
//! accesses never fault, and no privilege is needed.
//!
//! Events alone are not enough. The kernel first unmaps the memory, then queues the event; then the reader reads it,
//! and then the entries end. In between, another thread may get the same address. [`Monitor::validate`] closes that gap
//! for every change that the calling thread can know of: the thread made the change, or learnt of it from the thread
//! that did, or got the address afterwards.
//!
//! 1. *The kernel is asked whether the range is watched.* It counts the changes in progress: it increments the count
//!    before a change takes effect, and decrements it after our read has woken the thread that makes the change. If the
//!    count is not 0, the answer is "try again", and there is no hit. If new memory is mapped there, the answer is "not
//!    watched".
//! 2. *The epoch is read, until it is even.* If the count was 0 because a change is complete, our read had begun, and
//!    the epoch became odd before that. So this step sees that odd value or a later one, and the even value that
//!    follows is written only after the entries have ended.
//! 3. *The entry's state is read* (by the cache). So it has ended.
//!
//! Exchanging the first two steps breaks the argument.
//!
//! Changes that cause no event (`docs/registration-cache.md` lists them) are outside the argument, and so are these:
//!
//! * For `madvise` with `DONTNEED`, `DONTNEED_LOCKED` or `FREE`, the kernel queues the event *before* it drops the pages. The entries that exist
//!   end in time. But if another thread registers the same pages between the event and the drop, its entry refers to the pages
//!   that are then dropped. Such a program uses memory while it discards it, so what it sends at that moment is undefined anyway; but its
//!   entry stays, and later hits of it are stale. Nothing tells this monitor when the drop is complete.
//! * Before Linux 6.17, another descriptor of this process may stop our watching and watch the memory itself. The kernel does not say
//!   so, and its answers do not say which descriptor watches.

mod known;
mod probe;
mod reader;
mod sys;

pub use reader::{Reader, Step};
use sys::Answer;
pub use sys::OpenMethod;

use super::subscribers::Subscribers;
use super::{Monitor, Sees, TooManyCaches, Verdict, pages};
use crate::maps::{Mapping, Maps};
use crate::table::entries::Entries;
use crate::why::{Cause, Refusal};
use crossbeam_utils::Backoff;
use known::Known;
use rkey_base::process::{ForkMark, page_size};
use rkey_base::range::VaRange;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A mapping up to this size is watched as a whole. If only a part of a mapping is watched, `mremap` of more than that part
/// fails with `EFAULT`.
const WHOLE: u64 = 1 << 30;

/// If the quick question has no answer, a hit asks about all pages of a range of at most this many pages, and about one page of each
/// mapping in a larger range: the kernel watches a mapping as a whole or not at all.
const ASKED: u64 = 16;

/// How many times to ask the kernel while memory is changing.
const TRIES: usize = 16;

/// What the monitor and its reader share.
#[derive(Debug)]
struct Shared {
    fd: OwnedFd,
    stop: OwnedFd,
    /// Odd while events are being read and applied.
    epoch: AtomicU64,
    events: AtomicU64,
    subscribers: Subscribers,
    stopped: AtomicBool,
    fork: ForkMark,
    maps: Maps,
}

/// Why userfaultfd cannot be used here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No method to open a userfaultfd worked.
    #[error("{}", attempts(.0))]
    Refused(Vec<(OpenMethod, Errno)>),
    /// The kernel cannot be asked what is mapped at an address.
    #[error("the kernel does not answer PROCMAP_QUERY, which needs Linux 6.11")]
    NoMaps,
    /// Another system call failed.
    #[error("cannot set up the monitor: {0}")]
    System(#[from] io::Error),
}

fn attempts(attempts: &[(OpenMethod, Errno)]) -> String {
    let line = |(method, errno): &(OpenMethod, Errno)| match *errno {
        Errno::INVAL => format!("{method}: needs Linux 6.7 or later"),
        errno => format!("{method}: {errno}"),
    };
    attempts.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// The monitor that reads the kernel's events.
///
/// One monitor serves all caches of a process that use it, because only one descriptor can watch a page.
#[derive(Debug)]
pub struct Userfaultfd {
    shared: Arc<Shared>,
    method: OpenMethod,
    page: u64,
    /// Whether the quick question can be used.
    quick: bool,
    known: Known,
}

impl Userfaultfd {
    /// Opens the monitor by the first [method](OpenMethod::ALL) that works. The [`Reader`] needs a thread; until that thread runs, threads
    /// that unmap watched memory sleep.
    ///
    /// # Errors
    /// [`Unavailable`]: for each method, why it does not work, or what else is missing.
    pub fn open() -> Result<(Self, Reader), Unavailable> {
        Self::open_by(&OpenMethod::ALL)
    }

    /// Like [`open`](Self::open), but tries only the methods that the caller chooses.
    ///
    /// # Errors
    /// [`Unavailable`]: for each method, why it does not work, or what else is missing.
    pub fn open_by(methods: &[OpenMethod]) -> Result<(Self, Reader), Unavailable> {
        let mut refused = Vec::new();
        for &method in methods {
            match sys::open(method) {
                Ok(fd) => return Self::from_fd(fd, method),
                Err(errno) => refused.push((method, errno)),
            }
        }
        Err(Unavailable::Refused(refused))
    }

    fn from_fd(fd: OwnedFd, method: OpenMethod) -> Result<(Self, Reader), Unavailable> {
        let maps = Maps::open()?;
        if !maps.answers() {
            return Err(Unavailable::NoMaps);
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Arc::new(Shared {
            fd,
            stop: stop.map_err(io::Error::from)?,
            epoch: AtomicU64::new(0),
            events: AtomicU64::new(0),
            subscribers: Subscribers::new(),
            stopped: AtomicBool::new(false),
            fork: ForkMark::new()?,
            maps,
        });
        let monitor = Self {
            quick: probe::quick_question_works(&shared.fd),
            shared: Arc::clone(&shared),
            method,
            page: page_size() as u64,
            known: Known::default(),
        };
        Ok((monitor, Reader::new(shared)))
    }

    /// How the monitor was opened.
    #[must_use]
    pub fn method(&self) -> OpenMethod {
        self.method
    }

    /// How many events were applied.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.shared.events.load(Ordering::Relaxed)
    }

    /// Waits until the events that have been read are applied: the second step of a validation. This step alone proves
    /// nothing, because an event may be unread. In a forked child, where no thread applies events, the call returns at once.
    pub fn wait_until_applied(&self) {
        let backoff = Backoff::new();
        while self.shared.epoch.load(Ordering::SeqCst) % 2 == 1 && !self.shared.fork.is_child() {
            backoff.snooze();
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst) || self.shared.fork.is_child()
    }

    /// The quick question. Its answer is [`Answer::Unknown`] if this kernel answers it differently.
    #[inline]
    fn ask(&self, pages: &VaRange) -> Answer {
        if self.quick {
            sys::ask(&self.shared.fd, pages)
        } else {
            Answer::Unknown
        }
    }

    /// The quick question, asked again while memory is changing, so that a change elsewhere does not cost a registration.
    fn ask_until_unchanging(&self, pages: &VaRange) -> Answer {
        let backoff = Backoff::new();
        for _ in 1..TRIES {
            match self.ask(pages) {
                Answer::Changing => backoff.snooze(),
                answer => return answer,
            }
        }
        self.ask(pages)
    }

    /// Whether all of the pages are watched, when the quick question has no answer.
    #[cold]
    fn ask_slowly(&self, pages: &VaRange) -> Verdict {
        let asked = if pages.len() > ASKED * self.page {
            self.ask_each_mapping(pages)
        } else {
            sys::is_watched(&self.shared.fd, pages)
        };
        match asked {
            Ok(()) => Verdict::Fresh,
            Err(Errno::NOENT) => Verdict::Changed,
            Err(_) => Verdict::Busy,
        }
    }

    /// Whether all of the pages are watched. Asks again while memory is changing.
    fn is_watched(&self, pages: &VaRange) -> Result<bool, Refusal> {
        let backoff = Backoff::new();
        for _ in 0..TRIES {
            match sys::is_watched(&self.shared.fd, pages) {
                Ok(()) => return Ok(true),
                Err(Errno::NOENT) => return Ok(false),
                Err(Errno::AGAIN) => backoff.snooze(),
                Err(errno) => return Err(Refusal::System(errno)),
            }
        }
        Err(Refusal::System(Errno::AGAIN))
    }

    /// Asks about one page of each mapping in the range. `NOENT` if one is not watched, or there is a hole.
    fn ask_each_mapping(&self, pages: &VaRange) -> Result<(), Errno> {
        let mut address = pages.start();
        while address < pages.end() {
            let page = VaRange::new(address, self.page).ok_or(Errno::INVAL)?;
            sys::is_watched(&self.shared.fd, &page)?;
            // Look up the mapping only after the question: a change before the question has split the mapping.
            address = self.shared.maps.end_of_mapping(address)?;
        }
        Ok(())
    }

    /// Watches the mappings of a range.
    fn watch_each_mapping(&self, pages: &VaRange) -> Result<(), Refusal> {
        let mut address = pages.start();
        while address < pages.end() {
            let events = self.events();
            let mapping = self
                .shared
                .maps
                .mapping(address)
                .map_err(|errno| match errno {
                    Errno::NOENT => Refusal::NotMapped,
                    errno => Refusal::System(errno),
                })?;
            can_watch(&mapping)?;
            let part = mapping.range.intersection(pages);
            let part = part
                .filter(|part| part.contains_address(address))
                .ok_or(Refusal::NotMapped)?;
            let watched = self.watch_mapping(&mapping, &part)?;
            self.known.add(watched, events);
            address = part.end();
        }
        Ok(())
    }

    /// Watches a mapping, or only `part` of it if the mapping is larger than [`WHOLE`]. Returns what is watched.
    fn watch_mapping(&self, mapping: &Mapping, part: &VaRange) -> Result<VaRange, Refusal> {
        // The answer does not say which descriptor watches; registering fails if it is not ours.
        let watched = self.is_watched(part)?;
        let range = if mapping.range.len() <= WHOLE {
            mapping.range
        } else {
            *part
        };
        // Entries in unwatched memory are stale: their memory was unmapped without an event. End them, because watching
        // would make them look fresh.
        if !watched {
            self.shared.subscribers.tell(range, Cause::Replaced);
        }
        sys::register(&self.shared.fd, &range).map_err(|errno| match errno {
            Errno::BUSY => Refusal::Foreign,
            Errno::NOMEM => Refusal::TooManyMappings,
            errno => Refusal::System(errno),
        })?;
        if self.is_stopped() {
            self.shared.unwatch_everything();
            return Err(Refusal::Stopped);
        }
        Ok(range)
    }
}

/// Checks that only this process can take pages out of the mapping, and only with calls that cause events.
fn can_watch(mapping: &Mapping) -> Result<(), Refusal> {
    let name = mapping.name.as_str();
    let anonymous = matches!(name, "/dev/zero (deleted)" | "/anon_hugepage (deleted)");
    if name.starts_with("/SYSV") {
        Err(Refusal::SystemV)
    } else if mapping.backing.inode != 0 && !anonymous {
        Err(Refusal::File)
    } else if mapping.backing.shared {
        Err(Refusal::Shared)
    } else {
        // Private anonymous memory, heap, stack.
        Ok(())
    }
}

impl Monitor for Userfaultfd {
    fn name(&self) -> &'static str {
        "userfaultfd"
    }

    fn sees(&self) -> Sees {
        Sees::All
    }

    fn attach(&self, entries: &Arc<Entries>) -> Result<(), TooManyCaches> {
        self.shared.subscribers.add(entries)
    }

    fn detach(&self, entries: &Arc<Entries>) {
        self.shared.subscribers.remove(entries);
    }

    fn watch(&self, range: VaRange) -> Result<(), Refusal> {
        if self.is_stopped() {
            return Err(Refusal::Stopped);
        }
        // Let events that were read earlier take effect now, so that they do not end the new entry.
        self.wait_until_applied();
        let pages = pages(&range);
        if !self.known.contains(&pages, self.events()) {
            self.watch_each_mapping(&pages)?;
            self.wait_until_applied();
        }
        Ok(())
    }

    /// Checks again, because registering does not report a hole that appeared during `watch`, and because `watch` may have relied on what was
    /// known before. If it is still known now, when the kernel reports no change in progress, it was true all the time. If not,
    /// watching again is harmless.
    fn confirm(&self, range: VaRange) -> Verdict {
        let pages = pages(&range);
        match self.ask_until_unchanging(&pages) {
            Answer::Watched => {
                self.wait_until_applied();
                if self.known.contains(&pages, self.events()) {
                    return Verdict::Fresh;
                }
            }
            Answer::Changing => return Verdict::Busy,
            Answer::Unknown => {}
        }
        if self.watch_each_mapping(&pages).is_err() {
            return Verdict::Changed;
        }
        match self.is_watched(&pages) {
            Ok(true) => Verdict::Fresh,
            Ok(false) => Verdict::Changed,
            Err(_) => Verdict::Busy,
        }
    }

    /// Does not ask the kernel. Every change that the calling thread can know of took effect before `confirm`, and so before the
    /// registration. A later change ends the entry, and each hit validates it.
    fn check(&self, _: VaRange) -> Verdict {
        self.wait_until_applied();
        if self.is_stopped() {
            Verdict::Busy
        } else {
            Verdict::Fresh
        }
    }

    fn validate(&self, range: VaRange) -> Verdict {
        if self.is_stopped() {
            return Verdict::Busy;
        }
        let pages = pages(&range);
        let verdict = match self.ask(&pages) {
            Answer::Watched => Verdict::Fresh,
            Answer::Changing => Verdict::Busy,
            Answer::Unknown => self.ask_slowly(&pages),
        };
        self.wait_until_applied();
        verdict
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        // A forked child shares the counter of `stop`, and only the parent has a reader.
        if self.shared.fork.is_child() {
            return;
        }
        // The counter cannot overflow, and a nonblocking write of 8 bytes is complete. The reader sees it and stops
        // watching.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    // UNSAFETY: maps and unmaps memory.
    #![allow(unsafe_code)]

    use super::*;
    use std::ptr;

    /// New memory, or new memory over a part of it.
    fn map(at: Option<VaRange>, pages: usize, flags: libc::c_int) -> VaRange {
        let (address, fixed) = match at {
            Some(at) => (at.start() as usize, libc::MAP_FIXED),
            None => (0, 0),
        };
        // SAFETY: at an address of the kernel's choice, or over pages that a test has mapped and does not access.
        let start = unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(address),
                pages * page_size(),
                libc::PROT_READ | libc::PROT_WRITE,
                flags | fixed | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        VaRange::new(
            start.expose_provenance() as u64,
            (pages * page_size()) as u64,
        )
        .unwrap()
    }

    fn page_of(range: &VaRange, number: usize) -> VaRange {
        let page = page_size() as u64;
        range.slice(number as u64 * page, page).unwrap()
    }

    /// The quick question and the slow one agree, and the quick one has an answer for memory in one mapping.
    #[test]
    fn both_questions_have_the_same_answers() {
        let Ok((monitor, reader)) = Userfaultfd::open() else {
            println!("skipped: no userfaultfd");
            return;
        };
        std::thread::spawn(move || reader.run());
        println!("the quick question works: {}", monitor.quick);
        let memory = map(None, 64, libc::MAP_PRIVATE);
        assert_eq!(monitor.ask_slowly(&memory), Verdict::Changed);
        assert_eq!(monitor.ask(&memory), Answer::Unknown);
        monitor.watch(memory).unwrap();
        let several = memory.slice(0, 40 * page_size() as u64).unwrap();
        for part in [memory, several, page_of(&memory, 5)] {
            assert_eq!(monitor.ask_slowly(&part), Verdict::Fresh);
            let answer = monitor.ask(&part);
            assert_eq!(answer == Answer::Watched, monitor.quick, "{answer:?}");
            assert_eq!(monitor.validate(part), Verdict::Fresh);
        }
        // Two mappings: only the slow question has an answer.
        let second = page_of(&memory, 20);
        // SAFETY: pages that this test has mapped.
        unsafe {
            let start = ptr::with_exposed_provenance_mut(second.start() as usize);
            assert_eq!(libc::mprotect(start, page_size(), libc::PROT_READ), 0);
        }
        assert_eq!(monitor.ask(&several), Answer::Unknown);
        assert_eq!(monitor.validate(several), Verdict::Fresh);
        // Other memory, private or shared, or none.
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
            map(Some(second), 1, flags);
            for part in [second, several, memory] {
                assert_eq!(monitor.ask(&part), Answer::Unknown);
                assert_eq!(monitor.validate(part), Verdict::Changed);
            }
            assert_eq!(monitor.validate(page_of(&memory, 19)), Verdict::Fresh);
        }
    }

    /// A range is known to be watched until its memory changes, whether or not the kernel answers the quick question.
    #[test]
    fn a_miss_watches_memory_again_after_it_changed() {
        for quick in [true, false] {
            let Ok((mut monitor, reader)) = Userfaultfd::open() else {
                println!("skipped: no userfaultfd");
                return;
            };
            monitor.quick &= quick;
            std::thread::spawn(move || reader.run());
            watch_and_map_over(&monitor);
        }
    }

    fn watch_and_map_over(monitor: &Userfaultfd) {
        let memory = map(None, 4, libc::MAP_PRIVATE);
        let page = page_of(&memory, 1);
        for round in 0..50 {
            monitor.watch(page).unwrap();
            assert!(monitor.known.contains(&page, monitor.events()), "{round}");
            assert_eq!(monitor.confirm(page), Verdict::Fresh);
            // New memory, which is not watched.
            map(Some(page), 1, libc::MAP_PRIVATE);
            monitor.wait_until_applied();
            assert_eq!(monitor.validate(page), Verdict::Changed);
            assert!(!monitor.known.contains(&page, monitor.events()), "{round}");
        }
        // A range that was known when `watch` was called, but no longer is.
        monitor.watch(page).unwrap();
        map(Some(page), 1, libc::MAP_PRIVATE);
        assert_eq!(monitor.confirm(page), Verdict::Fresh);
        assert_eq!(monitor.validate(page), Verdict::Fresh);
    }
}

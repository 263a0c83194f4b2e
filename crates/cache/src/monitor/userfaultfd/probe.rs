//! Whether the kernel answers the quick question ([`sys::ask`]) as this monitor needs it.

// UNSAFETY: maps and unmaps a page of its own.
#![allow(unsafe_code)]

use super::sys::{self, Answer, EVENT};
use rkey_base::process::page_size;
use rkey_base::range::VaRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ptr;
use std::time::Duration;

/// How long the kernel has to report that watched memory is unmapped. It takes microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks about memory that is not watched, about a watched page, about this page with one behind it that is not watched, and about
/// watched memory while a thread unmaps it. The quick question relies on the order of the kernel's checks, which is not documented. No
/// other memory may be watched yet.
pub(super) fn quick_question_works(fd: &OwnedFd) -> bool {
    let Some(memory) = map() else {
        return false;
    };
    let Some(first) = memory.slice(0, page_size() as u64) else {
        return false;
    };
    let works = sys::ask(fd, &first) == Answer::Unknown
        && sys::register(fd, &first).is_ok()
        && sys::ask(fd, &first) == Answer::Watched
        && sys::ask(fd, &memory) == Answer::Unknown
        && sys::register(fd, &memory).is_ok()
        && sys::ask(fd, &memory) == Answer::Watched;
    if works {
        return unmap_while(fd, memory, || sys::ask(fd, &first) == Answer::Changing);
    }
    // If the memory is not watched, this fails, which is harmless.
    let _ = sys::unregister(fd, &memory);
    unmap(memory);
    false
}

/// Two new pages of private memory.
fn map() -> Option<VaRange> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let len = 2 * page_size();
    // SAFETY: new memory at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED)
        .then(|| VaRange::new(start.expose_provenance() as u64, len as u64))
        .flatten()
}

/// Unmaps memory from `map`.
fn unmap(memory: VaRange) {
    // SAFETY: only this module knows the memory, and it does not use the memory afterwards.
    unsafe {
        libc::munmap(
            ptr::with_exposed_provenance_mut(memory.start() as usize),
            memory.len() as usize,
        )
    };
}

/// Unmaps watched memory in another thread, which waits until its event is read, and asks `meanwhile`. Returns `false` if no event
/// comes. If no thread can be created, returns `false`, and the memory stays.
#[expect(
    clippy::disallowed_methods,
    reason = "the thread inherits the blocked signals, and ends before this returns"
)]
fn unmap_while(fd: &OwnedFd, memory: VaRange, meanwhile: impl FnOnce() -> bool) -> bool {
    let blocked = sys::BlockedSignals::new();
    let thread = std::thread::Builder::new()
        .name("rkey-uffd-probe".into())
        .stack_size(64 << 10)
        .spawn(move || unmap(memory));
    drop(blocked);
    match thread {
        Ok(thread) => {
            let works = await_event(fd, PATIENCE) && meanwhile();
            // The thread continues once its event has been read.
            while !thread.is_finished() {
                let _ = rustix::io::read(fd, &mut [0; EVENT]);
                await_event(fd, Duration::from_millis(1));
            }
            thread.join().is_ok() && works
        }
        Err(_) => false,
    }
}

/// Waits for an event. Returns whether there is one.
fn await_event(fd: &OwnedFd, most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    let mut waiting = [PollFd::new(fd, PollFlags::IN)];
    // A signal may interrupt the call.
    loop {
        match poll(&mut waiting, Some(&timeout)) {
            Err(Errno::INTR) => {}
            result => return result == Ok(1),
        }
    }
}

//! Whether the kernel answers the quick question ([`sys::ask`]) as this monitor needs it.

// UNSAFETY: maps and unmaps a page of its own.
#![allow(unsafe_code)]

use super::sys::{self, Answer, EVENT};
use rkey_base::process::page_size;
use rkey_base::range::VaRange;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use std::ptr;

/// Asks about a page that is not watched, about a watched page, and about a watched page while a thread unmaps it. The quick
/// question relies on the order of the kernel's checks, which is not documented. No other memory may be watched yet.
pub(super) fn quick_question_works(fd: &OwnedFd) -> bool {
    let Some(page) = map() else {
        return false;
    };
    let unwatched = sys::ask(fd, &page) == Answer::Unknown;
    let watched = sys::register(fd, &page).is_ok() && sys::ask(fd, &page) == Answer::Watched;
    if unwatched && watched {
        return unmap_while(page, || {
            await_event(fd);
            let answer = sys::ask(fd, &page);
            // The thread continues once its event has been read.
            let _ = rustix::io::read(fd, &mut [0; EVENT]);
            answer == Answer::Changing
        });
    }
    // If the page is not watched, this fails, which is harmless.
    let _ = sys::unregister(fd, &page);
    unmap(page);
    false
}

/// A new page of private memory.
fn map() -> Option<VaRange> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), page_size(), protection, flags, -1, 0) };
    (start != libc::MAP_FAILED)
        .then(|| VaRange::new(start.expose_provenance() as u64, page_size() as u64))
        .flatten()
}

/// Unmaps a page from `map`.
fn unmap(page: VaRange) {
    // SAFETY: only this module knows the page, and it does not use the page afterwards.
    unsafe {
        libc::munmap(
            ptr::with_exposed_provenance_mut(page.start() as usize),
            page.len() as usize,
        )
    };
}

/// Unmaps a watched page in another thread, which waits until `meanwhile` has read the event. If no thread can be created, returns
/// `false`, and the page stays.
#[expect(
    clippy::disallowed_methods,
    reason = "the thread inherits the blocked signals, and ends before this returns"
)]
fn unmap_while(page: VaRange, meanwhile: impl FnOnce() -> bool) -> bool {
    let blocked = sys::BlockedSignals::new();
    let thread = std::thread::Builder::new()
        .name("rkey-uffd-probe".into())
        .stack_size(64 << 10)
        .spawn(move || unmap(page));
    drop(blocked);
    match thread {
        Ok(thread) => {
            let works = meanwhile();
            thread.join().is_ok() && works
        }
        Err(_) => false,
    }
}

fn await_event(fd: &OwnedFd) {
    let mut waiting = [PollFd::new(fd, PollFlags::IN)];
    // A signal may interrupt the call.
    while poll(&mut waiting, None) != Ok(1) {}
}

//! Whether this is still the process that created something, or a forked child of it.
//!
//! A child inherits copies of all objects, including descriptors of connections and pointers into memory that the
//! parent shares with its peers; using (or even dropping) them there would harm the parent. Comparing PIDs costs a
//! system call each time. So one page of this process is marked `MADV_WIPEONFORK`: the kernel gives a child a zeroed
//! page. The word in it is the *incarnation*, and the child sets a new one.

// UNSAFETY: one word in a page that comes straight from the kernel.
#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The page, or the error number of its allocation.
static PAGE: OnceLock<Result<&'static AtomicU64, i32>> = OnceLock::new();

/// The last incarnation in this line of forks. Not wiped, so a child continues from its parent's count.
static LAST: AtomicU64 = AtomicU64::new(0);

#[inline]
fn page() -> Result<&'static AtomicU64, i32> {
    *PAGE.get_or_init(|| {
        let len = super::page_size();
        let errno = || {
            io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO)
        };
        // SAFETY: a new private page at an address of the kernel's choice, with no other user. The page is never unmapped,
        // so the reference may live forever; the page is zeroed and aligned, so it holds a valid word. The kernel wipes
        // the child's copy before any code of the child runs.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(errno());
            }
            if libc::madvise(start, len, libc::MADV_WIPEONFORK) != 0 {
                let errno = errno();
                libc::munmap(start, len);
                return Err(errno);
            }
            Ok(&*start.cast::<AtomicU64>())
        }
    })
}

/// A number that no ancestor of this process has (but a sibling may); never 0. Reading the number costs two loads, except
/// the first time.
///
/// On a kernel without `MADV_WIPEONFORK` (before Linux 4.14), the number is the same in all processes.
#[inline]
#[must_use]
pub fn incarnation() -> u64 {
    match page() {
        Ok(word) => match word.load(Ordering::Relaxed) {
            0 => first_look(word),
            incarnation => incarnation,
        },
        Err(_) => u64::MAX,
    }
}

#[cold]
fn first_look(word: &AtomicU64) -> u64 {
    let mine = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread may have set it first.
    match word.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mine,
        Err(theirs) => theirs,
    }
}

/// Distinguishes a forked child from the process that made the mark.
#[derive(Clone, Copy, Debug)]
pub struct ForkMark {
    word: &'static AtomicU64,
    incarnation: u64,
}

impl ForkMark {
    /// Marks this process.
    ///
    /// # Errors
    ///
    /// On a kernel that cannot wipe pages at a fork (before Linux 4.14), or when there is no memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            word: page().map_err(io::Error::from_raw_os_error)?,
            incarnation: incarnation(),
        })
    }

    /// Whether this process is a forked descendant of the one that made the mark. Two loads: a child's word is 0 until the child
    /// looks at its own incarnation.
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.word.load(Ordering::Relaxed) != self.incarnation
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_recognised() {
        let mark = ForkMark::new().unwrap();
        assert!(!mark.is_child());
        // SAFETY: the child calls only async-signal-safe functions and makes plain loads: the page already exists.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let noticed = mark.is_child();
            let own = ForkMark {
                incarnation: incarnation(),
                ..mark
            };
            // SAFETY: ends the child without running any of the parent's code.
            unsafe { libc::_exit(if noticed && !own.is_child() { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child; `status` is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(!mark.is_child());
    }
}

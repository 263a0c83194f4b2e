//! The control page: how the two processes of a benchmark synchronise without the device that they measure. A
//! page of shared memory with a command, a number and an answer.

// UNSAFETY: maps a page shared with the other process, which safe code cannot do.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::futex;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The initiator's commands to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Command {
    /// No command yet.
    None,
    /// Reads `size` bytes of the buffer, or rewrites them with `count` if that is not zero.
    Touch,
    /// Like `Touch`, for the memory from rkey's allocator.
    TouchShared,
    /// Responds to `count` pings of `size` bytes.
    PingPong,
    /// Like `PingPong`, with direct copies.
    PingPongDirect,
    /// Receives `count` messages of `size` bytes and responds to each.
    Messages,
    /// Sleeps in the kernel without polling, until the next command.
    Sleep,
    /// Exits.
    Exit,
}

impl Command {
    fn from_number(number: u32) -> Self {
        let all = [
            Self::None,
            Self::Touch,
            Self::TouchShared,
            Self::PingPong,
            Self::PingPongDirect,
            Self::Messages,
            Self::Sleep,
            Self::Exit,
        ];
        all.get(number as usize).copied().unwrap_or(Self::Exit)
    }
}

const BLOB: usize = 1024;

/// The page. Each word that a side spins on has its own cache line.
#[repr(C, align(128))]
struct Page {
    sequence: AtomicU32,
    command: AtomicU32,
    size: AtomicU64,
    count: AtomicU64,
    done: Line,
    ready: [Line; 2],
    /// What each side passes to the other: a length, then bytes.
    blob: [[AtomicU64; BLOB / 8]; 2],
}

#[repr(C, align(128))]
struct Line(AtomicU32);

/// A mapping of the page, and the descriptor that the other process inherits.
pub(crate) struct Control {
    page: &'static Page,
    fd: OwnedFd,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control(fd {})", self.fd.as_raw_fd())
    }
}

impl Control {
    /// A new page; child processes inherit its descriptor.
    pub(crate) fn create() -> Result<Self> {
        let fd = memfd_create("rkey-bench", MemfdFlags::empty())
            .context("cannot create the control page")?;
        ftruncate(&fd, std::mem::size_of::<Page>() as u64)
            .context("cannot size the control page")?;
        Self::map(fd)
    }

    /// Maps the page that the initiator created, from the number of the inherited descriptor.
    pub(crate) fn inherit(number: i32) -> Result<Self> {
        // SAFETY: only checks the number: fcntl refuses one that is not an open descriptor.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_getfd(borrowed)
            .with_context(|| format!("descriptor {number} is not open"))?;
        // SAFETY: the initiator created this descriptor for us, and nothing else here uses it.
        Self::map(unsafe { OwnedFd::from_raw_fd(number) })
    }

    fn map(fd: OwnedFd) -> Result<Self> {
        let length = std::mem::size_of::<Page>();
        let size = rustix::fs::fstat(&fd)?.st_size;
        anyhow::ensure!(size >= length as i64, "the control page is too short");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                &fd,
                0,
            )
        };
        let at = at.context("cannot map the control page")?;
        // SAFETY: page-aligned, as long as the file (checked above), never unmapped, and made of atomics only,
        // for which every bit pattern is valid.
        let page = unsafe { &*at.cast::<Page>() };
        Ok(Self { page, fd })
    }

    /// The descriptor number by which the other process finds the page.
    pub(crate) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Sends the target a command. Returns its number, for [`Control::is_done`].
    pub(crate) fn command(&self, command: Command, size: u64, count: u64) -> u32 {
        let next = self.page.sequence.load(Ordering::Relaxed) + 1;
        let asleep = self.page.command.load(Ordering::Relaxed) == Command::Sleep as u32;
        self.page.command.store(command as u32, Ordering::Relaxed);
        self.page.size.store(size, Ordering::Relaxed);
        self.page.count.store(count, Ordering::Relaxed);
        self.page.sequence.store(next, Ordering::Release);
        if asleep {
            // Waking fails only for an unmapped address.
            let _ = futex::wake(&self.page.sequence, futex::Flags::empty(), 1);
        }
        next
    }

    /// Sleeps in the kernel until there is a command after number `seen`.
    pub(crate) fn sleep(&self, seen: u32) {
        while self.page.sequence.load(Ordering::Acquire) == seen {
            // After a signal, or if the number has changed, the loop checks again.
            let _ = futex::wait(&self.page.sequence, futex::Flags::empty(), seen, None);
        }
    }

    /// The command after number `seen`, if any: its number, kind, size and count.
    pub(crate) fn next(&self, seen: u32) -> Option<(u32, Command, u64, u64)> {
        let number = self.page.sequence.load(Ordering::Acquire);
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let command = || Command::from_number(self.page.command.load(Ordering::Relaxed));
        (number != seen).then(|| {
            (
                number,
                command(),
                word(&self.page.size),
                word(&self.page.count),
            )
        })
    }

    /// Reports that command `number` is finished.
    pub(crate) fn finish(&self, number: u32) {
        self.page.done.0.store(number, Ordering::Release);
    }

    /// Whether the target has finished command `number`.
    pub(crate) fn is_done(&self, number: u32) -> bool {
        self.page.done.0.load(Ordering::Acquire) >= number
    }

    /// Reports that `side` has reached point `turn`.
    pub(crate) fn arrive(&self, side: usize, turn: u32) {
        self.page.ready[side].0.store(turn, Ordering::Release);
    }

    /// Whether `side` has reached point `turn`.
    pub(crate) fn has_arrived(&self, side: usize, turn: u32) -> bool {
        self.page.ready[side].0.load(Ordering::Acquire) >= turn
    }

    /// Leaves bytes for the other side; the next [`Control::arrive`] or [`Control::finish`] publishes them.
    pub(crate) fn leave(&self, side: usize, bytes: &[u8]) -> Result<()> {
        anyhow::ensure!(
            bytes.len() <= BLOB - 8,
            "{} B do not fit into the control page, which has room for {} B",
            bytes.len(),
            BLOB - 8
        );
        let [length, words @ ..] = &self.page.blob[side];
        for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
        length.store(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the bytes that `side` left.
    pub(crate) fn read(&self, side: usize) -> Vec<u8> {
        let [length, words @ ..] = &self.page.blob[side];
        let mut bytes: Vec<u8> = words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(length.load(Ordering::Relaxed) as usize);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_arrive_once_and_in_order() {
        let control = Control::create().expect("a memfd");
        assert!(control.next(0).is_none());
        let number = control.command(Command::Touch, 4096, 7);
        assert_eq!(control.next(0), Some((number, Command::Touch, 4096, 7)));
        assert!(control.next(number).is_none() && !control.is_done(number));
        control.finish(number);
        assert!(control.is_done(number));
        control.leave(1, b"an introduction").expect("fits");
        assert!(control.leave(1, &[0; BLOB]).is_err());
        control.arrive(1, 1);
        assert!(control.has_arrived(1, 1) && !control.has_arrived(0, 1));
        assert_eq!(control.read(1), b"an introduction");
    }

    #[test]
    fn the_next_command_wakes_a_sleeping_target() {
        let control = Control::create().expect("a memfd");
        let number = control.command(Command::Sleep, 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| control.sleep(number));
            control.command(Command::None, 0, 0);
        });
        assert!(control.next(number).is_some());
    }

    #[test]
    fn a_closed_descriptor_is_refused() {
        assert!(Control::inherit(9999).is_err());
    }
}

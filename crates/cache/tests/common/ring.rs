//! A registrar that really pins pages, without hardware or privilege: the fixed buffers of an `io_uring`. Data sent
//! from a fixed buffer comes from the pages that were mapped when the buffer was registered.

// UNSAFETY: the kernel reads memory whose addresses the test chooses.
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use rkey_base::range::VaRange;
use rkey_cache::{Follows, Registrar, Request, Rights};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// The number of fixed buffers.
const BUFFERS: u32 = 256;

/// How many milliseconds a registration waits for memory that other processes have pinned.
const PATIENCE: u32 = 10_000;

/// A ring that sends to a pipe.
pub(crate) struct Ring {
    ring: Mutex<IoUring>,
    free: Mutex<Vec<u16>>,
    reader: OwnedFd,
    writer: OwnedFd,
}

/// A fixed buffer.
#[derive(Debug)]
pub(crate) struct Fixed {
    index: u16,
    range: VaRange,
    /// The rights that the cache requested.
    pub(crate) rights: Rights,
}

impl Ring {
    /// `None` if this machine does not allow it; the reason is printed.
    pub(crate) fn new() -> Option<Self> {
        let ring = IoUring::new(8).and_then(|ring| {
            ring.submitter().register_buffers_sparse(BUFFERS)?;
            Ok(ring)
        });
        let ring = match ring {
            Ok(ring) => ring,
            Err(error) => {
                println!("skipped: no io_uring with fixed buffers here: {error}");
                return None;
            }
        };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        Some(Self {
            ring: Mutex::new(ring),
            free: Mutex::new((0..BUFFERS as u16).collect()),
            reader,
            writer,
        })
    }

    fn update(&self, index: u16, range: Option<&VaRange>) -> io::Result<()> {
        let vector = libc::iovec {
            iov_base: range.map_or(std::ptr::null_mut(), |range| {
                std::ptr::with_exposed_provenance_mut(range.start() as usize)
            }),
            iov_len: range.map_or(0, |range| range.len() as usize),
        };
        let ring = self.ring.lock().unwrap();
        // SAFETY: the kernel pins the pages of the range, whatever they are; it reads them only in `send`.
        unsafe {
            ring.submitter()
                .register_buffers_update(u32::from(index), &[vector], None)
        }
    }

    /// Pins a range. There is a limit for all processes of an ordinary user together, and the kernel returns what a process has pinned
    /// some time after the process has ended.
    fn pin(&self, index: u16, range: &VaRange) -> io::Result<()> {
        for _ in 0..PATIENCE {
            match self.update(index, Some(range)) {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                    thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
        self.update(index, Some(range))
    }

    /// Sends the word at `address` from a fixed buffer. Returns what arrives.
    pub(crate) fn send(&self, fixed: &Fixed, address: u64) -> u64 {
        assert!(fixed.range.contains(&VaRange::new(address, 8).unwrap()));
        let mut ring = self.ring.lock().unwrap();
        let pointer = std::ptr::with_exposed_provenance(address as usize);
        let writer = types::Fd(self.writer.as_raw_fd());
        let entry = opcode::WriteFixed::new(writer, pointer, 8, fixed.index).build();
        // SAFETY: the kernel reads the pages that it has pinned, before `submit_and_wait` returns.
        unsafe { ring.submission().push(&entry).unwrap() };
        ring.submit_and_wait(1).unwrap();
        let sent = ring.completion().next().unwrap().result();
        assert_eq!(sent, 8, "{}", io::Error::from_raw_os_error(-sent));
        let mut word = [0; 8];
        assert_eq!(rustix::io::read(&self.reader, &mut word), Ok(8));
        u64::from_ne_bytes(word)
    }
}

impl Registrar for Ring {
    type Registration = Fixed;
    type Error = io::Error;

    fn follows(&self) -> Follows {
        Follows::Pages
    }

    fn register(&self, request: &Request) -> io::Result<Fixed> {
        let index = self.free.lock().unwrap().pop();
        let index = index.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let range = request.range;
        match self.pin(index, &range) {
            Ok(()) => Ok(Fixed {
                index,
                range,
                rights: request.rights,
            }),
            Err(error) => {
                self.free.lock().unwrap().push(index);
                Err(error)
            }
        }
    }

    fn deregister(&self, fixed: Fixed) {
        self.update(fixed.index, None).unwrap();
        self.free.lock().unwrap().push(fixed.index);
    }

    fn is_exhausted(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::OutOfMemory
    }
}

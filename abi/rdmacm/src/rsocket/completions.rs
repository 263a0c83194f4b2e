//! The completion queue of an rsocket's queue pair, and its descriptor.

#![allow(unsafe_code)]
// UNSAFETY: calls of verbs.

use crate::queues::verbs;
use crate::sys::{CompChannel, Cq, QpInitAttr};
use ibverbs::sys::{QpCap, Wc};
use rkey_kit::Errno;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;

/// A completion queue with a non-blocking channel.
#[derive(Debug)]
pub struct Completions {
    cq: *mut Cq,
    channel: *mut CompChannel,
    fd: RawFd,
}

// SAFETY: handles of the verbs front end, which any thread may use.
unsafe impl Send for Completions {}

impl Completions {
    /// Creates a completion queue for this many requests.
    ///
    /// # Errors
    /// No memory or descriptor is available.
    pub fn new(depth: u32) -> Result<Self, Errno> {
        let (context, _) = verbs::device()?;
        // SAFETY: the library's own context.
        let (channel, cq) = unsafe { verbs::create_cq(context, depth, null_mut()) }?;
        // SAFETY: just made.
        let fd = unsafe { (*channel).fd };
        let made = Self { cq, channel, fd };
        let _ = rustix::io::ioctl_fionbio(made.fd(), true);
        Ok(made)
    }

    /// The attributes of a queue pair that completes all its requests here.
    #[must_use]
    pub fn attributes(&self, kind: c_int, sends: u32, receives: u32) -> QpInitAttr {
        QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            cap: QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: kind,
            sq_sig_all: 1,
        }
    }

    /// The descriptor that is readable after a completion.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open until drop.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Polls up to `N` completions. Returns how many there were.
    #[must_use]
    pub fn take<const N: usize>(&self) -> ([Wc; N], usize) {
        // SAFETY: all fields are numbers.
        let mut batch: [Wc; N] = unsafe { std::mem::zeroed() };
        // SAFETY: our live completion queue, and room for the completions.
        let got =
            unsafe { ibverbs::completion::cq::poll_cq(self.cq, N as c_int, batch.as_mut_ptr()) };
        (batch, usize::try_from(got).unwrap_or(0))
    }

    /// Makes the descriptor unreadable until the next completion. The caller polls again afterwards.
    pub fn rearm(&self) {
        // SAFETY: our live channel and completion queue.
        unsafe { verbs::rearm(self.channel, self.cq) };
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue pair has ended.
        unsafe { verbs::destroy_cq(self.channel, self.cq) };
    }
}

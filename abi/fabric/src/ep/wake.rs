//! The descriptors that wake a program that waits for a completion queue or an event queue.
//!
//! An endpoint has up to two channels of the device. The descriptor of the first, for all completions, is in the sets of the
//! completion queues that a program can wait for. The descriptor of the second is in the set of the event queue; it
//! signals a peer's last message and the device's report that a peer has ended. So messages do not wake threads that wait
//! for events.

use super::*;
use std::os::fd::{AsRawFd, RawFd};

/// The descriptors that become readable when there is work, for a thread that has prepared to wait.
#[derive(Clone, Copy, Default)]
pub(super) struct Fds {
    /// After `Driven::arm`.
    pub(super) completions: Option<RawFd>,
    /// After `Driven::arm_for_end`.
    pub(super) ends: Option<RawFd>,
}

impl Live {
    pub(super) fn fds(&self) -> Fds {
        let fd = |channel: &Channel| channel.fd().as_raw_fd();
        Fds {
            completions: self.channel.as_ref().map(fd),
            ends: self.ends.as_ref().map(fd),
        }
    }
}

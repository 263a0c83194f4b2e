//! The descriptor of an event channel: readable while events are pending.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;

/// A descriptor that this library makes readable. Programs may poll it, and make it non-blocking.
#[derive(Debug)]
pub enum EventFd {
    /// An `eventfd`.
    Counter(OwnedFd),
    /// A socket pair, where a blocking `eventfd` cannot be read without waiting (before Linux 5.8, gVisor).
    Sockets {
        /// The program's end.
        theirs: OwnedFd,
        /// Our end.
        ours: OwnedFd,
    },
}

impl EventFd {
    /// Creates a descriptor that is not readable yet.
    ///
    /// # Errors
    /// No descriptor or memory is available.
    pub fn new() -> Result<Self, Errno> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC)?;
        match read_at_once(&counter) {
            Err(Errno::AGAIN) => Ok(Self::Counter(counter)),
            _ => Self::sockets(),
        }
    }

    fn sockets() -> Result<Self, Errno> {
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let (theirs, ours) = socketpair(family, SocketType::STREAM, flags, None)?;
        Ok(Self::Sockets { theirs, ours })
    }

    /// The descriptor that programs see.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        match self {
            Self::Counter(fd) | Self::Sockets { theirs: fd, .. } => fd,
        }
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // Errors don't matter: the count cannot reach its limit near 2^64, and a full socket is already readable.
        let _ = match self {
            Self::Counter(fd) => rustix::io::write(fd, &1u64.to_ne_bytes()),
            Self::Sockets { ours, .. } => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                rustix::net::send(ours, &[1], flags)
            }
        };
    }

    /// Makes the descriptor unreadable. Never blocks.
    pub fn drain(&self) {
        match self {
            Self::Counter(fd) => {
                let _ = read_at_once(fd);
            }
            Self::Sockets { theirs, .. } => {
                let mut bytes = [0u8; 64];
                while rustix::net::recv(theirs, &mut bytes[..], RecvFlags::DONTWAIT)
                    .is_ok_and(|(len, _)| len > 0)
                {}
            }
        }
    }

    /// Whether the descriptor is blocking; the program may have set `O_NONBLOCK`.
    #[must_use]
    pub fn is_blocking(&self) -> bool {
        rustix::fs::fcntl_getfl(self.fd()).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// Reads it, which makes it unreadable. Blocks until it is readable, unless the program has made it non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`: it is non-blocking and not readable. `EINTR`: a signal arrived.
    pub fn wait(&self) -> Result<(), Errno> {
        rustix::io::read(self.fd(), &mut [0; 8]).map(|_| ())
    }
}

fn read_at_once(counter: &OwnedFd) -> Result<usize, Errno> {
    let mut count = [0; 8];
    let mut into = [IoSliceMut::new(&mut count)];
    // Offset -1 reads from the descriptor's current position, as `read` does. An `eventfd` accepts no other offset.
    rustix::io::preadv2(counter, &mut into, u64::MAX, ReadWriteFlags::NOWAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(event_fd: &EventFd) -> bool {
        let mut fds = [PollFd::new(event_fd.fd(), PollFlags::IN)];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_descriptor_is_readable_after_a_signal_until_it_is_drained() {
        for event_fd in [EventFd::new().unwrap(), EventFd::sockets().unwrap()] {
            assert!(!is_readable(&event_fd));
            event_fd.drain();
            // More bytes than a socket buffer holds.
            for _ in 0..100_000 {
                event_fd.signal();
            }
            assert!(is_readable(&event_fd));
            event_fd.wait().unwrap();
            event_fd.drain();
            assert!(!is_readable(&event_fd) && event_fd.is_blocking());
            rustix::io::ioctl_fionbio(event_fd.fd(), true).unwrap();
            assert_eq!(event_fd.wait(), Err(Errno::AGAIN));
            assert!(!event_fd.is_blocking());
            event_fd.signal();
            assert_eq!(event_fd.wait(), Ok(()));
        }
    }
}

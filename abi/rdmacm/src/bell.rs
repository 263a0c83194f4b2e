//! The descriptor of an event channel: readable while events wait.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;

/// The descriptor. Programs may poll it, and make it non-blocking.
#[derive(Debug)]
pub enum Bell {
    /// An eventfd.
    Counter(OwnedFd),
    /// A pair of sockets, for kernels that cannot read an eventfd without waiting (before Linux 5.8, gVisor).
    Sockets {
        /// The program's end.
        theirs: OwnedFd,
        /// Our end.
        ours: OwnedFd,
    },
}

impl Bell {
    /// One that is not readable.
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

    /// Makes it readable.
    pub fn signal(&self) {
        // The count cannot reach its limit of 2^64, and a full socket is readable already.
        let _ = match self {
            Self::Counter(fd) => rustix::io::write(fd, &1u64.to_ne_bytes()),
            Self::Sockets { ours, .. } => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                rustix::net::send(ours, &[1], flags)
            }
        };
    }

    /// Makes it unreadable, without waiting.
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

    /// Whether the program has left it blocking.
    #[must_use]
    pub fn is_blocking(&self) -> bool {
        rustix::fs::fcntl_getfl(self.fd()).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// Waits until it is readable, unless the program has made it non-blocking, and makes it unreadable.
    ///
    /// # Errors
    /// `EAGAIN`: it is not readable, and non-blocking. `EINTR`: a signal arrived.
    pub fn wait(&self) -> Result<(), Errno> {
        rustix::io::read(self.fd(), &mut [0; 8]).map(|_| ())
    }
}

fn read_at_once(counter: &OwnedFd) -> Result<usize, Errno> {
    let mut count = [0; 8];
    let mut into = [IoSliceMut::new(&mut count)];
    // An offset of -1 means that the descriptor has none.
    rustix::io::preadv2(counter, &mut into, u64::MAX, ReadWriteFlags::NOWAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(bell.fd(), PollFlags::IN)];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn it_is_readable_from_the_signal_until_it_is_drained() {
        for bell in [Bell::new().unwrap(), Bell::sockets().unwrap()] {
            assert!(!is_readable(&bell));
            bell.drain();
            // More than a socket holds.
            for _ in 0..100_000 {
                bell.signal();
            }
            assert!(is_readable(&bell));
            bell.wait().unwrap();
            bell.drain();
            assert!(!is_readable(&bell) && bell.is_blocking());
            rustix::io::ioctl_fionbio(bell.fd(), true).unwrap();
            assert_eq!(bell.wait(), Err(Errno::AGAIN));
            assert!(!bell.is_blocking());
            bell.signal();
            assert_eq!(bell.wait(), Ok(()));
        }
    }
}

//! The set of descriptors that the engine thread waits for.
//!
//! Descriptors are removed from the set before they are closed: a forked child may hold copies of them, and then the kernel
//! would continue to report them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::error::DeviceError;

/// The maximum number of events that one wait returns.
const BATCH: usize = 64;

/// A descriptor's identifier in the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token(u64);

impl Token {
    pub(crate) const DOORBELL: Self = Self(0);
    pub(crate) const TIMER: Self = Self(1);
    const BLOCKS: u64 = 1 << 32;
    const OTHERS: u64 = 1 << 33;

    /// The listening socket of a block of queue pair numbers.
    pub(crate) fn block(number: u16) -> Self {
        Self(Self::BLOCKS | u64::from(number))
    }

    /// The n-th of all other descriptors.
    fn other(n: u64) -> Self {
        Self(Self::OTHERS + n)
    }

    /// The block whose socket has this token; `None` for other descriptors.
    pub(crate) fn as_block(self) -> Option<u16> {
        (self.0 & !0xffff == Self::BLOCKS).then_some((self.0 & 0xffff) as u16)
    }
}

/// The set of watched descriptors.
#[derive(Debug)]
pub(crate) struct Reactor {
    epoll: Arc<OwnedFd>,
    last_token: AtomicU64,
}

impl Reactor {
    /// An empty set.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new() -> Result<Self, DeviceError> {
        epoll::create(CreateFlags::CLOEXEC)
            .map(|epoll| Self {
                epoll: Arc::new(epoll),
                last_token: AtomicU64::new(0),
            })
            .map_err(DeviceError::io("creating the epoll set"))
    }

    /// The descriptor of the set itself.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// A token that no other descriptor has.
    pub(crate) fn new_token(&self) -> Token {
        Token::other(self.last_token.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Adds `fd` to the set: [`Reactor::wait`] returns `token` while `fd` is readable or has hung up.
    ///
    /// # Errors
    /// The kernel's limit of watched descriptors is reached.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), DeviceError> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.0), EventFlags::IN)
            .map_err(DeviceError::io("watching a file descriptor"))
    }

    /// Like [`Reactor::add`], but `token` is returned only once, until [`Reactor::watch_again`] is called.
    ///
    /// # Errors
    /// The kernel's limit of watched descriptors is reached.
    pub(crate) fn add_once(&self, fd: impl AsFd, token: Token) -> Result<(), DeviceError> {
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&self.epoll, fd, EventData::new_u64(token.0), flags)
            .map_err(DeviceError::io("watching a file descriptor"))
    }

    /// Returns `token` once more when `fd`, which is in the set, is readable.
    pub(crate) fn watch_again(&self, fd: impl AsFd, token: Token) {
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        // Fails only if the descriptor is not in the set.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), flags);
    }

    /// Removes `fd` from the set.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // The descriptor can be missing only if adding it failed.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events up to `timeout` (`None`: without limit).
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Vec<Token> {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut events = Vec::with_capacity(BATCH);
        // A signal ends the wait like an event: the caller checks everything anyway.
        let spare = rustix::buffer::spare_capacity(&mut events);
        let _ = epoll::wait(&self.epoll, spare, timeout.as_ref());
        events.iter().map(|event| Token(event.data.u64())).collect()
    }
}

/// The set's descriptor, which is readable while [`Reactor::wait`] would not wait.
impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_blocks_are_distinct_from_other_tokens() {
        assert_eq!(Token::block(0xffff).as_block(), Some(0xffff));
        assert_eq!(Token::block(0).as_block(), Some(0));
        for token in [
            Token::DOORBELL,
            Token::TIMER,
            Token::other(0),
            Token::other(1 << 40),
        ] {
            assert_eq!(token.as_block(), None);
        }
    }

    #[test]
    fn a_descriptor_is_reported_while_it_is_readable() {
        let reactor = Reactor::new().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        reactor.add(&reader, Token::other(7)).unwrap();
        assert_eq!(reactor.wait(Some(Duration::ZERO)), []);
        rustix::io::write(&writer, b"x").unwrap();
        for _ in 0..2 {
            assert_eq!(reactor.wait(None), [Token::other(7)]);
        }
        reactor.remove(&reader);
        assert_eq!(reactor.wait(Some(Duration::ZERO)), []);
        reactor.add_once(&reader, Token::other(8)).unwrap();
        for _ in 0..2 {
            assert_eq!(reactor.wait(None), [Token::other(8)]);
            assert_eq!(reactor.wait(Some(Duration::ZERO)), []);
            reactor.watch_again(&reader, Token::other(8));
        }
    }
}

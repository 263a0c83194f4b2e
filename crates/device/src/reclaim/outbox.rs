//! Answers to lease requests that wait because a peer's socket has no room.
//!
//! A socket holds only a few packets (`net.unix.max_dgram_qlen`), and doorbells are packets too, so the socket of a peer
//! that is short of processor time is sometimes full. Answers that do not fit wait here, in order, and the engine thread
//! sends them later.

use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rkey_engine::LinkId;
use rkey_link::peer::ControlLine;

/// The maximum number of answers that wait for one link: each may hold a descriptor. A peer that requests more without
/// reading its answers loses the rest.
const PER_LINK: usize = 16;

/// Sends answers to a peer. The device uses a link's socket; tests replace it.
pub(super) trait Outlet {
    /// Sends a packet, if there is room for it.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room now. Others: there will never be room.
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()>;
}

impl Outlet for ControlLine {
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_control(bytes, fds)
    }
}

/// An answer and its descriptor.
#[derive(Debug)]
pub(super) struct LeaseAnswer {
    pub(super) bytes: Vec<u8>,
    pub(super) fd: Option<OwnedFd>,
}

#[derive(Debug)]
struct Unsent<L> {
    link: LinkId,
    line: Arc<L>,
    packet: LeaseAnswer,
}

/// The answers that wait for room.
#[derive(Debug)]
pub(super) struct Outbox<L = ControlLine>(Mutex<VecDeque<Unsent<L>>>);

impl<L> Default for Outbox<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<L: Outlet> Outbox<L> {
    /// Sends an answer now, or queues it after earlier ones for the same link until there is room. Drops it if [`PER_LINK`]
    /// answers wait already, or if it cannot be sent; then this returns false.
    pub(super) fn send(&self, link: LinkId, line: Arc<L>, packet: LeaseAnswer) -> bool {
        let mut unsent = self.0.lock();
        let before = unsent.iter().filter(|other| other.link == link).count();
        if before >= PER_LINK {
            tracing::debug!(
                ?link,
                "dropped a message about leases or warrants: the peer does not read its socket"
            );
            return false;
        }
        let sent = match before {
            0 => try_send(link, &*line, &packet),
            _ => Sent::Later,
        };
        if sent == Sent::Later {
            unsent.push_back(Unsent { link, line, packet });
        }
        sent != Sent::Never
    }

    /// Sends as many answers as there is room for. Returns whether others still wait.
    pub(super) fn flush(&self) -> bool {
        let mut unsent = self.0.lock();
        let mut full: Vec<LinkId> = Vec::new();
        unsent.retain(|it| {
            let waits =
                full.contains(&it.link) || try_send(it.link, &*it.line, &it.packet) == Sent::Later;
            if waits {
                full.push(it.link);
            }
            waits
        });
        !unsent.is_empty()
    }

    /// Whether answers wait for room.
    pub(super) fn has_unsent(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Drops the answers that wait for a link that has ended.
    pub(super) fn forget(&self, link: LinkId) {
        self.0.lock().retain(|it| it.link != link);
    }
}

/// Whether a packet was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Now,
    /// There is no room.
    Later,
    /// The peer has ended, or the packet cannot be sent.
    Never,
}

/// Sends a packet if there is room.
fn try_send(link: LinkId, line: &impl Outlet, packet: &LeaseAnswer) -> Sent {
    let fds: Vec<_> = packet.fd.iter().map(AsFd::as_fd).collect();
    match line.send(&packet.bytes, &fds) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Sent::Later,
        Err(error) => {
            tracing::debug!(?link, %error, "cannot send a message about leases or warrants");
            Sent::Never
        }
        Ok(()) => Sent::Now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A line with room for a limited number of packets.
    #[derive(Default)]
    struct Narrow {
        room: AtomicUsize,
        sent: Mutex<Vec<u8>>,
    }

    impl Outlet for Narrow {
        fn send(&self, bytes: &[u8], _fds: &[BorrowedFd<'_>]) -> Result<()> {
            let took = self
                .room
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| {
                    room.checked_sub(1)
                });
            took.map_err(|_| ErrorKind::WouldBlock)?;
            self.sent.lock().extend(bytes);
            Ok(())
        }
    }

    impl Narrow {
        fn sent(&self) -> Vec<u8> {
            self.sent.lock().clone()
        }
    }

    fn packet(byte: u8) -> LeaseAnswer {
        LeaseAnswer {
            bytes: vec![byte],
            fd: None,
        }
    }

    #[test]
    fn answers_wait_for_room_and_stay_in_order() {
        let (outbox, line) = (Outbox::default(), Arc::new(Narrow::default()));
        let link = LinkId::from((1, 1));
        line.room.store(1, Ordering::Relaxed);
        for byte in 0..4 {
            assert!(outbox.send(link, Arc::clone(&line), packet(byte)));
        }
        assert_eq!(line.sent(), [0]);
        assert!(outbox.flush(), "there is no room");
        line.room.store(2, Ordering::Relaxed);
        assert!(outbox.flush() && outbox.has_unsent());
        // A new answer does not overtake one that waits.
        line.room.store(1, Ordering::Relaxed);
        outbox.send(link, Arc::clone(&line), packet(4));
        assert_eq!(line.sent(), [0, 1, 2]);
        line.room.store(9, Ordering::Relaxed);
        assert!(!outbox.flush() && !outbox.has_unsent());
        assert_eq!(line.sent(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_full_link_does_not_block_the_answers_of_another() {
        let (outbox, full, free) = (
            Outbox::default(),
            Arc::new(Narrow::default()),
            Arc::new(Narrow::default()),
        );
        outbox.send(LinkId::from((1, 1)), Arc::clone(&full), packet(1));
        outbox.send(LinkId::from((2, 1)), Arc::clone(&free), packet(2));
        free.room.store(1, Ordering::Relaxed);
        assert!(outbox.flush());
        assert_eq!((full.sent(), free.sent()), (vec![], vec![2]));
        outbox.forget(LinkId::from((1, 1)));
        assert!(!outbox.has_unsent());
    }

    #[test]
    fn the_answers_queued_for_a_peer_that_does_not_read_are_bounded() {
        let (outbox, line) = (Outbox::default(), Arc::new(Narrow::default()));
        let link = LinkId::from((1, 1));
        for byte in 0..=255 {
            let is_kept = outbox.send(link, Arc::clone(&line), packet(byte));
            assert_eq!(is_kept, usize::from(byte) < PER_LINK);
        }
        assert_eq!(outbox.0.lock().len(), PER_LINK);
    }

    #[test]
    fn the_sender_learns_that_an_answer_cannot_be_sent() {
        struct Closed;
        impl Outlet for Closed {
            fn send(&self, _bytes: &[u8], _fds: &[BorrowedFd<'_>]) -> Result<()> {
                Err(ErrorKind::BrokenPipe.into())
            }
        }
        let outbox = Outbox::default();
        assert!(!outbox.send(LinkId::from((1, 1)), Arc::new(Closed), packet(1)));
        assert!(!outbox.has_unsent());
    }
}

//! A wrapper that shows an observer everything that passes a link, for capture files.
//!
//! All payloads go through the rings, because what is copied between two processes directly does not pass the link. Only a peer
//! that is not observed can still send the addresses of its memory instead of a payload.

use crate::{
    Capabilities, DownReason, Header, Link, LinkRole, Malformed, NodeId, Payload, PollHandle,
    PullError, ReceivedFragment, RemotePeer, SendError, Ticket,
};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;

/// Which way something passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this device to its peer.
    Sent,
    /// From the peer to this device.
    Received,
}

impl Direction {
    /// The other direction.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::Sent => Self::Received,
            Self::Received => Self::Sent,
        }
    }
}

/// Sees what passes a link, in order. Called while the link is used, so it must not use the link, and must be quick.
pub trait Observer: Debug + Send {
    /// A fragment passes: a request or a response. The payload is empty if the fragment only names the requester's memory.
    fn fragment(&mut self, direction: Direction, header: &Header, payload: &[u8]);

    /// All requests whose tickets are below this one have been executed. The acknowledgement passes in this direction, and the
    /// requests in the other one.
    fn acknowledged(&mut self, direction: Direction, ticket: Ticket);
}

/// A link whose traffic an observer sees.
#[derive(Debug)]
pub struct Observed<L> {
    link: L,
    observer: RefCell<Box<dyn Observer>>,
    /// Has room for the payload that is being sent.
    payload: Vec<u8>,
    /// Whether the observer has seen the oldest request.
    request_shown: Cell<bool>,
    /// Whether the observer has seen the oldest response.
    response_shown: Cell<bool>,
    /// How many requests of the peer are done.
    done: Ticket,
    /// How many of them the observer knows to be done.
    done_shown: Ticket,
    /// How many of our requests the observer knows to be acknowledged.
    acknowledged_shown: Ticket,
}

impl<L: Link> Observed<L> {
    /// Shows the observer what passes the link from now on.
    pub fn new(link: L, observer: Box<dyn Observer>) -> Self {
        Self {
            link,
            observer: RefCell::new(observer),
            payload: Vec::new(),
            request_shown: Cell::new(false),
            response_shown: Cell::new(false),
            done: 0,
            done_shown: 0,
            acknowledged_shown: 0,
        }
    }

    /// A `fill` that also keeps a copy of the payload.
    fn keep(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> (&mut L, impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>) {
        // Longer fragments are refused.
        let len = header.len.min(self.link.capabilities().fragment_max);
        self.payload.resize(len as usize, 0);
        let payload = &mut self.payload;
        let keeping = move |mut into: OwnBytes<'_>| {
            fill(OwnBytes::from_slice(payload))?;
            into.put(0, payload);
            Ok(())
        };
        (&mut self.link, keeping)
    }

    /// Shows a fragment that was sent, whose payload was kept.
    fn show_sent(&mut self, header: &Header) {
        let observer = self.observer.get_mut();
        observer.fragment(Direction::Sent, header, &self.payload);
    }

    /// Shows a received fragment, unless the observer has seen it.
    fn show(&self, shown: &Cell<bool>, fragment: Option<&ReceivedFragment<'_>>) {
        let Some(ReceivedFragment { header, payload }) = fragment else {
            return;
        };
        if shown.replace(true) {
            return;
        }
        let payload = match payload {
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::RemoteIovec(_) => Vec::new(),
        };
        let mut observer = self.observer.borrow_mut();
        observer.fragment(Direction::Received, header, &payload);
    }

    fn show_done(&mut self) {
        if self.done_shown != self.done {
            self.done_shown = self.done;
            let observer = self.observer.get_mut();
            observer.acknowledged(Direction::Sent, self.done);
        }
    }
}

impl<L: Link> Link for Observed<L> {
    #[cold]
    #[inline(never)]
    fn node(&self) -> NodeId {
        self.link.node()
    }

    #[cold]
    #[inline(never)]
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            remote_iovec: false,
            ..self.link.capabilities()
        }
    }

    #[cold]
    #[inline(never)]
    fn is_up(&self) -> Result<(), DownReason> {
        self.link.is_up()
    }

    #[cold]
    #[inline(never)]
    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        let (link, fill) = self.keep(header, fill);
        let ticket = link.send_request(header, fill)?;
        self.show_sent(header);
        Ok(ticket)
    }

    #[cold]
    #[inline(never)]
    fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        let ticket = self.link.send_remote_iovec(header, remote_iovec)?;
        let observer = self.observer.get_mut();
        observer.fragment(Direction::Sent, header, &[]);
        Ok(ticket)
    }

    #[cold]
    #[inline(never)]
    fn prefers_fragments(&self) -> bool {
        self.link.prefers_fragments()
    }

    #[cold]
    #[inline(never)]
    fn prefers_fragments_for_read(&self, len: u64) -> bool {
        self.link.prefers_fragments_for_read(len)
    }

    #[cold]
    #[inline(never)]
    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        let next = self.link.next_response()?;
        self.show(&self.response_shown, next.as_ref());
        Ok(next)
    }

    #[cold]
    #[inline(never)]
    fn response_done(&mut self) {
        self.response_shown.set(false);
        self.link.response_done();
    }

    #[cold]
    #[inline(never)]
    fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
        let ticket = self.link.acknowledged()?;
        if self.acknowledged_shown != ticket {
            self.acknowledged_shown = ticket;
            let observer = self.observer.get_mut();
            observer.acknowledged(Direction::Received, ticket);
        }
        Ok(ticket)
    }

    #[cold]
    #[inline(never)]
    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        let next = self.link.next_request()?;
        self.show(&self.request_shown, next.as_ref());
        Ok(next)
    }

    #[cold]
    #[inline(never)]
    fn request_done(&mut self) {
        if self.request_shown.replace(false) {
            self.done += 1;
        }
        self.link.request_done();
    }

    #[cold]
    #[inline(never)]
    fn room_to_respond(&self) -> bool {
        self.link.room_to_respond()
    }

    #[cold]
    #[inline(never)]
    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        let (link, fill) = self.keep(header, fill);
        link.send_response(header, fill)?;
        self.show_sent(header);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        self.link.pull(mem, dst, src, len)
    }

    #[cold]
    #[inline(never)]
    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        self.link.push(mem, dst_remote, src_local, len)
    }

    #[cold]
    #[inline(never)]
    fn revoke_peer_access(&mut self) {
        self.link.revoke_peer_access();
    }

    #[cold]
    #[inline(never)]
    fn pending(&self) -> bool {
        self.link.pending()
    }

    #[cold]
    #[inline(never)]
    fn end_burst(&mut self) {
        self.show_done();
        self.link.end_burst();
    }

    #[cold]
    #[inline(never)]
    fn publish(&mut self) {
        self.show_done();
        self.link.publish();
    }

    #[cold]
    #[inline(never)]
    fn role(&self) -> LinkRole {
        self.link.role()
    }

    #[cold]
    #[inline(never)]
    fn poll_handle(&self) -> Option<PollHandle> {
        self.link.poll_handle()
    }

    #[cold]
    #[inline(never)]
    fn has_unacked(&self) -> bool {
        self.link.has_unacked()
    }

    #[cold]
    #[inline(never)]
    fn kick(&self) {
        self.link.kick();
    }

    #[cold]
    #[inline(never)]
    fn peer(&self) -> Option<RemotePeer> {
        let peer = self.link.peer()?;
        // The observer would not see a write under a warrant.
        Some(RemotePeer {
            warrants: None,
            ..peer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::Loopback;
    use crate::{HeaderFlags, Op};
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[derive(Debug, PartialEq, Eq)]
    enum Seen {
        Fragment(Direction, Op, Vec<u8>),
        Acknowledged(Direction, Ticket),
    }

    #[derive(Clone, Debug, Default)]
    struct Notes(Arc<Mutex<Vec<Seen>>>);

    impl Notes {
        fn take(&self) -> Vec<Seen> {
            std::mem::take(&mut self.0.lock())
        }
    }

    impl Observer for Notes {
        fn fragment(&mut self, direction: Direction, header: &Header, payload: &[u8]) {
            let seen = Seen::Fragment(direction, header.op, payload.to_vec());
            self.0.lock().push(seen);
        }

        fn acknowledged(&mut self, direction: Direction, ticket: Ticket) {
            self.0.lock().push(Seen::Acknowledged(direction, ticket));
        }
    }

    fn observed() -> (Observed<Loopback>, Notes) {
        let notes = Notes::default();
        let link = Loopback::new(NodeId::default());
        (Observed::new(link, Box::new(notes.clone())), notes)
    }

    #[test]
    fn each_fragment_and_each_acknowledgement_is_shown_once() {
        use Direction::{Received, Sent};
        let (mut link, notes) = observed();
        let header = |op, len| Header {
            len,
            total: len,
            ..Header::new(op)
        };
        let send = link.send_request(&header(Op::Send, 3), |mut into| {
            into.put(0, b"abc");
            Ok(())
        });
        assert_eq!(send, Ok(0));
        let read = link.send_request(&header(Op::Read, 0), |_| Ok(()));
        assert_eq!(read, Ok(1));
        assert_eq!(
            notes.take(),
            [
                Seen::Fragment(Sent, Op::Send, b"abc".to_vec()),
                Seen::Fragment(Sent, Op::Read, vec![])
            ]
        );
        for _ in 0..3 {
            assert!(link.next_request().unwrap().is_some());
        }
        link.request_done();
        assert!(link.next_request().unwrap().is_some());
        let respond = link.send_response(&header(Op::ReadData, 2), |mut into| {
            into.put(0, b"xy");
            Ok(())
        });
        assert_eq!(respond, Ok(()));
        link.request_done();
        assert!(link.next_request().unwrap().is_none());
        // Nothing is left to be done.
        link.request_done();
        link.end_burst();
        link.end_burst();
        assert_eq!(
            notes.take(),
            [
                Seen::Fragment(Received, Op::Send, b"abc".to_vec()),
                Seen::Fragment(Received, Op::Read, vec![]),
                Seen::Fragment(Sent, Op::ReadData, b"xy".to_vec()),
                Seen::Acknowledged(Sent, 2),
            ]
        );
        for _ in 0..2 {
            assert!(link.next_response().unwrap().is_some());
        }
        link.response_done();
        for _ in 0..2 {
            assert_eq!(link.acknowledged(), Ok(2));
        }
        assert_eq!(
            notes.take(),
            [
                Seen::Fragment(Received, Op::ReadData, b"xy".to_vec()),
                Seen::Acknowledged(Received, 2),
            ]
        );
    }

    #[test]
    fn a_fragment_that_is_not_sent_is_not_shown() {
        let (mut link, notes) = observed();
        let mut header = Header::new(Op::Write);
        (header.len, header.total) = (8, 8);
        let fault = Fault { address: 7 };
        let sent = link.send_request(&header, |_| Err(fault));
        assert_eq!(sent, Err(SendError::Fault(fault)));
        header.len = link.capabilities().fragment_max + 1;
        let sent = link.send_request(&header, |_| Ok(()));
        assert_eq!(sent, Err(SendError::Full));
        assert_eq!(notes.take(), []);
        assert!(link.next_request().unwrap().is_none());
    }

    /// The requester does not name its memory, so that all payloads pass the link. If it does anyway, the fragment has no payload.
    #[test]
    fn only_payloads_in_the_link_are_shown() {
        let (mut link, notes) = observed();
        assert!(!link.capabilities().remote_iovec);
        let mut header = Header::new(Op::Write);
        header.flags = HeaderFlags::FIRST | HeaderFlags::LAST;
        (header.len, header.total) = (100, 100);
        link.send_remote_iovec(&header, &[(0x1000, 100)]).unwrap();
        link.next_request().unwrap().unwrap();
        let seen = notes.take();
        let expected = [Direction::Sent, Direction::Received];
        assert_eq!(
            seen,
            expected.map(|it| Seen::Fragment(it, Op::Write, vec![]))
        );
    }
}

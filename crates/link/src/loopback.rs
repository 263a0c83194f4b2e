//! A link of a device to itself: the rings of [`crate::shm`], in ordinary memory.
//!
//! Queue pairs connected within one device use the same slots and checks as all others. Only remote iovecs are simpler,
//! because both sides have the same memory.

use crate::ring::{End, Geometry, HeapHalf, IN_SLOT_MAX, KeepMapped, Role};
use crate::{
    Capabilities, DownReason, Header, Link, Malformed, NodeId, PullError, ReceivedFragment,
    SendError, Ticket,
};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;
use std::sync::Arc;

const GEOMETRY: Geometry = Geometry {
    slots: 256,
    payload: 256 << 10,
    fragment_max: 16 << 10,
};

/// A link from a device to itself; both roles at once.
#[derive(Debug)]
pub struct Loopback {
    node: NodeId,
    requester: End,
    responder: End,
    /// Whether a request was sent; before that, nothing can arrive.
    used: bool,
    down: Option<DownReason>,
}

impl Loopback {
    /// Creates a link of `node` to itself.
    pub fn new(node: NodeId) -> Self {
        Self::with_geometry(node, GEOMETRY)
    }

    fn with_geometry(node: NodeId, geometry: Geometry) -> Self {
        let ours = Arc::new((HeapHalf::new(geometry), HeapHalf::new(geometry)));
        let keep = KeepMapped::new(Arc::<(HeapHalf, HeapHalf)>::clone(&ours));
        // The geometry is a constant of this file (or of its tests) that passes the check.
        let half = |memory: &HeapHalf| memory.half(geometry).expect("a constant that is in bounds");
        let (a, b) = (half(&ours.0), half(&ours.1));
        Self {
            node,
            requester: End::new(Role::Requester, a, b, keep.clone()),
            responder: End::new(Role::Responder, b, a, keep),
            used: false,
            down: None,
        }
    }

    /// Closes the link: nothing more can be sent.
    pub fn close(&mut self) {
        self.down = Some(DownReason::Closed);
        self.requester.stop();
        self.responder.stop();
    }

    /// Views of the link for other threads. If `PollView::pending` is true on either, the engine must be driven.
    pub fn poll_views(&self) -> [crate::ring::PollView; 2] {
        [self.requester.poll_view(), self.responder.poll_view()]
    }

    #[cold]
    fn full_or_down(&self, error: SendError) -> SendError {
        if error == SendError::Full && self.is_up().is_err() {
            SendError::Down
        } else {
            error
        }
    }
}

impl Link for Loopback {
    fn node(&self) -> NodeId {
        self.node
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            in_slot_max: IN_SLOT_MAX,
            fragment_max: self.requester.fragment_max(),
            remote_iovec: true,
            remote_iovec_min: IN_SLOT_MAX + 1,
            direct: false,
        }
    }

    fn is_up(&self) -> Result<(), DownReason> {
        match self.requester.broken().or(self.responder.broken()) {
            Some(malformed) => Err(DownReason::Malformed(malformed)),
            None => self.down.map_or(Ok(()), Err),
        }
    }

    #[inline(always)]
    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        self.used = true;
        self.requester
            .send(header, fill)
            .map_err(|e| self.full_or_down(e))
    }

    fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        self.used = true;
        self.requester
            .send_remote_iovec(header, remote_iovec)
            .map_err(|e| self.full_or_down(e))
    }

    #[inline]
    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        self.requester.next()
    }

    #[inline]
    fn response_done(&mut self) {
        self.requester.done();
    }

    #[inline]
    fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
        // Also reads the acknowledgements of responses; otherwise they would count as pending forever.
        self.responder.read_peer_ack()?;
        self.requester.read_peer_ack()
    }

    #[inline]
    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        self.responder.next()
    }

    #[inline]
    fn request_done(&mut self) {
        self.responder.done();
    }

    #[inline]
    fn room_to_respond(&self) -> bool {
        self.responder.has_room()
    }

    #[inline]
    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        self.responder
            .send(header, fill)
            .map(|_| ())
            .map_err(|e| self.full_or_down(e))
    }

    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        mem.copy(dst, src, len)
            .map_err(|fault| blame(fault, src, len))
    }

    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        mem.copy(dst_remote, src_local, len)
            .map_err(|fault| blame(fault, dst_remote, len))
    }

    #[inline]
    fn pending(&self) -> bool {
        self.used && (self.requester.pending() || self.responder.pending()) || self.down.is_some()
    }

    #[inline]
    fn end_burst(&mut self) {
        // Within one process, batching saves no cache line transfers, so everything is published at once.
        self.requester.publish_ack_if_due();
        self.responder.publish_ack_if_due();
        self.responder.end_step();
    }
}

/// The error for a fault during a copy. Requester and responder share one address space, so the fault's address tells whose
/// memory it was in. `remote` is the start of the requester's bytes.
fn blame(fault: Fault, remote: u64, len: u64) -> PullError {
    if fault.address.wrapping_sub(remote) < len {
        PullError::Remote(fault.address)
    } else {
        PullError::Local(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeaderFlags, Op};

    /// The address determines which role the fault is attributed to, as between two processes.
    #[test]
    fn faults_are_blamed_on_the_role_that_named_the_address() {
        let link = Loopback::new(NodeId::default());
        let memory = rkey_base::memory::ArenaMemory::new(0x10000, 0x4000);
        let hole = rkey_base::range::VaRange::new(0x11000, 16).unwrap();
        memory.poison(hole);
        let theirs = Err(PullError::Remote(0x11000));
        let ours = Err(PullError::Local(Fault::at(0x11000)));
        assert_eq!(link.pull(&memory, 0x12000, 0x10800, 0x1000), theirs);
        assert_eq!(link.pull(&memory, 0x10800, 0x12000, 0x1000), ours);
        assert_eq!(link.push(&memory, 0x10800, 0x12000, 0x1000), theirs);
        assert_eq!(link.push(&memory, 0x12000, 0x10800, 0x1000), ours);
    }

    #[test]
    fn a_loopback_has_nothing_pending_once_all_fragments_are_done() {
        let mut link = Loopback::new(NodeId::default());
        assert!(!link.pending());
        let views = link.poll_views();
        for round in 0..40 {
            let read = Header {
                flags: HeaderFlags::ACK_NOW,
                ..Header::new(Op::Read)
            };
            assert_eq!(link.send_request(&read, |_| Ok(())), Ok(round));
            assert!(link.next_request().unwrap().is_some());
            assert!(link.room_to_respond());
            link.send_response(&Header::new(Op::ReadData), |_| Ok(()))
                .unwrap();
            link.request_done();
            assert!(link.pending());
            assert!(link.next_response().unwrap().is_some());
            link.response_done();
            link.end_burst();
            assert_eq!(link.acknowledged(), Ok(round + 1));
            assert!(!link.pending() && views.iter().all(|view| !view.pending()));
        }
        link.close();
        assert_eq!(
            link.send_request(&Header::new(Op::Probe), |_| Ok(())),
            Err(SendError::Down)
        );
    }
}

//! The link between two processes: rings, doorbell, and the peer's memory.
// UNSAFETY: the mapped segments become the two halves of the rings here.
#![allow(unsafe_code)]

use super::cma::PeerProcess;
use super::connect::HandshakeError;
use super::line::{ControlLine, Event};
use super::peer_access::PeerAccess;
use super::socket::{Credentials, Socket};
use super::warrant::{WarrantIssuer, WarrantTaker};
use crate::direct::{Board, Client, LeaseBoard, LeaseClient};
use crate::ring::{End, Geometry, Half, IN_SLOT_MAX, KeepMapped, PollView, Role};
use crate::{
    AnsweredRequest, Capabilities, DownReason, Header, Link, LinkRole, Malformed, NodeId, NotShort,
    PollHandle, PullError, ReceivedFragment, RemotePeer, SendError, ShortRequest, Ticket, peer,
};
use rkey_base::barrier;
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::process::ForkMark;
use rkey_base::segment::{OwnPermit, OwnSegment, PeerPermit, PeerSegment, PublishedSegment};
use rkey_base::shared::OwnBytes;
use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The results of a finished handshake.
pub(crate) struct Parts {
    pub(crate) role: Role,
    pub(crate) node: NodeId,
    pub(crate) credentials: Credentials,
    pub(crate) socket: Socket,
    pub(crate) process: PeerProcess,
    pub(crate) own: OwnSegment,
    pub(crate) own_geometry: Geometry,
    pub(crate) peer: PeerSegment,
    pub(crate) peer_geometry: Geometry,
    /// The requester's permit, which lets the responder access its memory.
    pub(crate) own_permit: Option<OwnPermit>,
    /// The same permit, at the responder.
    pub(crate) peer_permit: Option<PeerPermit>,
    /// Whether both sides are registered for heavy barriers.
    pub(crate) light: bool,
    pub(crate) fork: ForkMark,
    /// Whether the responder can access the requester's memory.
    pub(crate) remote_iovec: bool,
    pub(crate) remote_iovec_min: u32,
    /// Whether we can access the peer's memory.
    pub(crate) reachable: bool,
    /// Whether the responder may issue warrants for its memory, or the requester take them.
    pub(crate) uses_warrants: bool,
}

/// Our segment as a half. The caller keeps the segment alive as long as the half.
fn own_half(own: &PublishedSegment, geometry: Geometry) -> Result<Half, Malformed> {
    // SAFETY: our own segment is mapped writable and its length is what the mapping says. No one
    // else in this process writes to it.
    unsafe { Half::new(own.as_ptr(), own.len(), geometry) }
}

/// Creates our segment, ready to be passed to a peer.
pub(crate) fn create_segment(geometry: Geometry) -> Result<OwnSegment, HandshakeError> {
    let own = OwnSegment::create("rkey-link", geometry.bytes())?;
    // SAFETY: as in `own_half`; the half does not outlive this line.
    unsafe { Half::new(own.as_ptr(), own.len(), geometry) }?.identify();
    Ok(own)
}

/// The two mappings. Every pointer into them is stored together with a [`KeepMapped`] of these.
struct Segments {
    own: PublishedSegment,
    peer: PeerSegment,
}

/// A link to a device in another process of this host, in one role.
///
/// Only one thread at a time may use the link. Other threads may use its [`ControlLine`] (the control socket) and its
/// [`PollView`].
#[derive(Debug)]
pub struct ShmLink {
    node: NodeId,
    credentials: Credentials,
    end: End,
    capabilities: Capabilities,
    down: Cell<Option<DownReason>>,
    /// Whether the sleeping side issues heavy barriers, so that a light one is enough here.
    light: bool,
    /// Whether we can access the peer's memory.
    reachable: bool,
    /// The sleep epoch of the peer for which the doorbell has been rung.
    rung: u64,
    process: Arc<PeerProcess>,
    line: Arc<ControlLine>,
    leases: Leases,
    warrants: Option<peer::Warrants>,
    peer_access: PeerAccess,
    /// The permit for our access to the requester's memory.
    permit: Option<PeerPermit>,
}

/// Leases over a link, according to the role.
#[derive(Debug)]
enum Leases {
    /// The responder grants leases.
    Board(Arc<Board>),
    /// The requester opens leases.
    Client(Arc<Client>),
}

impl ShmLink {
    pub(crate) fn new(parts: Parts) -> Result<Self, Malformed> {
        let segments = Arc::new(Segments {
            own: parts.own.publish(),
            peer: parts.peer,
        });
        let own = own_half(&segments.own, parts.own_geometry)?;
        // SAFETY: the peer's segment is mapped and cannot shrink (its seals have been checked);
        // we only read through this half (a sender is created only for our own half), and the `KeepMapped`
        // below holds the mapping.
        let peer = unsafe {
            Half::new(
                segments.peer.as_ptr().cast_mut(),
                segments.peer.len(),
                parts.peer_geometry,
            )?
        };
        peer.check_identity()?;
        let keep = KeepMapped::new(segments);
        let process = Arc::new(parts.process);
        let line = Arc::new(ControlLine::new(parts.socket, parts.fork));
        let peer_access = PeerAccess::new(
            own,
            peer,
            keep.clone(),
            Arc::clone(&process),
            parts.own_permit,
        );
        let leases = match parts.role {
            Role::Responder => {
                let board = Board::new(own, peer, keep.clone(), Arc::clone(&process));
                Leases::Board(Arc::new(board))
            }
            Role::Requester => {
                let keep = keep.clone();
                let client = Client::new(own, peer, keep, parts.light, Arc::clone(&line));
                Leases::Client(Arc::new(client))
            }
        };
        let warrants = match parts.role {
            Role::Responder => parts.uses_warrants.then(|| {
                let process = Arc::clone(&process);
                peer::Warrants::Issuer(WarrantIssuer::new(own, peer, process, keep.clone()))
            }),
            Role::Requester => parts.uses_warrants.then(|| {
                let (process, line) = (Arc::clone(&process), Arc::clone(&line));
                peer::Warrants::Taker(WarrantTaker::new(own, peer, process, line, keep.clone()))
            }),
        };
        Ok(Self {
            node: parts.node,
            credentials: parts.credentials,
            end: End::new(parts.role, own, peer, keep),
            capabilities: Capabilities {
                in_slot_max: IN_SLOT_MAX,
                fragment_max: parts.own_geometry.fragment_max,
                remote_iovec: parts.remote_iovec,
                remote_iovec_min: parts.remote_iovec_min,
                direct: true,
            },
            down: Cell::new(None),
            light: parts.light,
            reachable: parts.reachable,
            rung: 0,
            process,
            line,
            leases,
            warrants,
            peer_access,
            permit: parts.peer_permit,
        })
    }

    /// A view of the link for other threads, and its sleep word.
    pub fn poll_view(&self) -> PollView {
        self.end.poll_view()
    }

    /// The control socket: wait for it to become readable, then call [`on_socket`](Self::on_socket)
    /// or, from another thread, [`ControlLine::next_event`].
    pub fn line(&self) -> &Arc<ControlLine> {
        &self.line
    }

    /// The peer, as the kernel reports it.
    pub fn credentials(&self) -> Credentials {
        self.credentials
    }

    /// Whether this side is the requester.
    pub fn is_requester(&self) -> bool {
        self.end.role() == Role::Requester
    }

    /// Whether this side can access the peer's memory (for diagnosis; [`Capabilities::remote_iovec`] says whether
    /// remote iovecs can be used).
    pub fn peer_memory_is_reachable(&self) -> bool {
        self.reachable
    }

    /// The peer process. It may outlive the link.
    pub fn process(&self) -> &Arc<PeerProcess> {
        &self.process
    }

    /// Control over the peer's access to this process's memory; `None` at the responder. Taking down or dropping the
    /// link also ends that access.
    pub fn peer_access(&self) -> Option<PeerAccess> {
        self.is_requester().then(|| self.peer_access.clone())
    }

    /// The leases that this side has granted; `None` at the requester.
    pub fn lease_board(&self) -> Option<LeaseBoard> {
        match &self.leases {
            Leases::Board(board) => Some(LeaseBoard::new(Arc::clone(board))),
            Leases::Client(_) => None,
        }
    }

    /// Opens leases that the peer has granted; `None` at the responder.
    pub fn lease_client(&self) -> Option<LeaseClient> {
        match &self.leases {
            Leases::Client(client) => Some(LeaseClient::new(Arc::clone(client))),
            Leases::Board(_) => None,
        }
    }

    /// Returns the next event of the control socket; an end or a malformed packet takes the link down.
    pub fn on_socket(&mut self) -> Option<Event> {
        let event = self.line.next_event();
        match event {
            Some(Event::Gone) => self.go_down(DownReason::PeerGone),
            Some(Event::Malformed(malformed)) => self.go_down(DownReason::Malformed(malformed)),
            _ => {}
        }
        event
    }

    /// Sends a message to the peer's device; see [`ControlLine::send_control`].
    ///
    /// # Errors
    /// Same as [`ControlLine::send_control`].
    pub fn send_control(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.line.send_control(bytes, fds)
    }

    /// Takes the link down: nothing more is sent. What the peer has already sent can still be received.
    pub fn go_down(&mut self, reason: DownReason) {
        if self.down.get().is_none() {
            self.down.set(Some(reason));
        }
        if self.is_requester() {
            self.peer_access.revoke();
        }
        self.end.publish_ack_if_due();
        self.end.stop();
    }

    pub(crate) fn send_packet(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.line.send_packet(packet, fds)
    }

    /// Responder: the permit to access the requester's memory.
    fn may_reach(&self) -> Option<&PeerPermit> {
        let allowed = self.capabilities.remote_iovec && !self.is_requester();
        self.permit.as_ref().filter(|_| allowed)
    }

    #[cold]
    fn full_or_down(&self, error: SendError) -> SendError {
        if error == SendError::Full && self.is_up().is_err() {
            SendError::Down
        } else {
            error
        }
    }

    /// Rings the peer's doorbell, once for each of its sleeps.
    #[cold]
    fn ring_doorbell(&mut self, epoch: u64) {
        if epoch != self.rung {
            self.rung = epoch;
            self.line.ring_doorbell();
        }
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        // Publishes the last acknowledgements, so that executed requests do not seem lost.
        self.end.publish_ack_if_due();
        if let Leases::Board(board) = &self.leases {
            board.withdraw_all();
        } else {
            self.peer_access.revoke();
        }
        // Others may still hold the line, but the peer must see the end now.
        self.line.close();
    }
}

impl Link for ShmLink {
    fn node(&self) -> NodeId {
        self.node
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    #[inline]
    fn is_up(&self) -> Result<(), DownReason> {
        match self.end.broken() {
            Some(malformed) => Err(DownReason::Malformed(malformed)),
            None => self.down.get().map_or(Ok(()), Err),
        }
    }

    #[inline(always)]
    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        debug_assert!(self.is_requester() && !header.op.is_response());
        self.end
            .send(header, fill)
            .map_err(|e| self.full_or_down(e))
    }

    fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        debug_assert!(self.is_requester() && !header.op.is_response());
        self.end
            .send_remote_iovec(header, remote_iovec)
            .map_err(|e| self.full_or_down(e))
    }

    fn prefers_fragments(&self) -> bool {
        self.end.has_room()
    }

    fn prefers_fragments_for_read(&self, len: u64) -> bool {
        len <= self.end.room_of_peer()
    }

    #[inline]
    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        if !self.is_requester() {
            return Ok(None);
        }
        self.end.next()
    }

    #[inline]
    fn response_done(&mut self) {
        if self.is_requester() {
            self.end.done();
        }
    }

    #[inline]
    fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
        let acked = self.end.read_peer_ack()?;
        // The peer's acknowledgement counts responses here, not requests.
        Ok(if self.is_requester() { acked } else { 0 })
    }

    #[inline]
    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        if self.is_requester() {
            return Ok(None);
        }
        self.end.next()
    }

    #[inline(always)]
    fn next_short(&self) -> Result<Option<ShortRequest<'_>>, NotShort> {
        if self.is_requester() {
            return Err(NotShort);
        }
        self.end.next_short()
    }

    fn next_answered(&self) -> Option<AnsweredRequest> {
        if self.is_requester() {
            return None;
        }
        self.end.next_answered()
    }

    #[inline]
    fn request_done(&mut self) {
        if !self.is_requester() {
            self.end.done();
        }
    }

    #[inline]
    fn room_to_respond(&self) -> bool {
        !self.is_requester() && self.end.has_room()
    }

    #[inline]
    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        debug_assert!(!self.is_requester() && header.op.is_response());
        self.end
            .send(header, fill)
            .map(|_| ())
            .map_err(|e| self.full_or_down(e))
    }

    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        let permit = self.may_reach().ok_or(PullError::Refused)?;
        let right = (&self.peer_access, permit);
        self.process.pull(right, mem, dst, src, len)
    }

    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        let permit = self.may_reach().ok_or(PullError::Refused)?;
        let right = (&self.peer_access, permit);
        self.process.push(right, mem, dst_remote, src_local, len)
    }

    fn revoke_peer_access(&mut self) {
        if self.is_requester() {
            self.peer_access.revoke();
        }
    }

    #[inline]
    fn pending(&self) -> bool {
        self.end.pending() || self.end.is_dirty() || self.down.get().is_some()
    }

    #[inline]
    fn end_burst(&mut self) {
        self.end.end_step();
        if self.end.take_dirty() {
            if self.light {
                barrier::light();
            } else {
                fence(Ordering::SeqCst);
            }
            let epoch = self.end.peer_epoch();
            if epoch & 1 == 1 {
                self.ring_doorbell(epoch);
            }
        }
    }

    #[inline]
    fn publish(&mut self) {
        self.end.publish_ack_if_due();
        self.end_burst();
    }

    fn role(&self) -> LinkRole {
        match self.end.role() {
            Role::Requester => LinkRole::Requester,
            Role::Responder => LinkRole::Responder,
        }
    }

    fn poll_handle(&self) -> Option<PollHandle> {
        Some(self.poll_view().into())
    }

    #[inline]
    fn has_unacked(&self) -> bool {
        self.end.has_unacked()
    }

    fn kick(&self) {
        self.line.ring_doorbell();
    }

    fn peer(&self) -> Option<RemotePeer> {
        Some(RemotePeer {
            credentials: self.credentials,
            process: Arc::clone(&self.process),
            line: Arc::clone(&self.line),
            peer_access: self.peer_access(),
            leases: Some(match &self.leases {
                Leases::Board(board) => peer::Leases::Board(LeaseBoard::new(Arc::clone(board))),
                Leases::Client(client) => {
                    peer::Leases::Client(LeaseClient::new(Arc::clone(client)))
                }
            }),
            warrants: self.warrants.clone(),
        })
    }
}

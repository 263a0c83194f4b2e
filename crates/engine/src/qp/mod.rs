//! Queue pairs: their configuration, and the attributes that can change.

mod create;
mod modify;
pub(crate) mod pair;
pub mod state;

use crate::{CqId, SrqId, WirePeer};
use rkey_core::{Access, DomainId};
use rkey_link::NodeId;
use state::{Attributes, QpState, QpType};

/// The configuration of a queue pair, which never changes. The engine uses queue ids here; a device uses its own queue
/// objects.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig<Cq = CqId, Srq = SrqId> {
    /// The transport service.
    pub qp_type: QpType,
    /// The protection domain: keys of other domains are refused.
    pub domain: DomainId,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// The shared queue from which the queue pair takes receives instead of from its own.
    pub srq: Option<Srq>,
    /// Size of the send queue, in entries.
    pub max_send: u32,
    /// Size of the receive queue, in entries.
    pub max_recv: u32,
    /// Maximum scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Maximum scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Maximum inline data of a send, in bytes.
    pub max_inline: u32,
    /// Every send gets a completion, whether or not it is flagged.
    pub signal_all: bool,
    /// The queue pair moves to the error state when the process of its peer ends, even if no send is outstanding, so
    /// that its receives are flushed. The device moves it there on [`crate::AsyncEvent::PeerGone`].
    pub fail_with_peer: bool,
    /// A refused request fails alone and leaves both queue pairs in service (like libfabric's reliable datagrams,
    /// Both ends must use the same setting.
    pub survive_remote_error: bool,
    /// For the receiving half of an extended reliable connection: the XRC domain whose shared receive queues it serves.
    pub xrcd: Option<XrcdId>,
    /// The endpoint that the queue pair is part of, for regions that serve one endpoint only (FI-076). Queue pairs of one endpoint
    /// have the same value. `None` means the queue pair's own number.
    pub endpoint: Option<u32>,
    /// The number under which peers' accesses through the queue pair are counted. `None` means the number of its
    /// endpoint.
    pub counted_as: Option<u32>,
    /// The queue pair's peer, for regions that serve one peer only (FI-212): a number that the owner assigns.
    pub peer: Option<u32>,
}

/// Names an XRC domain: the shared receive queues that extended reliable connections may reach. The number is the
/// caller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcdId(pub u32);

impl<Cq: Clone, Srq> QpConfig<Cq, Srq> {
    /// A reliable connection of moderate size that completes everything in one queue.
    pub fn new(domain: DomainId, cq: &Cq) -> Self {
        Self {
            qp_type: QpType::Rc,
            domain,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            max_send: 128,
            max_recv: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 128,
            signal_all: false,
            fail_with_peer: true,
            survive_remote_error: false,
            xrcd: None,
            endpoint: None,
            counted_as: None,
            peer: None,
        }
    }

    /// The same configuration, with the engine's queue ids.
    pub fn numbered(&self, cq: impl Fn(&Cq) -> CqId, srq: impl FnOnce(&Srq) -> SrqId) -> QpConfig {
        QpConfig {
            qp_type: self.qp_type,
            domain: self.domain,
            send_cq: cq(&self.send_cq),
            recv_cq: cq(&self.recv_cq),
            srq: self.srq.as_ref().map(srq),
            max_send: self.max_send,
            max_recv: self.max_recv,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline: self.max_inline,
            signal_all: self.signal_all,
            fail_with_peer: self.fail_with_peer,
            survive_remote_error: self.survive_remote_error,
            xrcd: self.xrcd,
            endpoint: self.endpoint,
            counted_as: self.counted_as,
            peer: self.peer,
        }
    }
}

/// The other end of a connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The number of the queue pair.
    pub qpn: u32,
    /// The device of the queue pair. `None` if it is not known before the queue pair gets its link; until then, the peer's
    /// requests are answered "not ready".
    pub node: Option<NodeId>,
}

/// What a modify call changes; `None` keeps the current value.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttributes {
    /// The target state.
    pub state: Option<QpState>,
    /// Remote access that the queue pair allows (the three remote rights; others are ignored).
    pub access: Option<Access>,
    /// The other end.
    pub peer: Option<Peer>,
    /// Where the other end is, if it is on another host. Given with `peer`, for queue pairs of the types RC and UC.
    pub wire: Option<WirePeer>,
    /// Given with `wire`: whether the other end is rkey, too, and has agreed to selective retransmission. `None` means no.
    pub selective: Option<bool>,
    /// Number of the first message sent (24 bits; `sq_psn`).
    pub send_msn: Option<u32>,
    /// Number of the first message received (24 bits; `rq_psn`).
    pub recv_msn: Option<u32>,
    /// 4.096 µs · 2^timeout without progress is one retry; 0 means no limit (5 bits).
    pub timeout: Option<u8>,
    /// Retries without progress before the request fails (3 bits).
    pub retry_count: Option<u8>,
    /// Retries when the peer has no receive posted; 7 means no limit (3 bits).
    pub rnr_retry: Option<u8>,
    /// Code of the RNR delay sent to a peer (5 bits, IBA table 45).
    pub min_rnr_timer: Option<u8>,
    /// How many reads and atomics this side may have outstanding.
    pub max_reads_out: Option<u8>,
    /// How many reads and atomics the peer may have outstanding; 0 refuses them.
    pub max_reads_in: Option<u8>,
    /// The path MTU in bytes (256 to 4096): the maximum payload of a datagram.
    pub path_mtu: Option<u32>,
    /// The queue key that datagrams must carry.
    pub qkey: Option<u32>,
}

impl QpAttributes {
    /// Changes only the state.
    pub fn to(state: QpState) -> Self {
        Self {
            state: Some(state),
            ..Self::default()
        }
    }

    /// Reset to Init.
    pub fn init(access: Access) -> Self {
        Self {
            state: Some(QpState::Init),
            access: Some(access),
            ..Self::default()
        }
    }

    /// Init to ready-to-receive of a reliable connection, with usual values.
    pub fn rtr(peer: Peer, recv_msn: u32) -> Self {
        Self {
            state: Some(QpState::Rtr),
            peer: Some(peer),
            recv_msn: Some(recv_msn),
            path_mtu: Some(4096),
            max_reads_in: Some(16),
            min_rnr_timer: Some(12),
            ..Self::default()
        }
    }

    /// Ready-to-receive to ready-to-send of a reliable connection, with usual values: waits about 0.8 s for a silent
    /// peer, and not at all for one that does not exist.
    pub fn rts(send_msn: u32) -> Self {
        Self {
            state: Some(QpState::Rts),
            send_msn: Some(send_msn),
            timeout: Some(15),
            retry_count: Some(5),
            rnr_retry: Some(7),
            max_reads_out: Some(16),
            ..Self::default()
        }
    }

    /// Which attributes are given (the state does not count as one).
    pub fn given(&self) -> Attributes {
        let mut given = Attributes::empty();
        given.set(Attributes::ACCESS, self.access.is_some());
        given.set(Attributes::PEER, self.peer.is_some());
        given.set(Attributes::SEND_MSN, self.send_msn.is_some());
        given.set(Attributes::RECV_MSN, self.recv_msn.is_some());
        given.set(Attributes::TIMEOUT, self.timeout.is_some());
        given.set(Attributes::RETRY_COUNT, self.retry_count.is_some());
        given.set(Attributes::RNR_RETRY, self.rnr_retry.is_some());
        given.set(Attributes::MIN_RNR_TIMER, self.min_rnr_timer.is_some());
        given.set(Attributes::MAX_READS_OUT, self.max_reads_out.is_some());
        given.set(Attributes::MAX_READS_IN, self.max_reads_in.is_some());
        given.set(Attributes::PATH_MTU, self.path_mtu.is_some());
        given.set(Attributes::QKEY, self.qkey.is_some());
        given
    }
}

/// The current state of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInfo {
    /// The number of the queue pair.
    pub qpn: u32,
    /// The configuration with which the queue pair was created (sizes as granted).
    pub config: QpConfig,
    /// Its state.
    pub state: QpState,
    /// Whether the queue pair is in Sqd and still waits for sends started earlier.
    pub draining: bool,
    /// The attributes; all are `Some`, except the peer if there is none.
    pub attributes: QpAttributes,
    /// Sends that are posted and not complete.
    pub sends: u32,
    /// Receives that are posted and not complete (with a shared receive queue: at most the one that is being filled).
    pub receives: u32,
}

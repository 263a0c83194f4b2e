//! The state that requester and responder keep for a queue pair.

use super::QpConfig;
use super::state::{QpState, QpType};
use crate::groups::{Copies, Flow};
use crate::held_warrants::{HeldWarrant, SlowWrites, Trials};
use crate::nak::timeout_ns;
use crate::recv_queue::{Recv, RecvQueue};
use crate::send_queue::{SendQueue, WqeFlags};
use crate::silence::Silence;
use crate::wire::Wire;
use crate::{CqId, LinkId, Peer, QpId, Rss, WirePeer};
use rkey_core::{Access, Accessor, DomainId};
use std::collections::VecDeque;
use std::ops::Range;

/// Message numbers have 24 bits, as packet sequence numbers have.
pub(crate) const MSN_MASK: u32 = 0xff_ffff;

/// Attributes: as last set, or their defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) access: Access,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_reads_out: u8,
    pub(crate) max_reads_in: u8,
    pub(crate) path_mtu: u32,
    pub(crate) qkey: u32,
    pub(crate) selective: bool,
}

impl Settings {
    pub(crate) const fn new() -> Self {
        Self {
            access: Access::empty(),
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_reads_out: 0,
            max_reads_in: 0,
            path_mtu: 4096,
            qkey: 0,
            selective: false,
        }
    }
}

/// The requester's state besides the send queue.
pub(crate) struct Requester {
    /// Number of the next message.
    pub(crate) msn: u32,
    /// How many bytes of the message at `next` have been sent.
    pub(crate) offset: u64,
    /// Requests before this sequence number have been acknowledged.
    pub(crate) acked: u64,
    /// Fragments on the link that are not acknowledged.
    pub(crate) in_flight: u32,
    /// Sent reads and atomics without a response, oldest first.
    pub(crate) reads: VecDeque<u64>,
    /// Set while a message must be resent. Until everything sent after it has been acknowledged (and dropped by the
    /// peer), nothing is sent, and NAKs are ignored as old.
    pub(crate) rewinding: bool,
    /// Set once a request has failed here: nothing more is started.
    pub(crate) stopped: bool,
    /// Nothing is sent before this time.
    pub(crate) wait: Option<u64>,
    /// The datagram to a group that has been sent over only some of the group's links.
    pub(crate) copies: Option<Copies>,
    /// Whether the queue pair is in its link's list of those that wait for room.
    pub(crate) blocked: bool,
    /// Whether a link has been requested from the device.
    pub(crate) link_requested: bool,
    /// The remaining receiver-not-ready retries.
    pub(crate) rnr_left: u8,
    /// How long this queue pair has waited for a peer that is "not ready" (nanoseconds).
    pub(crate) not_ready_for: Option<u64>,
    /// The next delay for a peer that is not ready.
    pub(crate) not_ready_delay: u64,
    /// Whether the queue pair is in the list of those that have a timeout running.
    pub(crate) timeout_runs: bool,
    /// The link's progress count, and when it was last seen to change (in the timers' time).
    pub(crate) seen: Option<(u64, u64)>,
    /// What is known about a peer that has been silent for too long.
    pub(crate) silence: Silence,
    /// Warrants for the peer's memory.
    pub(crate) warrants: Vec<HeldWarrant>,
    pub(crate) slow: SlowWrites,
    pub(crate) trials: Trials,
    /// How many writes were pushed.
    pub(crate) pushed: u64,
}

impl Requester {
    const fn new() -> Self {
        Self {
            msn: 0,
            offset: 0,
            acked: 0,
            in_flight: 0,
            reads: VecDeque::new(),
            rewinding: false,
            stopped: false,
            wait: None,
            copies: None,
            blocked: false,
            link_requested: false,
            rnr_left: 0,
            not_ready_for: None,
            not_ready_delay: 0,
            timeout_runs: false,
            seen: None,
            silence: Silence::NONE,
            warrants: Vec::new(),
            slow: SlowWrites::NONE,
            trials: Trials::NONE,
            pushed: 0,
        }
    }
}

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbound {
    pub(crate) msn: u32,
    pub(crate) op: rkey_link::Op,
    pub(crate) total: u32,
    pub(crate) received: u32,
}

/// The responder's state.
pub(crate) struct Responder {
    /// Number of the next message (reliable connections).
    pub(crate) msn: u32,
    pub(crate) current: Option<Inbound>,
    /// The receive of the current message. If the message must be resent or is abandoned, the queue pair keeps the
    /// receive for the next message.
    pub(crate) recv: Recv,
    /// Whether the peer's first request has arrived.
    pub(crate) established: bool,
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) id: QpId,
    pub(crate) qpn: u32,
    /// Its configuration. For a queue pair with a `home`, the domain, completion queue and shared receive queue are
    /// those of the current message.
    pub(crate) config: QpConfig,
    /// The domain and completion queue with which a receiving half (or a raw queue pair with RSS) was created.
    pub(crate) home: Option<(DomainId, CqId)>,
    pub(crate) state: QpState,
    /// Whether, in Sqd, sends that were started are not complete yet.
    pub(crate) draining: bool,
    pub(crate) settings: Settings,
    pub(crate) peer: Option<Peer>,
    /// Where the peer is, if it is on another host.
    pub(crate) wire_peer: Option<WirePeer>,
    /// What replaces requester and responder if the peer is on another host. Datagram queue pairs have one from their first
    /// packet on.
    pub(crate) wire: Option<Box<Wire>>,
    /// The link for requests.
    pub(crate) out: Option<LinkId>,
    /// A link that has been recognised as coming from the peer.
    pub(crate) inbound: Option<LinkId>,
    /// Unique in the engine; changes after a reset or an error, so that events of earlier requests are recognised as
    /// old.
    pub(crate) life: u32,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    /// Frames that a raw queue pair takes.
    pub(crate) flows: Vec<(u32, Flow)>,
    /// The receive queues over which a raw queue pair distributes its frames.
    pub(crate) rss: Option<Box<Rss>>,
}

impl Qp {
    pub(crate) fn new(id: QpId, qpn: u32, config: QpConfig, life: u32) -> Self {
        let receives = if config.srq.is_some() {
            (0, 0)
        } else {
            (config.max_recv, config.max_recv_sge)
        };
        Self {
            id,
            qpn,
            config,
            home: (config.qp_type == QpType::XrcRecv).then_some((config.domain, config.recv_cq)),
            state: QpState::Reset,
            draining: false,
            settings: Settings::new(),
            peer: None,
            wire_peer: None,
            wire: None,
            out: None,
            inbound: None,
            life,
            sq: SendQueue::new(config.max_send, config.max_send_sge, config.max_inline),
            rq: RecvQueue::new(receives.0, receives.1),
            flows: Vec::new(),
            rss: None,
            req: Requester::new(),
            resp: Responder {
                msn: 0,
                current: None,
                recv: Recv::none(),
                established: false,
            },
        }
    }

    /// The configuration that the queue pair was created with.
    pub(crate) fn created(&self) -> QpConfig {
        match self.home {
            None => self.config,
            Some((domain, recv_cq)) => QpConfig {
                domain,
                recv_cq,
                srq: None,
                ..self.config
            },
        }
    }

    /// Resets the queue pair to its initial state, except for its identity.
    pub(crate) fn reset(&mut self, life: u32) {
        let (blocked, timeout_runs) = (self.req.blocked, self.req.timeout_runs);
        let receives = self.rq.limit();
        let stride = self.config.max_recv_sge;
        self.config = self.created();
        self.state = QpState::Reset;
        self.draining = false;
        self.settings = Settings::new();
        (self.peer, self.out, self.inbound) = (None, None, None);
        (self.wire_peer, self.wire) = (None, None);
        self.life = life;
        self.sq.clear();
        self.rq = RecvQueue::new(receives, if self.config.srq.is_some() { 0 } else { stride });
        self.req = Requester {
            blocked,
            timeout_runs,
            acked: self.sq.tail,
            ..Requester::new()
        };
        self.resp = Responder {
            msn: 0,
            current: None,
            recv: Recv::none(),
            established: false,
        };
    }

    /// The identity of requests on this queue pair, for the protection table.
    #[inline]
    pub(crate) fn accessor(&self) -> Accessor {
        Accessor {
            domain: self.config.domain,
            qp: self.config.endpoint.unwrap_or(self.qpn),
            peer: self.config.peer,
        }
    }

    /// The number under which peers' accesses are counted.
    pub(crate) fn counted_as(&self) -> u32 {
        self.config.counted_as.unwrap_or(self.accessor().qp)
    }

    /// The number of the peer; 0 if there is none.
    #[inline]
    pub(crate) fn peer_qpn(&self) -> u32 {
        match &self.peer {
            Some(peer) => peer.qpn,
            None => 0,
        }
    }

    /// How long a request may go without progress, in nanoseconds; 0 means no limit.
    pub(crate) fn patience(&self) -> u64 {
        timeout_ns(self.settings.timeout).saturating_mul(u64::from(self.settings.retry_count) + 1)
    }

    /// How many bytes of the outstanding reads arrive in fragments.
    pub(crate) fn reads_in_fragments(&self) -> u64 {
        let in_fragments = |seq: &u64| {
            let wqe = self.sq.wqe(*seq);
            let whole = wqe.flags.contains(WqeFlags::REMOTE_IOVEC);
            if whole { 0 } else { u64::from(wqe.total) }
        };
        self.req.reads.iter().map(in_fragments).sum()
    }

    /// The requests that have been sent at least in part and are not complete.
    pub(crate) fn started(&self) -> Range<u64> {
        self.sq.head..self.sq.next + u64::from(self.req.offset > 0)
    }

    /// Whether a remote iovec that the peer may not have acknowledged names our memory.
    pub(crate) fn names_memory(&self) -> bool {
        let named = |seq| self.sq.wqe(seq).flags.contains(WqeFlags::REMOTE_IOVEC);
        self.req.in_flight > 0 && self.started().any(named)
    }

    /// Whether a fragment may be sent now.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        let started =
            self.state == QpState::Rts || (self.state == QpState::Sqd && self.req.offset > 0);
        started
            && !self.req.rewinding
            && !self.req.stopped
            && !self.req.blocked
            && self.req.wait.is_none()
    }
}

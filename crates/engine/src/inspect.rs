//! The whole state of an engine, as plain data for people and tools.

use crate::{Engine, LinkId, QpState, QpType};
use core::net::IpAddr;
use rkey_base::memory::Memory;
use rkey_core::{Access, DomainId};
use rkey_link::{Capabilities, Link, NodeId};
use serde::{Deserialize, Serialize};

/// An engine at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EngineSnapshot {
    /// Queue pairs, by index.
    pub qps: Vec<QpSnapshot>,
    /// Completion queues, by index.
    pub cqs: Vec<CqSnapshot>,
    /// Shared receive queues, by index.
    pub srqs: Vec<SrqSnapshot>,
    /// Links, by index.
    pub links: Vec<LinkSnapshot>,
}

/// A queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpSnapshot {
    /// Its number.
    pub qpn: u32,
    /// Its transport service.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// Its protection domain.
    pub domain: DomainId,
    /// The remote rights that the queue pair allows its peer.
    pub access: Access,
    /// The number of the connected queue pair.
    pub peer_qpn: Option<u32>,
    /// The device of the connected queue pair, once it is known.
    pub peer: Option<NodeId>,
    /// The address of the connected queue pair, if it is on another host.
    #[serde(default)]
    pub host: Option<IpAddr>,
    /// The index of the link for its requests.
    pub link: Option<u32>,
    /// The number of sends that are posted and not complete.
    pub sends: u32,
    /// How many of the `sends` have been started.
    pub sends_started: u32,
    /// The number of receives that are posted and not complete (with a shared receive queue: at most the one being filled).
    pub receives: u32,
    /// Why nothing is sent although requests are posted.
    pub waits_for: Option<WaitReason>,
    /// What has happened to its packets, if its peer is on another host and a packet has been sent or received.
    #[serde(default)]
    pub network: Option<NetworkSnapshot>,
}

/// What has happened to the packets between a queue pair and its peer on another host. The counters wrap at 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkSnapshot {
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Timeouts while waiting for a response.
    pub timeouts: u64,
    /// Sequence errors that the peer has reported.
    #[serde(default)]
    pub sequence_naks: u64,
    /// Responses that showed that an earlier response was lost.
    #[serde(default)]
    pub implied_naks: u64,
    /// RNR NAKs that the peer has sent: it had no receive.
    #[serde(default)]
    pub rnr_naks: u64,
    /// RNR NAKs sent to the peer.
    #[serde(default)]
    pub rnr_naks_sent: u64,
    /// Requests of the peer that were refused.
    #[serde(default)]
    pub refused: u64,
    /// Requests of the peer that arrived again.
    #[serde(default)]
    pub duplicates: u64,
    /// Packets from the peer that arrived after a gap.
    pub out_of_sequence: u64,
    /// Packets from the peer that met congestion (marked with ECN).
    pub marked: u64,
    /// Congestion notifications (CNPs) sent to the peer.
    pub cnps_sent: u64,
    /// Congestion notifications (CNPs) received from the peer.
    pub cnps_received: u64,
    /// Times that congestion has lowered the number of packets that may be outstanding.
    pub slowed: u64,
}

/// Why a queue pair sends nothing at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// There is no link to the peer yet.
    Link,
    /// The link is full.
    Room,
    /// The peer was not ready, or had no receive posted; the next attempt is scheduled.
    Delay,
    /// Refused requests must drain from the link before they are resent.
    Rewind,
    /// Earlier requests must complete first, because of a fence, a bind, or the limit of outstanding reads.
    Order,
}

/// A completion queue.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CqSnapshot {
    /// Its index.
    pub index: u32,
    /// Its capacity, in entries.
    pub depth: u32,
    /// The number of completions in the queue.
    pub used: u32,
    /// The number of queue pair halves (send, receive) and receive queues that complete here.
    pub users: u32,
    /// Whether the queue was full when a completion was added.
    pub overrun: bool,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SrqSnapshot {
    /// Its index.
    pub index: u32,
    /// Its protection domain.
    pub domain: DomainId,
    /// Its capacity, in receives.
    pub depth: u32,
    /// The number of receives in the queue.
    pub used: u32,
    /// An event is raised below this number of receives; 0 means disarmed.
    pub limit: u32,
    /// The number of queue pairs that use the queue.
    pub users: u32,
}

/// A link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkSnapshot {
    /// Its index.
    pub index: u32,
    /// The device at the other end.
    pub node: NodeId,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Why the link is down, if it is.
    pub down: Option<String>,
    /// The number of fragments that were sent but not acknowledged.
    pub outstanding: u32,
    /// The number of queue pairs that wait for room.
    pub blocked: u32,
    /// Whether remote iovecs are disabled because the peer could not copy from our memory.
    pub no_remote_iovec: bool,
    /// Whether pushing read data is disabled because this process could not push.
    pub no_push: bool,
    /// How many writes this side has copied itself, under warrants of the peer.
    pub pushed: u64,
    /// How many warrants the peer has for this side's memory.
    pub warrants: u32,
}

impl<L: Link, M: Memory> Engine<L, M> {
    /// The whole state of this engine.
    pub fn snapshot(&self) -> EngineSnapshot {
        let qps = self.qps.iter().map(snapshot_qp).collect();
        let cqs = self.x.cqs.iter().map(|cq| CqSnapshot {
            index: cq.shared.id().index,
            depth: cq.shared.depth() as u32,
            used: cq.shared.len() as u32,
            users: cq.users,
            overrun: cq.shared.is_overrun(),
        });
        let srqs = self.x.srqs.iter().map(|srq| SrqSnapshot {
            index: srq.id.index,
            domain: srq.domain,
            depth: srq.queue.limit(),
            used: srq.queue.len(),
            limit: srq.limit,
            users: srq.users,
        });
        let links = self.links.iter().map(|link_state| {
            let LinkId { index, .. } = link_state.meta.id;
            let down = link_state
                .meta
                .down
                .or_else(|| link_state.link.is_up().err());
            LinkSnapshot {
                index,
                node: link_state.meta.node,
                capabilities: link_state.meta.caps,
                down: down.map(|reason| reason.to_string()),
                outstanding: link_state.meta.outstanding.len(),
                blocked: link_state.meta.blocked.len() as u32,
                no_remote_iovec: link_state.meta.no_remote_iovec,
                no_push: link_state.meta.no_push,
                pushed: link_state.meta.pushed,
                warrants: self.x.warrants.of_link(link_state.meta.id),
            }
        });
        EngineSnapshot {
            qps,
            cqs: cqs.collect(),
            srqs: srqs.collect(),
            links: links.collect(),
        }
    }
}

fn snapshot_qp(qp: &crate::qp::pair::Qp) -> QpSnapshot {
    let waits_for = if qp.sq.next == qp.sq.tail {
        None
    } else if qp.req.link_requested {
        Some(WaitReason::Link)
    } else if qp.req.blocked {
        Some(WaitReason::Room)
    } else if qp.req.rewinding {
        Some(WaitReason::Rewind)
    } else if qp.req.wait.is_some() {
        Some(WaitReason::Delay)
    } else {
        Some(WaitReason::Order)
    };
    QpSnapshot {
        qpn: qp.qpn,
        qp_type: qp.config.qp_type,
        state: qp.state,
        domain: qp.config.domain,
        access: qp.settings.access,
        peer_qpn: qp.peer.map(|peer| peer.qpn),
        peer: qp.peer.and_then(|peer| peer.node),
        host: qp.wire_peer.map(|wire| wire.remote),
        link: qp.out.map(|link| link.index),
        sends: qp.sq.len(),
        sends_started: (qp.sq.next - qp.sq.head) as u32 + u32::from(qp.req.offset > 0),
        receives: qp.rq.len() + u32::from(qp.resp.recv.taken),
        waits_for,
        network: qp.wire.as_deref().map(|wire| network(&wire.counters())),
    }
}

fn network(counters: &rkey_roce::transport::Counters) -> NetworkSnapshot {
    NetworkSnapshot {
        retransmitted: counters.retransmitted,
        timeouts: counters.timeouts,
        sequence_naks: counters.sequence_naks,
        implied_naks: counters.implied_naks,
        rnr_naks: counters.rnr_naks,
        rnr_naks_sent: counters.rnr_naks_sent,
        refused: counters.refused,
        duplicates: counters.duplicates,
        out_of_sequence: counters.out_of_sequence,
        marked: counters.marked,
        cnps_sent: counters.cnps_sent,
        cnps_received: counters.cnps_received,
        slowed: counters.slowed,
    }
}

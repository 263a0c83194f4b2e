//! Acting on the events of the engine: runs after its lock is released, in the thread that drove it.

use rkey_engine::{Event, QpAttributes, QpId, QpState};

use crate::event::AsyncEvent;
use crate::peers::names;
use crate::peers::unresponsive::UnresponsivePeer;
use crate::shared::Shared;

impl Shared {
    /// Acts on events, in order.
    pub(crate) fn act_on(&self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::CqReady(cq) => self.cqs.ready(cq),
                Event::CqSeen(cq) => self.cqs.seen(cq),
                Event::CqOverrun(cq) => {
                    tracing::warn!(
                        ?cq,
                        "a completion queue overran; its queue pairs are broken"
                    );
                    self.events.push(AsyncEvent::CqOverrun(cq));
                    self.cqs.ready(cq);
                    self.cqs.seen(cq);
                }
                Event::QpFatal { qp, qpn } => self.events.push(AsyncEvent::QpFatal { qp, qpn }),
                Event::AccessError { qp, qpn } => {
                    self.events.push(AsyncEvent::AccessError { qp, qpn });
                }
                Event::RequestError { qp, qpn } => {
                    self.events.push(AsyncEvent::RequestError { qp, qpn });
                }
                Event::SqDrained { qp, qpn } => self.events.push(AsyncEvent::SqDrained { qp, qpn }),
                Event::LastWqeReached { qp, qpn } => {
                    self.events.push(AsyncEvent::LastWqeReached { qp, qpn });
                }
                Event::SrqLimit(srq) => self.events.push(AsyncEvent::SrqLimit(srq)),
                Event::CommEstablished { qp, qpn } => {
                    self.events.push(AsyncEvent::CommEstablished { qp, qpn });
                }
                Event::PeerGone { qp, qpn } => self.peer_is_gone(qp, qpn),
                Event::LinkNeeded { qp, peer } => self.link_needed(qp, peer),
                Event::PeerSilent { qp, link, peer } => {
                    let peer = UnresponsivePeer { qp, link, peer };
                    self.thread_requests.judge(peer);
                }
                Event::GroupNeeded { qp, group } => self.thread_requests.find_group(qp, group),
                Event::LinkDown { link, reason } => {
                    tracing::debug!(?link, %reason, "a link broke");
                    self.thread_requests.remove_link(link);
                }
                Event::Denied(report) => self.denials.write(&report),
                Event::Guessing(guesser) => self.denials.write_guesser(&guesser),
                Event::CounterHit {
                    counter,
                    endpoint,
                    bytes,
                    write,
                } => {
                    self.counters.count(counter, endpoint, bytes, write);
                }
                Event::BindFailed { qpn, error, .. } => {
                    tracing::warn!(qpn, %error, "a posted bind of a window failed");
                }
                // Later engines may have more to tell than this device understands.
                other => tracing::debug!(?other, "ignored an unknown engine event"),
            }
        }
    }

    /// The device of a connected queue pair ended before there was a link to it: what waits fails, and the
    /// program is told as if the link had been there.
    pub(crate) fn peer_was_never_reached(&self, qp: QpId, peer: u32) {
        let info = self.command(|engine| {
            engine.unreachable(qp, peer);
            engine.query_qp(qp)
        });
        let Some(info) = info else { return };
        let node = info.attributes.peer.and_then(|peer| peer.node);
        if let Some(peer) = node.and_then(|node| self.identities.exited(node))
            && self.departed.add(peer.clone())
        {
            tracing::info!("the peer {peer} has exited");
        }
        self.peer_is_gone(qp, info.qpn);
    }

    fn peer_is_gone(&self, qp: QpId, qpn: u32) {
        if self.qps.fails_with_peer(qpn, qp) {
            self.end_with_peer(qp);
        }
        self.events.push(AsyncEvent::PeerGone { qp, qpn });
    }

    /// A queue pair goes with its peer. Its completion queues are told: no completion does that when nothing was
    /// posted to it.
    fn end_with_peer(&self, qp: QpId) {
        let Some(info) = self.command(|engine| engine.query_qp(qp)) else {
            return;
        };
        let mut cqs = vec![info.config.send_cq, info.config.recv_cq];
        cqs.dedup();
        let told: Vec<_> = cqs.iter().filter_map(|&cq| self.cqs.find(cq)).collect();
        self.command(|engine| {
            if let Err(error) = engine.modify_qp(qp, &QpAttributes::to(QpState::Error)) {
                tracing::debug!(%error, "a queue pair without a peer");
            }
            for notify in &told {
                notify.count_gone_peer(engine);
            }
        });
        for cq in cqs {
            self.cqs.ready(cq);
            self.cqs.seen(cq);
        }
    }

    /// A queue pair needs a link: the one to ourselves at once, others by the engine thread.
    fn link_needed(&self, qp: QpId, peer: u32) {
        let ours = self.qp_numbers.owns(names::block_of(peer));
        match self.loopback.get() {
            Some(&link) if ours => {
                self.talks_to_itself();
                self.command(|engine| {
                    engine.connect_qpn(peer, link);
                    // Datagram queue pairs have no link of their own, and that is no error.
                    let _ = engine.connect_qp(qp, link);
                });
            }
            _ => self.thread_requests.connect(qp, peer),
        }
    }
}

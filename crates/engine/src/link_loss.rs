//! The end of a link: what has arrived is taken first, then the queue pairs that used it release it.

use crate::context::Context;
use crate::drive::take_fragments;
use crate::qp::pair::Qp;
use crate::requester::drop_datagram;
use crate::{AsyncEvent, Engine, Event, LinkId, QpState, Status};
use rkey_base::memory::Memory;
use rkey_link::{DownReason, Link};

/// The maximum number of fragments to take in one call.
const LAST_BUDGET: u32 = 256;
/// The maximum number of calls. Together they take more fragments than any ring can hold unacknowledged.
const LAST_ROUNDS: u32 = 64;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Takes everything that has arrived from a device, over any link, before detaching one of its links. So requests
    /// that the peer executed succeed, and messages that it sent arrive.
    pub(crate) fn take_last_news(&mut self, id: LinkId) {
        let Some(node) = self.links.get(id).map(|link_state| link_state.meta.node) else {
            return;
        };
        // Nothing is deferred: there is no later.
        self.x.acks_first = false;
        for index in 0..self.links.bound() {
            let Some(link_state) = self.links.at_mut(index) else {
                continue;
            };
            if link_state.meta.node != node {
                continue;
            }
            for _ in 0..LAST_ROUNDS {
                let taken = take_fragments(
                    &mut self.x,
                    &mut self.qps,
                    &self.numbers,
                    link_state,
                    LAST_BUDGET,
                    &mut None,
                );
                if !taken.is_ok_and(|fragments| fragments > 0) {
                    break;
                }
            }
        }
    }

    /// Detaches a broken link and raises `Event::LinkDown`.
    pub(crate) fn link_down(&mut self, id: LinkId, reason: DownReason) {
        if let Some(link) = self.detach(id, reason) {
            self.detached.push((id, link));
            self.x
                .events
                .push_back(Event::LinkDown { link: id, reason });
        }
    }

    /// Makes all queue pairs release a link.
    pub(crate) fn forget_link(&mut self, id: LinkId) {
        for index in 0..self.qps.bound() {
            let Some(qp) = self.qps.at_mut(index) else {
                continue;
            };
            let was_inbound = qp.inbound == Some(id);
            let was_outbound = qp.out == Some(id);
            if (was_inbound || was_outbound) && qp.state.responds() {
                self.x.events.push_back(Event::Async(AsyncEvent::PeerGone {
                    qp: qp.id,
                    qpn: qp.qpn,
                    why: None,
                }));
            }
            if was_inbound {
                qp.inbound = None;
                qp.resp.current = None;
            }
            if was_outbound {
                qp.out = None;
                qp.req.warrants.clear();
                qp.req.link_requested = false;
                qp.req.blocked = false;
                lose_requests(&mut self.x, qp);
            }
        }
        self.x.routes.retain(|_, link| *link != id);
        self.forget_orphans();
    }
}

/// Handles the loss of a connected queue pair's link.
fn lose_requests<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    if qp.sq.head == qp.sq.tail || !matches!(qp.state, QpState::Rts | QpState::Sqd) {
        return;
    }
    if qp.config.qp_type.is_reliable() {
        x.give_up(qp, Status::RetryExceeded);
        return;
    }
    // An unreliable connection is not told whether its requests arrived.
    qp.req.acked = qp.sq.next;
    x.complete_ended_sends(qp);
    if qp.req.offset > 0 {
        qp.req.offset = 0;
        drop_datagram(x, qp);
    }
    x.forget_requests(qp);
}

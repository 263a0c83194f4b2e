//! Receive side scaling at the responder: selects the queue for a frame.

use super::xrc::turn_to;
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::rss::START_LEN;
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;

/// Selects the receive queue for a frame of a queue pair with RSS; false if that queue takes no frames now.
pub(super) fn choose<M: Memory>(x: &mut Context<M>, qp: &mut Qp, frame: &PeerBytes<'_>) -> bool {
    let Some(rss) = &qp.rss else {
        return true;
    };
    let mut start = [0; START_LEN];
    let len = frame.len().min(START_LEN);
    frame.get(0, &mut start[..len]);
    let index = rss.hash(&start[..len]) as usize & (rss.queues.len() - 1);
    let Some(queue) = x.srqs.get(rss.queues[index]) else {
        return false;
    };
    let (Some((_, cq)), true) = (queue.serves, queue.ready) else {
        return false;
    };
    let (id, domain) = (queue.id, queue.domain);
    turn_to(x, qp, id, domain, cq);
    true
}

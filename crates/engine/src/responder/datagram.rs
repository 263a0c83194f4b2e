//! Datagrams at the receiver: checks the queue key, and silently drops every datagram that is not acceptable (IBA
//! 9.8.3). Raw frames arrive the same way, without a GRH or a queue key.

use super::multicast::takes_frame;
use super::rss::choose;
use super::{complete_receive, take_receive};
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::recv_queue::RecvQueue;
use crate::ud::GRH_LEN;
use crate::{CompletionFlags, QpType};
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::LocalUse;
use rkey_link::{Header, HeaderFlags, Op, Payload, ReceivedFragment};

/// Receives a datagram, or drops it.
pub(super) fn on_datagram<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    incoming: &ReceivedFragment<'_>,
) {
    let header = &incoming.header;
    let whole = header
        .flags
        .contains(HeaderFlags::FIRST | HeaderFlags::LAST)
        && header.len == header.total;
    let Payload::Bytes(bytes) = &incoming.payload else {
        return;
    };
    if !qp.state.responds()
        || header.op != Op::Send
        || !whole
        || header.flags.contains(HeaderFlags::INVALIDATE)
        || !is_for(qp, header, bytes)
        || !choose(x, qp, bytes)
        || !fits(x, qp, header.len)
        || !take_receive(x, qp)
    {
        return;
    }
    let domain = qp.resp.recv.domain;
    let sges = &qp.resp.recv.sges;
    match x.checked.scatter(domain, sges, 0, *bytes, LocalUse::Recv) {
        Ok(()) => {
            let flags = if qp.config.qp_type == QpType::Raw {
                CompletionFlags::empty()
            } else {
                CompletionFlags::GRH
            };
            complete_receive(x, qp, header, header.len, flags);
        }
        Err(trouble) => {
            let vendor = x.report_local(qp, qp.resp.recv.id, &qp.resp.recv.sges, trouble);
            x.fail_receive(qp, crate::Status::LocalProtection, vendor);
            x.enter_error(qp);
        }
    }
}

/// Whether the next receive has room for this many bytes. If not, the receive stays queued for the next datagram.
pub(crate) fn fits<M>(x: &Context<M>, qp: &Qp, len: u32) -> bool {
    let queue = match qp.config.srq {
        Some(srq) => x.srqs.get(srq).map(|srq| &srq.queue),
        None => Some(&qp.rq),
    };
    let room = queue.and_then(RecvQueue::room);
    room.is_some_and(|room| u64::from(len) <= room)
}

/// Whether the queue pair accepts the datagram, judging by queue key and length (raw queue pairs: by length and flows).
fn is_for(qp: &Qp, header: &Header, bytes: &PeerBytes<'_>) -> bool {
    let most = GRH_LEN + qp.settings.path_mtu;
    if qp.config.qp_type == QpType::Raw {
        return header.len <= most && takes_frame(qp, header.key, bytes);
    }
    header.addr == u64::from(qp.settings.qkey) && (GRH_LEN..=most).contains(&header.len)
}

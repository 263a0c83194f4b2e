//! Datagrams. At the receiver: the check of the queue key; everything that does not fit is dropped silently (IBA
//! 9.8.3). Raw frames arrive the same way, without a GRH and a queue key. At the sender: the GRH, and the payload of
//! datagrams that wait until their receiver has been found.

use crate::context::Context;
use crate::groups::takes_frame;
use crate::qp::pair::Qp;
use crate::recv_queue::RecvQueue;
use crate::responder::{complete_receive, take_receive};
use crate::rss::choose;
use crate::send_queue::WqeFlags;
use crate::{CompletionFlags, QpType, Route};
use rkey_base::memory::Memory;
use rkey_base::shared::{OwnBytes, PeerBytes};
use rkey_core::LocalUse;
use rkey_link::{Header, HeaderFlags, Incoming, Op, Payload};

/// The length of the global route header in front of a datagram, in bytes.
pub const GRH_LEN: u32 = 40;
/// The next header of a GRH that a base transport header follows (IBA 8.3.3).
const NEXT_IS_BTH: u8 = 0x1b;

impl Route {
    /// The global route header (IBA 8.3) of a datagram with `len` bytes of payload.
    #[must_use]
    pub fn grh(&self, len: u32) -> [u8; GRH_LEN as usize] {
        let mut grh = [0; GRH_LEN as usize];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        grh[..4].copy_from_slice(&first.to_be_bytes());
        grh[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        (grh[6], grh[7]) = (NEXT_IS_BTH, self.hop_limit);
        grh[8..24].copy_from_slice(&self.source);
        grh[24..].copy_from_slice(&self.target);
        grh
    }
}

/// Receives a datagram, or drops it.
pub(crate) fn on_datagram<M: Memory>(x: &mut Context<M>, qp: &mut Qp, incoming: &Incoming<'_>) {
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
            let vendor = x.report_local(qp, qp.resp.recv.id, trouble);
            x.fail_receive(qp, crate::Status::LocalProtection, vendor);
            x.enter_error(qp);
        }
    }
}

/// Copies the payloads of datagrams that wait for a link.
///
/// Programs know that a datagram leaves within microseconds, whatever its destination, and some (UCX) reuse its memory
/// when the peer has responded, before they have seen the completion. Finding a peer takes longer than that.
#[cold]
pub(crate) fn take_payloads<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    for seq in qp.sq.kept_to.max(qp.sq.next)..qp.sq.tail {
        let wqe = qp.sq.wqe(seq);
        let there_already = wqe.flags.contains(WqeFlags::INLINE) || wqe.total == 0;
        if there_already || wqe.total > qp.settings.path_mtu {
            continue;
        }
        let mut bytes = vec![0; wqe.total as usize].into_boxed_slice();
        let domain = qp.config.domain;
        let place = OwnBytes::from_slice(&mut bytes);
        let taken = x
            .checked
            .gather(domain, qp.sq.sges(seq), 0, place, LocalUse::Send);
        // Unreadable memory is reported when the datagram is sent.
        if taken.is_ok() {
            qp.sq.keep(seq, bytes);
        }
    }
    qp.sq.kept_to = qp.sq.tail;
}

/// Whether the next receive has room for this many bytes. If not, the receive stays queued for the next datagram.
fn fits<M>(x: &Context<M>, qp: &Qp, len: u32) -> bool {
    let queue = match qp.config.srq {
        Some(srq) => x.srqs.get(srq).map(|srq| &srq.queue),
        None => Some(&qp.rq),
    };
    let room = queue.and_then(RecvQueue::room);
    room.is_some_and(|room| u64::from(len) <= room)
}

/// Whether the queue pair accepts it.
fn is_for(qp: &Qp, header: &Header, bytes: &PeerBytes<'_>) -> bool {
    let most = GRH_LEN + qp.settings.path_mtu;
    if qp.config.qp_type == QpType::Raw {
        return header.len <= most && takes_frame(qp, header.key, bytes);
    }
    header.addr == u64::from(qp.settings.qkey) && (GRH_LEN..=most).contains(&header.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_the_specification() {
        let route = Route {
            source: [1; 16],
            target: [2; 16],
            traffic_class: 0xab,
            flow_label: 0x12345,
            hop_limit: 64,
        };
        let grh = route.grh(300);
        assert_eq!(grh[..8], [0x6a, 0xb1, 0x23, 0x45, 1, 44, 0x1b, 64]);
        assert!(grh[8..24] == [1; 16] && grh[24..] == [2; 16]);
    }
}

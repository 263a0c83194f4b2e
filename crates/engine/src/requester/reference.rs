//! Large payloads by reference: the peer gets a list of places, and moves the bytes itself.
//!
//! Whether that is the better way depends on the link, on the length, and on whether the peer can reach our memory.
//! Where it is not, the payload is sent in pieces like any other.

use super::piece::keep;
use crate::port::Port;
use crate::qp::pair::Qp;
use crate::reach::{Reach, Trouble};
use crate::send_queue::WqeFlags;
use rkey_base::memory::Memory;
use rkey_link::link::REFERENCES_MAX;
use rkey_link::{Head, HeadFlags, Link, Op, SendError, Ticket};

/// The most bytes that one piece by reference moves. The peer acknowledges pieces, and so shows
/// that it is alive, in the middle of a long message.
const REFERENCE_PIECE: u64 = 16 << 20;

/// What a message that does not fit into a slot needs first: a check of the whole, and a try to
/// send it by reference. `None`: send a piece.
pub(super) fn tell_large<L: Link, M: Memory>(
    reach: &Reach<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
    head: &mut Head,
    trouble: &mut Option<Trouble>,
) -> Option<Result<Ticket, SendError>> {
    let seq = qp.sq.next;
    let offset = qp.req.offset;
    let rest = u64::from(head.total) - offset;
    if offset == 0 {
        qp.sq.wqe_mut(seq).flags -= WqeFlags::REFERENCE;
        if head.total > port.meta.caps.piece_max {
            // Rather refuse a message as a whole than in its middle.
            let want = qp.sq.wqe(seq).local_use();
            let whole = reach.check_sges(qp.config.domain, qp.sq.sges(seq), rest, want);
            if let Err(found) = whole {
                return Some(Err(SendError::Fault(keep(trouble, found))));
            }
        }
    }
    // What the ring has no room for is handed over all the same: nobody has to wait for us.
    if !reach.held_back
        && may_reference(port, qp, u64::from(head.total))
        && !port.link.prefers_pieces()
    {
        return by_reference(reach, port, qp, head, offset, trouble);
    }
    None
}

/// Whether parts of a message of this length may go by reference.
pub(super) fn may_reference<L: Link>(port: &Port<L>, qp: &Qp, total: u64) -> bool {
    let meta = &port.meta;
    meta.caps.by_reference
        && total >= u64::from(meta.caps.reference_min.max(1))
        && qp.config.qp_type.is_reliable()
}

/// Sends the rest of the message, or a good part of it, as a list of places. `None` if the list
/// would be too long, or the peer cannot reach our memory.
pub(super) fn by_reference<L: Link, M: Memory>(
    reach: &Reach<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
    head: &mut Head,
    offset: u64,
    trouble: &mut Option<Trouble>,
) -> Option<Result<Ticket, SendError>> {
    let reads = head.op == Op::Read;
    if port.meta.no_reference && !reads {
        return None;
    }
    let seq = qp.sq.next;
    let mut list = [(0, 0); REFERENCES_MAX];
    let mut count = 0;
    let rest = u64::from(head.total) - offset;
    let want = qp.sq.wqe(seq).local_use();
    let len = if reads {
        rest
    } else {
        rest.min(REFERENCE_PIECE)
    };
    let sges = qp.sq.sges(seq);
    let walked = reach.each_local(qp.config.domain, sges, offset, len, want, |span, _| {
        if let Some(place) = list.get_mut(count) {
            *place = (span.start(), span.len());
        }
        count += 1;
        Ok(())
    });
    if let Err(found) = walked {
        return Some(Err(SendError::Fault(keep(trouble, found))));
    }
    let list = list.get(..count)?;
    head.len = if reads { 0 } else { len as u32 };
    if len == rest {
        head.flags |= HeadFlags::LAST;
        if seq == qp.sq.head && !reads {
            head.flags |= HeadFlags::ACK_NOW;
        }
    }
    let sent = port.link.request_by_reference(head, list);
    if sent.is_ok() {
        qp.sq.wqe_mut(seq).flags |= WqeFlags::REFERENCE;
    }
    Some(sent)
}

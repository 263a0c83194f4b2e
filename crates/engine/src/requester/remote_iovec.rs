//! Large payloads as remote iovecs: the peer gets a list of addresses and copies the bytes itself.
//!
//! Whether this is possible and faster depends on the link, the length, and whether the peer can access our memory. If
//! not, the payload is sent in fragments like any other.

use super::fragment::keep;
use crate::checked_memory::{AccessError, CheckedMemory};
use crate::link_state::LinkState;
use crate::qp::pair::Qp;
use crate::send_queue::WqeFlags;
use rkey_base::memory::Memory;
use rkey_link::fragment::REMOTE_IOVEC_MAX;
use rkey_link::{Header, HeaderFlags, Link, Op, SendError, Ticket};

/// The maximum payload of one fragment with a remote iovec. The peer acknowledges fragments, so a long message shows
/// progress.
const REMOTE_IOVEC_FRAGMENT: u64 = 16 << 20;

/// Called before each fragment of a message that does not fit into a slot: tries to send the rest of the message, or a
/// large part of it, as a remote iovec. Returns `None` if a fragment must be sent instead. If the message needs several
/// fragments, the call before the first one also checks all of its memory.
pub(super) fn try_remote_iovec<L: Link, M: Memory>(
    checked: &CheckedMemory<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
    header: &mut Header,
    trouble: &mut Option<AccessError>,
) -> Option<Result<Ticket, SendError>> {
    let seq = qp.sq.next;
    let offset = qp.req.offset;
    let rest = u64::from(header.total) - offset;
    if offset == 0 {
        qp.sq.wqe_mut(seq).flags -= WqeFlags::REMOTE_IOVEC;
        if header.total > link_state.meta.caps.fragment_max {
            // Check the whole message before its first fragment, so that it is not refused in the middle.
            let want = qp.sq.wqe(seq).local_use();
            let whole = checked.check_sges(qp.config.domain, qp.sq.sges(seq), rest, want);
            if let Err(found) = whole {
                return Some(Err(SendError::Fault(keep(trouble, found))));
            }
        }
    }
    // Send the rest as a remote iovec too, even if the ring will have room for fragments later, so that the peer does
    // not wait for us.
    if !checked.no_remote_iovecs
        && may_use_remote_iovec(link_state, qp, u64::from(header.total))
        && !link_state.link.prefers_fragments()
    {
        return send_remote_iovec(checked, link_state, qp, header, offset, trouble);
    }
    None
}

/// Whether a message of this length may use remote iovecs.
pub(super) fn may_use_remote_iovec<L: Link>(
    link_state: &LinkState<L>,
    qp: &Qp,
    total: u64,
) -> bool {
    let meta = &link_state.meta;
    meta.caps.remote_iovec
        && total >= u64::from(meta.caps.remote_iovec_min.max(1))
        && qp.config.qp_type.is_reliable()
}

/// Sends the rest of the message, or a large part of it, as a remote iovec. `None` if the list would be too long, if
/// the peer cannot access our memory, or if some of the memory is foreign.
pub(super) fn send_remote_iovec<L: Link, M: Memory>(
    checked: &CheckedMemory<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
    header: &mut Header,
    offset: u64,
    trouble: &mut Option<AccessError>,
) -> Option<Result<Ticket, SendError>> {
    let reads = header.op == Op::Read;
    if link_state.meta.no_remote_iovec && !reads {
        return None;
    }
    let seq = qp.sq.next;
    let mut list = [(0, 0); REMOTE_IOVEC_MAX];
    let mut count = 0;
    let rest = u64::from(header.total) - offset;
    let want = qp.sq.wqe(seq).local_use();
    let len = if reads {
        rest
    } else {
        rest.min(REMOTE_IOVEC_FRAGMENT)
    };
    let sges = qp.sq.sges(seq);
    let mut foreign = false;
    let walked = checked.each_local(qp.config.domain, sges, offset, len, want, |span, _| {
        match (span.in_process(), list.get_mut(count)) {
            (None, _) => foreign = true,
            (Some(range), Some(entry)) => *entry = (range.start(), range.len()),
            (Some(_), None) => {}
        }
        count += 1;
        Ok(())
    });
    if let Err(found) = walked {
        return Some(Err(SendError::Fault(keep(trouble, found))));
    }
    let list = list.get(..count).filter(|_| !foreign)?;
    header.len = if reads { 0 } else { len as u32 };
    if len == rest {
        header.flags |= HeaderFlags::LAST;
        if seq == qp.sq.head && !reads {
            header.flags |= HeaderFlags::ACK_NOW;
        }
    }
    let sent = link_state.link.send_remote_iovec(header, list);
    if sent.is_ok() {
        qp.sq.wqe_mut(seq).flags |= WqeFlags::REMOTE_IOVEC;
    }
    Some(sent)
}

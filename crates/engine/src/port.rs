//! A link and what the engine keeps about it.

use crate::LinkId;
use crate::bulk::Bulk;
use crate::responder::Answer;
use rkey_link::{Capabilities, DownReason, Link, NodeId, Ticket};
use std::collections::VecDeque;

/// A request piece on the link that is not acknowledged. Tickets are consecutive, so the place in
/// the list is the ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) qp: u32,
    pub(crate) life: u32,
    /// The work request it belongs to, times two, plus one if it is its last piece.
    pub(crate) seq_last: u64,
}

/// Everything about a link except the link.
pub(crate) struct Meta {
    pub(crate) id: LinkId,
    pub(crate) node: NodeId,
    pub(crate) caps: Capabilities,
    pub(crate) outstanding: VecDeque<Record>,
    /// The ticket of the first of `outstanding`.
    pub(crate) acked: Ticket,
    /// Queue pairs that wait for room, in turn.
    pub(crate) blocked: VecDeque<(u32, u32)>,
    /// Counts what the peer did; a clock that stands still means that it does nothing.
    pub(crate) progress: u64,
    /// The peer cannot pull from this process: requests carry their payload.
    pub(crate) no_reference: bool,
    /// This process cannot push to the peer: read data goes through the ring.
    pub(crate) no_push: bool,
    /// The request at the front, if it takes several steps.
    pub(crate) bulk: Option<Bulk>,
    /// The answer to the request at the front that could not be sent yet.
    pub(crate) unsent: Option<Answer>,
    /// The last queue pair that was looked up by number: (number, index).
    pub(crate) last: (u32, u32),
    /// The request at the front waits for room: nothing can be done before the peer takes
    /// responses.
    pub(crate) stuck: bool,
    /// It was found broken and is to be detached.
    pub(crate) down: Option<DownReason>,
}

pub(crate) struct Port<L> {
    pub(crate) link: L,
    pub(crate) meta: Meta,
}

impl<L: Link> Port<L> {
    pub(crate) fn new(id: LinkId, link: L) -> Self {
        let meta = Meta {
            id,
            node: link.node(),
            caps: link.capabilities(),
            outstanding: VecDeque::with_capacity(256),
            acked: 0,
            blocked: VecDeque::new(),
            progress: 0,
            no_reference: false,
            no_push: false,
            bulk: None,
            unsent: None,
            last: (u32::MAX, 0),
            stuck: false,
            down: None,
        };
        Self { link, meta }
    }
}

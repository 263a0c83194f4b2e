//! A link, and the engine's state for it.

mod bulk;

use crate::lost_time::LostTime;
use crate::{LinkId, Origin};
use rkey_core::DENIAL_LEN;
use rkey_link::{Capabilities, DownReason, Header, Link, LinkRole, NodeId, Ticket};
use std::collections::VecDeque;

pub(crate) use bulk::Bulk;

/// A request fragment on the link that is not acknowledged. Tickets are consecutive, so a fragment's ticket determines
/// its index in the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentRecord {
    pub(crate) qp: u32,
    pub(crate) life: u32,
    /// Twice the sequence number of its work request, plus one if it is the last fragment.
    pub(crate) seq_last: u64,
}

/// The fragments on the link that are not acknowledged, by ticket: a ring that grows.
pub(crate) struct Records {
    ring: Box<[FragmentRecord]>,
    /// The oldest ticket that is not acknowledged.
    pub(crate) acked: Ticket,
    /// The next ticket.
    sent: Ticket,
}

impl Records {
    fn new() -> Self {
        Self {
            ring: vec![FragmentRecord::NONE; 256].into(),
            acked: 0,
            sent: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        (self.sent - self.acked) as u32
    }

    #[inline]
    fn index_of(&self, ticket: Ticket) -> usize {
        (ticket & (self.ring.len() as u64 - 1)) as usize
    }

    // Called, it would load the record with one wide load just after several narrow stores, which stalls.
    #[inline(always)]
    pub(crate) fn push(&mut self, record: FragmentRecord) {
        if self.sent - self.acked == self.ring.len() as u64 {
            self.grow();
        }
        let index = self.index_of(self.sent);
        self.ring[index] = record;
        self.sent += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let mut ring = vec![FragmentRecord::NONE; self.ring.len() * 2].into_boxed_slice();
        for ticket in self.acked..self.sent {
            ring[(ticket & (ring.len() as u64 - 1)) as usize] = self.ring[self.index_of(ticket)];
        }
        self.ring = ring;
    }

    /// Takes the oldest record if its ticket is below `ticket`.
    #[inline]
    pub(crate) fn pop_before(&mut self, ticket: Ticket) -> Option<FragmentRecord> {
        if self.acked >= ticket.min(self.sent) {
            return None;
        }
        let record = self.ring[self.index_of(self.acked)];
        self.acked += 1;
        Some(record)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FragmentRecord> {
        (self.acked..self.sent).map(|ticket| &self.ring[self.index_of(ticket)])
    }
}

/// A response to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) header: Header,
    pub(crate) denial: [u8; DENIAL_LEN],
}

/// The engine's state for a link.
pub(crate) struct Meta {
    pub(crate) id: LinkId,
    pub(crate) node: NodeId,
    pub(crate) role: LinkRole,
    /// The process at the other end.
    pub(crate) origin: Origin,
    /// When the link was first served; `u64::MAX` means not yet.
    pub(crate) since: u64,
    pub(crate) caps: Capabilities,
    pub(crate) outstanding: Records,
    /// Queue pairs that wait for room, in turn.
    pub(crate) blocked: VecDeque<(u32, u32)>,
    /// Counts the peer's actions; while the count does not change, the peer is silent.
    pub(crate) progress: u64,
    /// Set if the peer cannot pull from this process, so requests must carry their payload.
    pub(crate) no_remote_iovec: bool,
    /// Set if this process cannot push to the peer, so read data passes through the ring.
    pub(crate) no_push: bool,
    /// The request at the front, if it takes several steps.
    pub(crate) bulk: Option<Bulk>,
    /// How many writes were pushed over it.
    pub(crate) pushed: u64,
    /// How long pushes have waited for the peer's memory.
    pub(crate) lost_time: LostTime,
    /// The response to the request at the front that could not be sent yet.
    pub(crate) unsent: Option<Response>,
    /// The last queue pair that was looked up by number: (number, index).
    pub(crate) last: (u32, u32),
    /// Set while the request at the front waits: for room for responses, for the end of a search for the peer, or for
    /// the end of a guesser's pause.
    pub(crate) stuck: bool,
    /// Set once a datagram to a group has run out of waits for room here. Until the link accepts such a datagram, later
    /// ones skip the link while it is full.
    pub(crate) no_room: bool,
    /// Why the link will be detached, once it has been found broken.
    pub(crate) down: Option<DownReason>,
}

/// A link, and the engine's state for it.
pub(crate) struct LinkState<L> {
    pub(crate) link: L,
    pub(crate) meta: Meta,
}

impl FragmentRecord {
    /// The sequence number of the work request that it belongs to.
    pub(crate) const fn seq(&self) -> u64 {
        self.seq_last >> 1
    }

    /// Whether it is the last fragment of the request.
    pub(crate) const fn is_last(&self) -> bool {
        self.seq_last & 1 == 1
    }

    const NONE: Self = Self {
        qp: 0,
        life: 0,
        seq_last: 0,
    };
}

impl<L: Link> LinkState<L> {
    pub(crate) fn new(id: LinkId, link: L, origin: Origin) -> Self {
        let meta = Meta {
            id,
            node: link.node(),
            role: link.role(),
            origin,
            since: u64::MAX,
            caps: link.capabilities(),
            outstanding: Records::new(),
            blocked: VecDeque::new(),
            progress: 0,
            no_remote_iovec: false,
            no_push: false,
            bulk: None,
            pushed: 0,
            lost_time: LostTime::default(),
            unsent: None,
            last: (u32::MAX, 0),
            stuck: false,
            no_room: false,
            down: None,
        };
        Self { link, meta }
    }

    /// Whether driving this link would find work.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        let meta = &self.meta;
        self.link.pending()
            || !meta.blocked.is_empty()
            || meta.bulk.is_some()
            || meta.unsent.is_some()
            || meta.down.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stay_in_order_when_the_ring_grows() {
        let mut records = Records::new();
        let mut next = 0;
        for seq in 0..2000u64 {
            records.push(FragmentRecord {
                qp: 1,
                life: 2,
                seq_last: seq,
            });
            if seq % 3 == 0 {
                let record = records.pop_before(u64::MAX).unwrap();
                assert_eq!(record.seq_last, next);
                next += 1;
            }
        }
        assert_eq!(records.iter().count() as u32, records.len());
        assert!(records.pop_before(next).is_none());
        while let Some(record) = records.pop_before(1500) {
            assert_eq!(record.seq_last, next);
            next += 1;
        }
        assert_eq!((next, records.acked), (1500, 1500));
    }
}

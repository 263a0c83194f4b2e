//! A wrapper that makes any link misbehave, for tests.
//!
//! A [`FaultPlan`] and a seed determine the wrapper's behaviour, so a failed run can be repeated. A link guarantees that every
//! fragment arrives once and in order, so the wrapper never drops or reorders fragments. The wrapper delays (arrivals and
//! acknowledgements seem absent, the ring seems full), changes headers as a hostile peer might, and takes the link
//! down.

use crate::{
    Capabilities, DownReason, Header, HeaderFlags, Link, LinkRole, Malformed, NodeId, PollHandle,
    PullError, ReceivedFragment, RemotePeer, SendError, Ticket,
};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;
use std::cell::Cell;

/// The two directions, as array indexes.
const REQUESTS: usize = 0;
const RESPONSES: usize = 1;

/// How a [`Faulty`] link misbehaves. Chances are in 256ths; the default does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Chance that a fragment that has arrived is not shown this time.
    pub hide: u8,
    /// Chance that a send finds no room.
    pub full: u8,
    /// Chance that acknowledgements are not seen this time.
    pub hide_acks: u8,
    /// Chance that an arriving header has a random field changed. A changed header is one that a hostile peer could
    /// have sent: the link's checks accept it.
    pub garble: u8,
    /// Chance that a pull or push is refused.
    pub refuse: u8,
    /// The link goes down after this many fragments have been taken. `None`: never.
    pub down_after: Option<u64>,
}

/// A link that misbehaves.
#[derive(Debug)]
pub struct Faulty<L> {
    inner: L,
    plan: FaultPlan,
    random: Cell<u64>,
    taken: u64,
    down: Option<DownReason>,
    /// The changes of the current request and response: repeated calls of `next_request` or `next_response` return the
    /// same values.
    changes: [Cell<Option<Change>>; 2],
    acked: Ticket,
}

/// A change of a header: which field, and the new value.
#[derive(Clone, Copy, Debug)]
struct Change {
    field: u8,
    with: u64,
}

impl Change {
    fn apply(self, header: &mut Header) {
        let with = self.with;
        match self.field {
            0 => header.dst_qp = with as u32,
            1 => header.src_qp = with as u32,
            2 => header.msn = with as u32,
            3 => header.addr = with,
            4 => header.key = with,
            5 => header.imm = with as u32,
            6 => header.total = with as u32,
            7 => header.operands[0] = with,
            8 => {
                // The link itself has already checked the other flags.
                let free = HeaderFlags::FIRST | HeaderFlags::LAST | HeaderFlags::SOLICITED;
                header.flags = header.flags.difference(free)
                    | HeaderFlags::from_bits_truncate(with as u8).intersection(free);
            }
            _ => {}
        }
    }
}

impl<L> Faulty<L> {
    /// Wraps a link.
    pub fn new(inner: L, plan: FaultPlan, seed: u64) -> Self {
        Self {
            inner,
            plan,
            random: Cell::new(seed | 1),
            taken: 0,
            down: None,
            changes: [const { Cell::new(None) }; 2],
            acked: 0,
        }
    }

    /// Takes the link down.
    pub fn go_down(&mut self, reason: DownReason) {
        self.down = Some(reason);
    }

    /// The wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    fn next(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn happens(&self, chance: u8) -> bool {
        chance != 0 && (self.next() >> 56) < u64::from(chance)
    }

    fn count_taken(&mut self, direction: usize) {
        self.taken += 1;
        self.changes[direction].set(None);
        if self
            .plan
            .down_after
            .is_some_and(|limit| self.taken >= limit)
        {
            self.down.get_or_insert(DownReason::PeerGone);
        }
    }

    fn look<'a>(
        &self,
        direction: usize,
        fragment: Option<ReceivedFragment<'a>>,
    ) -> Option<ReceivedFragment<'a>> {
        let kept = &self.changes[direction];
        if self.down.is_some() || self.happens(self.plan.hide) {
            return None;
        }
        let mut incoming = fragment?;
        if kept.get().is_none() {
            // No field has the number `u8::MAX`, so such a change leaves the header as it is.
            let field = if self.happens(self.plan.garble) {
                (self.next() % 9) as u8
            } else {
                u8::MAX
            };
            let with = self.next() >> (self.next() % 64);
            kept.set(Some(Change { field, with }));
        }
        if let Some(change) = kept.get() {
            change.apply(&mut incoming.header);
        }
        Some(incoming)
    }

    fn may_send(&self) -> Result<(), SendError> {
        if self.down.is_some() {
            return Err(SendError::Down);
        }
        if self.happens(self.plan.full) {
            Err(SendError::Full)
        } else {
            Ok(())
        }
    }
}

impl<L: Link> Link for Faulty<L> {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn is_up(&self) -> Result<(), DownReason> {
        self.down.map_or_else(|| self.inner.is_up(), Err)
    }

    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        self.may_send()?;
        self.inner.send_request(header, fill)
    }

    fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        self.may_send()?;
        self.inner.send_remote_iovec(header, remote_iovec)
    }

    fn prefers_fragments(&self) -> bool {
        self.inner.prefers_fragments()
    }

    fn prefers_fragments_for_read(&self, len: u64) -> bool {
        self.inner.prefers_fragments_for_read(len)
    }

    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        Ok(self.look(RESPONSES, self.inner.next_response()?))
    }

    fn response_done(&mut self) {
        self.inner.response_done();
        self.count_taken(RESPONSES);
    }

    fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
        if self.down.is_none() && !self.happens(self.plan.hide_acks) {
            self.acked = self.inner.acknowledged()?;
        }
        Ok(self.acked)
    }

    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        Ok(self.look(REQUESTS, self.inner.next_request()?))
    }

    fn request_done(&mut self) {
        self.inner.request_done();
        self.count_taken(REQUESTS);
    }

    fn room_to_respond(&self) -> bool {
        self.down.is_none() && !self.happens(self.plan.full) && self.inner.room_to_respond()
    }

    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        // After `room_to_respond` a response must succeed.
        if self.down.is_some() {
            return Err(SendError::Down);
        }
        self.inner.send_response(header, fill)
    }

    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        if self.happens(self.plan.refuse) {
            return Err(PullError::Refused);
        }
        self.inner.pull(mem, dst, src, len)
    }

    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        if self.happens(self.plan.refuse) {
            return Err(PullError::Refused);
        }
        self.inner.push(mem, dst_remote, src_local, len)
    }

    fn pending(&self) -> bool {
        self.down.is_some() || self.inner.pending()
    }

    fn end_burst(&mut self) {
        self.inner.end_burst();
    }

    fn publish(&mut self) {
        self.inner.publish();
    }

    fn role(&self) -> LinkRole {
        self.inner.role()
    }

    fn poll_handle(&self) -> Option<PollHandle> {
        self.inner.poll_handle()
    }

    fn has_unacked(&self) -> bool {
        self.inner.has_unacked()
    }

    fn kick(&self) {
        self.inner.kick();
    }

    fn peer(&self) -> Option<RemotePeer> {
        self.inner.peer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use crate::loopback::Loopback;

    fn run(plan: FaultPlan, seed: u64) -> (Vec<Header>, Result<(), DownReason>) {
        let mut link = Faulty::new(Loopback::new(NodeId::default()), plan, seed);
        let mut seen = Vec::new();
        let (mut sent, mut looks) = (0, 0);
        while (seen.len() < 200 || link.acknowledged() != Ok(200)) && looks < 100_000 {
            looks += 1;
            if sent < 200 {
                let header = Header {
                    msn: sent,
                    ..Header::new(Op::Probe)
                };
                match link.send_request(&header, |_| Ok(())) {
                    Ok(_) => sent += 1,
                    Err(SendError::Full) => {}
                    Err(_) => break,
                }
            }
            if let Some(incoming) = link.next_request().unwrap() {
                let again = link.next_request().unwrap();
                assert!(again.is_none_or(|again| again.header == incoming.header));
                seen.push(incoming.header);
                link.request_done();
            }
            link.end_burst();
        }
        (seen, link.is_up())
    }

    #[test]
    fn delays_lose_no_fragment() {
        let plan = FaultPlan {
            hide: 128,
            full: 100,
            hide_acks: 200,
            ..FaultPlan::default()
        };
        let (seen, up) = run(plan, 7);
        assert_eq!(up, Ok(()));
        assert!(seen.iter().map(|header| header.msn).eq(0..200));
    }

    #[test]
    fn a_plan_garbles_the_same_headers_for_the_same_seed() {
        let plan = FaultPlan {
            garble: 128,
            ..FaultPlan::default()
        };
        let (seen, _) = run(plan, 9);
        let clean = |i: usize| Header {
            msn: i as u32,
            ..Header::new(Op::Probe)
        };
        let changed = seen
            .iter()
            .enumerate()
            .filter(|&(i, header)| *header != clean(i))
            .count();
        assert!((50..150).contains(&changed), "{changed}");
        assert_eq!(run(plan, 9).0, seen);
    }

    #[test]
    fn a_link_goes_down_after_the_planned_number_of_fragments() {
        let plan = FaultPlan {
            down_after: Some(50),
            ..FaultPlan::default()
        };
        let (seen, up) = run(plan, 1);
        assert_eq!((seen.len(), up), (50, Err(DownReason::PeerGone)));
    }
}

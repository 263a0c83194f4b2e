//! Messages for a front end that does its own matching: it takes them from the ring without a receive, a completion or
//! an intermediate copy.

use crate::checked_memory::{AccessError, CheckedMemory};
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::{CqId, Sge};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::{Attempt, Denial, DomainId, LKey, LocalUse, NamedKey};

/// Takes peers' messages that would otherwise complete receives in a completion queue.
pub trait Inbox<M> {
    /// Called when a message has arrived. Returns true if the inbox has taken it; otherwise it goes to a receive, as do
    /// all later ones in this call of [`Engine::drive_with`](crate::Engine::drive_with), so that they stay in order.
    fn offer(&mut self, message: &Message<'_, M>) -> bool;
}

/// A message on a link.
pub struct Message<'a, M> {
    qpn: u32,
    bytes: PeerBytes<'a>,
    checked: &'a CheckedMemory<M>,
}

impl<'a, M: Memory> Message<'a, M> {
    /// The number of the message's destination queue pair.
    #[inline]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The message's bytes, which the peer can still change, so copy them only once.
    #[inline]
    pub fn bytes(&self) -> PeerBytes<'a> {
        self.bytes
    }

    /// Copies `bytes`, a part of the message, to local memory, as a receive into that memory would.
    ///
    /// # Errors
    /// The denial, which may also report a memory fault; some bytes may have been copied.
    #[inline]
    pub fn scatter(
        &self,
        domain: DomainId,
        sges: &[Sge],
        bytes: PeerBytes<'_>,
    ) -> Result<(), Box<Denial>> {
        let stored = self.checked.scatter(domain, sges, 0, bytes, LocalUse::Recv);
        stored.map_err(|trouble| match trouble {
            AccessError::Denied(denial) => denial,
            // The inbox gets faults as denials. No payload is pulled here, so the last case does not occur.
            AccessError::Fault(Fault { address }) => fault(sges, bytes, address),
            AccessError::Pull(_) => fault(sges, bytes, 0),
        })
    }
}

#[cold]
fn fault(sges: &[Sge], bytes: PeerBytes<'_>, address: u64) -> Box<Denial> {
    let (addr, key) = sges.first().map_or((0, LKey(0)), |sge| (sge.addr, sge.key));
    let attempt = Attempt::Local(LocalUse::Recv);
    Denial::fault(
        attempt,
        NamedKey::Local(key),
        addr,
        bytes.len() as u64,
        address,
    )
}

/// An inbox during one call, and its completion queue.
pub(crate) struct OpenInbox<'a, M> {
    cq: CqId,
    inbox: &'a mut dyn Inbox<M>,
    /// The number of receives that had completed when the inbox was opened.
    received: u64,
    /// Whether every message that was offered has been taken.
    accepting: bool,
}

impl<'a, M: Memory> OpenInbox<'a, M> {
    /// Accepts messages whose receives would complete in `cq`, if that queue is empty.
    pub(crate) fn open(cq: CqId, inbox: &'a mut dyn Inbox<M>, x: &Context<M>) -> Option<Self> {
        let queue = x.cqs.get(cq)?;
        queue.shared.is_empty().then_some(Self {
            cq,
            inbox,
            received: x.received,
            accepting: true,
        })
    }

    /// Offers a queue pair's next message, which must be complete.
    #[inline]
    pub(crate) fn offer(&mut self, x: &Context<M>, qp: &Qp, bytes: PeerBytes<'_>) -> bool {
        // The inbox gets no message while an earlier one is in a receive that the program has not polled.
        if self.cq != qp.config.recv_cq || self.received != x.received || !self.accepting {
            return false;
        }
        let checked = &x.checked;
        let qpn = qp.qpn;
        self.accepting = self.inbox.offer(&Message {
            qpn,
            bytes,
            checked,
        });
        self.accepting
    }
}

//! Messages to somebody who knows where each of them belongs: they are taken where they lie on the link, and no
//! receive, no completion and no copy in between is needed.

use crate::context::Context;
use crate::qp::pair::Qp;
use crate::reach::{Reach, Trouble};
use crate::{CqId, Sge};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::Foreign;
use rkey_core::{Attempt, Denial, DomainId, LocalKey, LocalUse, NamedKey};

/// Takes messages of peers that would have completed in a completion queue of its own.
pub trait Inbox<M> {
    /// A message has come. True if it has been taken; otherwise it goes to a receive, as all do that come
    /// later in this call of [`Engine::drive_with`](crate::Engine::drive_with), so that they stay in order.
    fn take(&mut self, message: &Message<'_, M>) -> bool;
}

/// A message on a link.
pub struct Message<'a, M> {
    qpn: u32,
    bytes: Foreign<'a>,
    reach: &'a Reach<M>,
}

impl<'a, M: Memory> Message<'a, M> {
    /// The number of the queue pair that it is for.
    #[inline]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Its bytes, which the peer can still change: copy them once.
    #[inline]
    pub fn bytes(&self) -> Foreign<'a> {
        self.bytes
    }

    /// Copies bytes of it to local memory, as a receive into that memory would.
    ///
    /// # Errors
    /// What stands in the way, a fault of the memory included; a part may have been copied.
    #[inline]
    pub fn place(
        &self,
        domain: DomainId,
        sges: &[Sge],
        bytes: Foreign<'_>,
    ) -> Result<(), Box<Denial>> {
        let placed = self.reach.scatter(domain, sges, 0, bytes, LocalUse::Recv);
        placed.map_err(|trouble| match trouble {
            Trouble::Denied(denial) => denial,
            // Nothing is pulled here, and faults come as refusals.
            Trouble::Fault(Fault { address }) => fault(sges, bytes, address),
            Trouble::Pull(_) => fault(sges, bytes, 0),
        })
    }
}

#[cold]
fn fault(sges: &[Sge], bytes: Foreign<'_>, address: u64) -> Box<Denial> {
    let (addr, key) = sges
        .first()
        .map_or((0, LocalKey(0)), |sge| (sge.addr, sge.key));
    let attempt = Attempt::Local(LocalUse::Recv);
    Denial::fault(
        attempt,
        NamedKey::Local(key),
        addr,
        bytes.len() as u64,
        address,
    )
}

/// An inbox during one call, and for whom it is there.
pub(crate) struct Desk<'a, M> {
    cq: CqId,
    inbox: &'a mut dyn Inbox<M>,
    /// How many receives had completed when it was opened.
    received: u64,
    /// Every message that was offered has been taken.
    open: bool,
}

impl<'a, M: Memory> Desk<'a, M> {
    /// For messages whose receives would complete in `cq`, when nothing is left in there.
    pub(crate) fn open(cq: CqId, inbox: &'a mut dyn Inbox<M>, x: &Context<M>) -> Option<Self> {
        let queue = x.cqs.get(cq)?;
        queue.shared.is_empty().then_some(Self {
            cq,
            inbox,
            received: x.received,
            open: true,
        })
    }

    /// Offers a message for a queue pair, whole and the next in its order.
    #[inline]
    pub(crate) fn take(&mut self, x: &Context<M>, qp: &Qp, bytes: Foreign<'_>) -> bool {
        // What has completed a receive comes first.
        if self.cq != qp.config.recv_cq || self.received != x.received || !self.open {
            return false;
        }
        let reach = &x.reach;
        let qpn = qp.qpn;
        self.open = self.inbox.take(&Message { qpn, bytes, reach });
        self.open
    }
}

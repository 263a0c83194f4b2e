//! Long messages, by rendezvous: the RTS that goes to the receiver instead of the payload, and the memory that it may
//! read until its FIN comes.

#![allow(unsafe_code)]
// UNSAFETY: registers memory that the program hands over.

use super::operation::{Exposed, Hold, Operation};
use super::send::SEND;
use super::*;
use libc::iovec;
use rkey_device::base::range::VaRange;
use rkey_device::core::{Access, Addressing, LocalUse, RegionSpec};
use rkey_device::engine::SendFlags;
use rkey_rdm::header::{Header, MAX_LEN};
use smallvec::SmallVec;

impl Endpoint {
    /// Tells the peer where it can read the payload, the bytes of `iov`, of which `sges` says in which regions of the
    /// program's they lie. The key is good until the peer has it, or one of these regions is closed.
    pub(super) fn rendezvous(
        &self,
        state: &mut State,
        iov: &[iovec],
        sges: &[Sge],
        copy: Box<[u8]>,
        mut header: Header,
        mut operation: Operation,
    ) -> Result<()> {
        let ranges: Option<Vec<VaRange>> = iov
            .iter()
            .filter(|piece| piece.iov_len > 0)
            .map(|piece| VaRange::new(piece.iov_base as u64, piece.iov_len as u64))
            .collect();
        let ranges = ranges.ok_or(FiError::FAULT)?;
        operation.left += 1;
        operation.answered = true;
        if ranges.is_empty() {
            header.kind = header.kind.rendezvous(0);
            return self.post_rts(state, header, operation);
        }
        let spec = RegionSpec {
            addressing: Addressing::Zero,
            internal: true,
            ..RegionSpec::new(self.group.id, &ranges, Access::REMOTE_READ)
        };
        // SAFETY: the program hands the buffers over until the send is complete; peers only read them.
        let region = unsafe { self.domain.device.register(&spec)? };
        let everything = self.group.everything();
        let named: SmallVec<[Sge; 1]> = sges
            .iter()
            .copied()
            .filter(|sge| sge.key != everything)
            .collect();
        let exposed = Exposed {
            region,
            owners: named.iter().map(|sge| sge.key).collect(),
            _copy: copy,
        };
        for &owner in &exposed.owners {
            self.domain.announced.add(owner, region);
        }
        operation.hold = Hold::Exposed(Box::new(exposed));
        header.kind = header.kind.rendezvous(region.key.0);
        self.post_rts(state, header, operation)?;
        if !named.iter().all(|sge| self.may_send(sge)) {
            // The peer will not find the key, and answers that.
            let _ = self.domain.device.close_region(region);
        }
        Ok(())
    }

    /// Whether the region of an element still allows sends.
    fn may_send(&self, sge: &Sge) -> bool {
        // SAFETY: nothing is registered or closed through the table here.
        let table = unsafe { self.domain.device.protection() };
        let (addr, len) = (sge.addr, u64::from(sge.len));
        table
            .check_local(self.group.id, sge.key, addr, len, LocalUse::Send)
            .is_ok()
    }

    fn post_rts(&self, state: &mut State, mut header: Header, operation: Operation) -> Result<()> {
        let connection = operation.connection;
        let id = self.begin(state, operation);
        header.id = id;
        let mut head = [0; MAX_LEN];
        let len = header.encode(&mut head);
        let none = SendFlags::empty();
        self.post(state, connection, SEND, &[], Some(&head[..len]), none, id)
            .inspect_err(|_| {
                if let Some(operation) = state.forget(id)
                    && let Hold::Exposed(exposed) = &operation.hold
                {
                    self.withdraw(exposed);
                }
            })
    }

    /// Ends a key that no peer uses, or waits until none does.
    pub(super) fn withdraw(&self, exposed: &Exposed) {
        self.forget_exposed(exposed);
        let _ = self.domain.device.close_region(exposed.region);
    }

    /// The key has ended.
    pub(super) fn forget_exposed(&self, exposed: &Exposed) {
        for &owner in &exposed.owners {
            self.domain.announced.remove(owner, exposed.region);
        }
    }
}

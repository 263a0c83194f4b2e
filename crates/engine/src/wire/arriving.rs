//! How peers on other hosts access memory here, operation by operation.
//!
//! A write arrives in packets, each of which is checked. Reports and counters cover the whole operation, as on a link.

use super::host::WireHost;
use crate::Side;
use crate::checked_memory::{AccessError, Counter, RequestedRange};
use crate::responder::count_access;
use rkey_base::memory::Memory;
use rkey_core::{Access, Attempt, Denial, Key, NamedKey, Operation, RKey, Reason};
use rkey_link::NodeId;
use rkey_roce::transport::{Refusal, RemoteRange};

impl<M: Memory> WireHost<'_, M> {
    /// Checks an operation as a whole. Returns the counter of its memory.
    pub(super) fn check_operation(
        &mut self,
        range: &RemoteRange,
        want: Operation,
    ) -> Result<Counter, Refusal> {
        self.check_queue_pair(range, want)?;
        let asked = self.asked(range);
        let granted =
            (self.x.checked.grant(&asked, range.length.into(), want)).map(|grant| grant.counter());
        granted.map_err(|denial| self.refuse(denial, range))
    }

    /// Checks whether the queue pair itself allows the operation (VB-I06). Its rights may be revoked in the middle of an
    /// operation.
    pub(super) fn check_queue_pair(
        &mut self,
        range: &RemoteRange,
        want: Operation,
    ) -> Result<(), Refusal> {
        if self.qp.settings.access.contains(want.needs()) {
            return Ok(());
        }
        let granted = self.qp.settings.access & Access::REMOTE;
        let RequestedRange { who, key, addr } = self.asked(range);
        let (len, api) = (range.length.into(), who.domain.api());
        let denial = Denial::by_queue_pair(&who, key, addr, len, want, granted, api);
        Err(self.refuse(denial, range))
    }

    /// The range, with the peer that requests it.
    pub(super) fn asked(&self, range: &RemoteRange) -> RequestedRange {
        RequestedRange {
            who: self.qp.accessor(),
            key: RKey::Device(Key(range.rkey)),
            addr: range.address,
        }
    }

    /// Counts stored bytes of the write in progress. A message of several packets counts once.
    pub(super) fn stored(&mut self, counter: Counter, bytes: u32) {
        let Some((whole, done)) = &mut self.arriving.write else {
            return;
        };
        *done += bytes;
        if *done >= whole.length {
            let length = whole.length;
            self.arriving.write = None;
            self.count(counter, length, true);
        }
    }

    pub(super) fn count(&mut self, counter: Counter, bytes: u32, write: bool) {
        count_access(self.x, self.qp, counter, bytes, write);
    }

    /// Refuses an access that failed. `whole` is the operation that it is part of.
    #[cold]
    pub(super) fn refuse_failed(
        &mut self,
        error: AccessError,
        whole: &RemoteRange,
        want: Operation,
    ) -> Refusal {
        match error {
            AccessError::Denied(denial) => self.refuse(denial, whole),
            AccessError::Fault(fault) => {
                let key = NamedKey::Remote(self.asked(whole).key);
                let (addr, len) = (whole.address, whole.length.into());
                let denial = Denial::fault(Attempt::Remote(want), key, addr, len, fault.address);
                self.report(denial);
                Refusal::Operation
            }
            AccessError::Pull(_) => Refusal::Operation,
        }
    }

    /// Reports a denial and returns the peer's status.
    #[cold]
    fn refuse(&mut self, mut denial: Box<Denial>, whole: &RemoteRange) -> Refusal {
        // Report what the peer requested, not the part where the rights ended.
        (denial.addr, denial.len) = (whole.address, whole.length.into());
        let refusal = match denial.reason {
            Reason::Misaligned => Refusal::Invalid,
            _ => Refusal::Access,
        };
        self.report(denial);
        refusal
    }

    /// Reports a denied request of the peer, and counts it if the peer may be guessing keys.
    #[cold]
    pub(super) fn report(&mut self, denial: Box<Denial>) {
        let origin = self.x.serving;
        self.x.count_guess(&origin, &denial);
        let no_device = NodeId::default();
        (self.x).report(Side::Target, self.qp, no_device, None, *denial);
    }
}

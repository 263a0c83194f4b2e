//! The engine as a state machine sees it: the queue pair's queues, and this process's memory.

use super::machine::Arriving;
use crate::checked_memory::{AccessError, Atomic as Word};
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::requester::put_prefix;
use crate::responder::{fits, take_receive};
use crate::send_queue::WqeFlags;
use rkey_base::memory::Memory;
use rkey_base::shared::{OwnBytes, PeerBytes};
use rkey_core::{Key, LocalUse, Operation};
use rkey_roce::transport::{Access, Atomic, Host, LocalFault, Receive, Refusal, RemoteRange};

/// The environment of a machine, for one call.
pub(super) struct WireHost<'a, M> {
    pub(super) x: &'a mut Context<M>,
    pub(super) qp: &'a mut Qp,
    pub(super) arriving: &'a mut Arriving,
}

impl<M: Memory> WireHost<'_, M> {
    /// Reports that memory of the request at `seq` cannot be accessed. Its completion will refer to
    /// the report.
    #[cold]
    fn fault_of_request(&mut self, seq: u64, error: AccessError) -> LocalFault {
        let (id, sges) = (self.qp.sq.wqe(seq).id, self.qp.sq.sges(seq));
        let report = self.x.report_local(self.qp, id, sges, error);
        self.qp.sq.wqe_mut(seq).vendor = report;
        LocalFault
    }
}

impl<M: Memory> Host for WireHost<'_, M> {
    fn load(&mut self, request: u64, offset: u32, to: &mut [u8]) -> Result<(), LocalFault> {
        let queue = &self.qp.sq;
        let wqe = queue.wqe(request);
        let copied = if wqe.flags.contains(WqeFlags::INLINE) {
            Some(queue.inline(request))
        } else if wqe.flags.contains(WqeFlags::KEPT) {
            queue.kept(request)
        } else {
            None
        };
        if let Some(bytes) = copied {
            let from = offset as usize;
            let bytes = bytes.get(from..from + to.len()).ok_or(LocalFault)?;
            to.copy_from_slice(bytes);
            return Ok(());
        }
        let (want, domain) = (wqe.local_use(), self.qp.config.domain);
        let into = OwnBytes::from_slice(to);
        let (into, skip) = put_prefix(queue.prefix(request), offset.into(), into);
        let sges = queue.sges(request);
        let gathered = self.x.checked.gather(domain, sges, skip, into, want);
        gathered.map_err(|error| self.fault_of_request(request, error))
    }

    fn store(&mut self, request: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        let (queue, domain) = (&self.qp.sq, self.qp.config.domain);
        let (sges, want) = (queue.sges(request), queue.wqe(request).local_use());
        let bytes = PeerBytes::from_slice(bytes);
        let checked = &self.x.checked;
        let stored = checked.scatter(domain, sges, offset.into(), bytes, want);
        stored.map_err(|error| self.fault_of_request(request, error))
    }

    fn take_receive(&mut self, least: u64) -> Option<Receive> {
        // A datagram that is too long leaves the receive for the next one.
        let least = u32::try_from(least).ok()?;
        if !fits(self.x, self.qp, least) || !take_receive(self.x, self.qp) {
            return None;
        }
        self.arriving.report = 0;
        let recv = &self.qp.resp.recv;
        Some(Receive {
            id: recv.id,
            capacity: recv.capacity,
        })
    }

    fn fill(&mut self, _receive: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        let recv = &self.qp.resp.recv;
        let bytes = PeerBytes::from_slice(bytes);
        let (domain, want) = (recv.domain, LocalUse::Recv);
        let checked = &self.x.checked;
        let stored = checked.scatter(domain, &recv.sges, offset.into(), bytes, want);
        stored.map_err(|error| {
            self.arriving.report = self.x.report_local(self.qp, recv.id, &recv.sges, error);
            LocalFault
        })
    }

    fn check(&mut self, range: &RemoteRange, access: Access) -> Result<(), Refusal> {
        let want = match access {
            Access::Read => Operation::Read,
            Access::Write => Operation::Write,
            Access::Atomic => Operation::Atomic,
        };
        let counter = self.check_operation(range, want)?;
        match access {
            // The packets of a read may be requested again, so count the read once, when it is accepted.
            Access::Read => self.count(counter, range.length, false),
            Access::Write => self.arriving.write = Some((*range, 0)),
            Access::Atomic => {}
        }
        Ok(())
    }

    fn write(&mut self, range: &RemoteRange, bytes: &[u8]) -> Result<(), Refusal> {
        let whole = self.arriving.write.map_or(*range, |(whole, _)| whole);
        self.check_queue_pair(&whole, Operation::Write)?;
        let asked = self.asked(range);
        let stored = (self.x.checked).store_remote(&asked, PeerBytes::from_slice(bytes));
        match stored {
            Ok(counter) => {
                self.stored(counter, range.length);
                Ok(())
            }
            Err(error) => Err(self.refuse_failed(error, &whole, Operation::Write)),
        }
    }

    fn read(&mut self, range: &RemoteRange, to: &mut [u8]) -> Result<(), Refusal> {
        self.check_queue_pair(range, Operation::Read)?;
        let asked = self.asked(range);
        let loaded = (self.x.checked).load_remote(&asked, OwnBytes::from_slice(to));
        loaded
            .map(drop)
            .map_err(|error| self.refuse_failed(error, range, Operation::Read))
    }

    fn atomic(&mut self, range: &RemoteRange, operation: Atomic) -> Result<u64, Refusal> {
        self.check_queue_pair(range, Operation::Atomic)?;
        let what = match operation {
            Atomic::CompareSwap { compare, swap } => Word::CompareSwap(compare, swap),
            Atomic::FetchAdd { add } => Word::FetchAdd(add),
        };
        match self.x.checked.atomic(&self.asked(range), what) {
            Ok((old, counter)) => {
                self.count(counter, 8, true);
                Ok(old)
            }
            Err(error) => Err(self.refuse_failed(error, range, Operation::Atomic)),
        }
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Refusal> {
        let protection = &self.x.checked.protection;
        let done = protection.invalidate(Key(rkey), &self.qp.accessor(), true);
        done.map_err(|denial| {
            self.report(denial);
            Refusal::Access
        })
    }
}

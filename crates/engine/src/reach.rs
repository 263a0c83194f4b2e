//! What an engine may touch: the protection table and the memory behind it.
//!
//! Everything here asks the table first, touches exactly the bytes of the lease, and gives the
//! lease back before it returns. A payload that is spread over several scatter/gather elements,
//! or a region that is spread over several pieces, is walked part by part.

use crate::Sge;
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::range::VaRange;
use rkey_base::shared::{Foreign, Place};
use rkey_core::{
    Accessor, Attempt, Denial, DomainId, Lease, LocalUse, NamedKey, Operation, Protection, Section,
    WireKey,
};
use rkey_link::PullError;
use std::sync::Arc;

/// Why bytes could not be moved.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The table refused.
    Denied(Box<Denial>),
    /// The memory is not there.
    Fault(Fault),
    /// The peer's memory could not be reached.
    Pull(PullError),
}

impl From<Box<Denial>> for Trouble {
    fn from(denial: Box<Denial>) -> Self {
        Self::Denied(denial)
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<PullError> for Trouble {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Local(fault) => Self::Fault(fault),
            other => Self::Pull(other),
        }
    }
}

/// A part of somebody's memory, as a request of a queue pair names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) who: Accessor,
    pub(crate) key: WireKey,
    pub(crate) addr: u64,
}

/// The counter of a region, if one is bound to it.
pub(crate) type Counter = Option<u32>;

/// Its checks are made in a section: whoever ends a region passes through the lock of the engine
/// before the memory is anybody else's (see [`Section`]).
pub(crate) struct Reach<M> {
    pub(crate) protection: Arc<Protection>,
    section: Section,
    pub(crate) memory: M,
    /// New requests do not name our memory to peers: their payload travels.
    pub(crate) held_back: bool,
}

impl<M> Reach<M> {
    pub(crate) fn new(protection: Arc<Protection>, memory: M) -> Self {
        let section = protection.section();
        Self {
            protection,
            section,
            memory,
            held_back: false,
        }
    }
}

impl<M: Memory> Reach<M> {
    /// Calls `touch` for each part of the bytes `offset .. offset + len` of `sges`, in order, with
    /// how many bytes came before it.
    fn walk(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        len: u64,
        want: LocalUse,
        mut touch: impl FnMut(VaRange, u64) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let (mut skip, mut done) = (offset, 0);
        for sge in sges {
            if done == len {
                break;
            }
            let size = u64::from(sge.len);
            if skip >= size {
                skip -= size;
                continue;
            }
            let part = (size - skip).min(len - done);
            let addr = sge.addr.wrapping_add(skip);
            let lease =
                self.protection
                    .check_local_in(&self.section, domain, sge.key, addr, part, want)?;
            for_spans(&lease, |span, before| touch(span, done + before))
                .map_err(|trouble| explain(trouble, sge, addr, part, want))?;
            done += part;
            skip = 0;
        }
        Ok(())
    }

    /// Whether these bytes may be used.
    pub(crate) fn check_sges(
        &self,
        domain: DomainId,
        sges: &[Sge],
        len: u64,
        want: LocalUse,
    ) -> Result<(), Trouble> {
        self.walk(domain, sges, 0, len, want, |_, _| Ok(()))
    }

    /// Fills `place` from `sges`, starting `offset` bytes into them.
    #[inline]
    pub(crate) fn gather(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        mut place: Place<'_>,
        want: LocalUse,
    ) -> Result<(), Trouble> {
        let len = place.len() as u64;
        if let [sge] = sges {
            let addr = sge.addr.wrapping_add(offset);
            let lease =
                self.protection
                    .check_local_in(&self.section, domain, sge.key, addr, len, want);
            let lease = held(&lease)?;
            if let Some(span) = lease.single() {
                return self
                    .memory
                    .load(place, span.start())
                    .map_err(|fault| explain(fault.into(), sge, addr, len, want));
            }
        }
        let all = &mut place;
        self.walk(domain, sges, offset, len, want, |span, before| {
            let (_, rest) = all.reborrow().split(before as usize);
            let (part, _) = rest.split(span.len() as usize);
            Ok(self.memory.load(part, span.start())?)
        })
    }

    /// Stores `bytes` to `sges`, starting `offset` bytes into them.
    #[inline(always)]
    pub(crate) fn scatter(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        bytes: Foreign<'_>,
        want: LocalUse,
    ) -> Result<(), Trouble> {
        let len = bytes.len() as u64;
        if let [sge] = sges {
            let addr = sge.addr.wrapping_add(offset);
            let lease =
                self.protection
                    .check_local_in(&self.section, domain, sge.key, addr, len, want);
            let lease = held(&lease)?;
            if let Some(span) = lease.single() {
                return self
                    .memory
                    .store(span.start(), bytes)
                    .map_err(|fault| explain(fault.into(), sge, addr, len, want));
            }
        }
        self.scatter_any(domain, sges, offset, bytes, want)
    }

    /// [`scatter`](Self::scatter) for any list.
    #[inline(never)]
    fn scatter_any(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        bytes: Foreign<'_>,
        want: LocalUse,
    ) -> Result<(), Trouble> {
        let len = bytes.len() as u64;
        self.walk(domain, sges, offset, len, want, |span, before| {
            self.store_part(span, bytes, before)
        })
    }

    /// Calls `touch` for each part of the bytes of `sges`; see [`Self::walk`].
    pub(crate) fn each_local(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        len: u64,
        want: LocalUse,
        touch: impl FnMut(VaRange, u64) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        self.walk(domain, sges, offset, len, want, touch)
    }

    /// Calls `touch` for each part of the `len` bytes that a peer asked for.
    pub(crate) fn each_remote(
        &self,
        asked: &Asked,
        len: u64,
        want: Operation,
        touch: impl FnMut(VaRange, u64) -> Result<(), Trouble>,
    ) -> Result<Counter, Trouble> {
        let lease = self.lease(asked, len, want)?;
        for_spans(&lease, touch)?;
        Ok(lease.counter())
    }

    /// Stores what a peer wrote.
    #[inline(always)]
    pub(crate) fn store_remote(
        &self,
        asked: &Asked,
        bytes: Foreign<'_>,
    ) -> Result<Counter, Trouble> {
        let lease = self.lease(asked, bytes.len() as u64, Operation::Write);
        let lease = held(&lease)?;
        match lease.single() {
            Some(span) => self.memory.store(span.start(), bytes)?,
            None => for_spans(lease, |span, before| self.store_part(span, bytes, before))?,
        }
        Ok(lease.counter())
    }

    /// Loads what a peer reads.
    #[inline]
    pub(crate) fn load_remote(
        &self,
        asked: &Asked,
        mut place: Place<'_>,
    ) -> Result<Counter, Trouble> {
        let lease = self.lease(asked, place.len() as u64, Operation::Read);
        let lease = held(&lease)?;
        if let Some(span) = lease.single() {
            self.memory.load(place, span.start())?;
        } else {
            for_spans(lease, |span, before| {
                let (_, rest) = place.reborrow().split(before as usize);
                let (part, _) = rest.split(span.len() as usize);
                Ok(self.memory.load(part, span.start())?)
            })?;
        }
        Ok(lease.counter())
    }

    /// Carries out an atomic; gives the old value.
    pub(crate) fn atomic(
        &self,
        asked: &Asked,
        run: impl FnOnce(&M, u64) -> Result<u64, Fault>,
    ) -> Result<(u64, Counter), Trouble> {
        let lease = self.lease(asked, 8, Operation::Atomic);
        let lease = held(&lease)?;
        // The table refuses an atomic that is not in one piece.
        let span = lease
            .single()
            .or_else(|| lease.spans().next())
            .filter(|span| span.len() == 8);
        let Some(span) = span else {
            return Err(Fault::at(asked.addr).into());
        };
        Ok((run(&self.memory, span.start())?, lease.counter()))
    }

    #[inline(always)]
    pub(crate) fn lease(
        &self,
        asked: &Asked,
        len: u64,
        want: Operation,
    ) -> Result<Lease<'_>, Box<Denial>> {
        self.protection
            .check_remote_in(&self.section, &asked.who, asked.key, asked.addr, len, want)
    }

    fn store_part(&self, span: VaRange, bytes: Foreign<'_>, before: u64) -> Result<(), Trouble> {
        let part = bytes.slice(before as usize, span.len() as usize);
        // The spans of a lease add up to its length, which is that of `bytes`.
        let part = part.ok_or(Fault::at(span.start()))?;
        Ok(self.memory.store(span.start(), part)?)
    }
}

/// The lease of an answer, where it lies: moving one costs more than asking for it.
#[inline(always)]
fn held<'a, 'l>(answer: &'a Result<Lease<'l>, Box<Denial>>) -> Result<&'a Lease<'l>, Trouble> {
    match answer {
        Ok(lease) => Ok(lease),
        Err(denial) => Err(Trouble::Denied(denial.clone())),
    }
}

/// A fault of local memory, told like a refusal.
#[cold]
fn explain(trouble: Trouble, sge: &Sge, addr: u64, len: u64, want: LocalUse) -> Trouble {
    match trouble {
        Trouble::Fault(fault) => Trouble::Denied(Denial::fault(
            Attempt::Local(want),
            NamedKey::Local(sge.key),
            addr,
            len,
            fault.address,
        )),
        other => other,
    }
}

fn for_spans(
    lease: &Lease<'_>,
    mut touch: impl FnMut(VaRange, u64) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    if let Some(span) = lease.single() {
        return touch(span, 0);
    }
    let mut before = 0;
    for span in lease.spans() {
        touch(span, before)?;
        before += span.len();
    }
    Ok(())
}

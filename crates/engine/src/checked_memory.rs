//! Every access to memory, with the check in the protection table that precedes it.
//!
//! Every function that touches memory first checks with the table, touches exactly the bytes of the grant, and drops
//! the grant before it returns. A payload in several scatter/gather entries, or a region of several segments, is
//! walked part by part.

use crate::Sge;
use rkey_base::fault::Fault;
use rkey_base::foreign::Span;
use rkey_base::memory::Memory;
use rkey_base::shared::{OwnBytes, PeerBytes};
use rkey_core::{
    Accessor, Attempt, Denial, DomainId, FastGrant, Grant, LocalUse, NamedKey, Operation,
    Protection, RKey, Section,
};
use rkey_link::PullError;
use std::sync::Arc;

/// Why bytes could not be moved.
#[derive(Debug)]
pub(crate) enum AccessError {
    /// The protection table denied the access.
    Denied(Box<Denial>),
    /// The memory is not mapped.
    Fault(Fault),
    /// The peer's memory could not be reached.
    Pull(PullError),
}

impl From<Box<Denial>> for AccessError {
    fn from(denial: Box<Denial>) -> Self {
        Self::Denied(denial)
    }
}

impl From<Fault> for AccessError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<PullError> for AccessError {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Local(fault) => Self::Fault(fault),
            other => Self::Pull(other),
        }
    }
}

/// The range of memory that a request of a queue pair names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedRange {
    pub(crate) who: Accessor,
    pub(crate) key: RKey,
    pub(crate) addr: u64,
}

/// An atomic on a word, with its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareSwap(u64, u64),
    FetchAdd(u64),
}

impl Atomic {
    #[inline(always)]
    fn run<M: Memory>(self, memory: &M, va: u64) -> Result<u64, Fault> {
        match self {
            Self::CompareSwap(compare, swap) => memory.compare_swap(va, compare, swap),
            Self::FetchAdd(add) => memory.fetch_add(va, add),
        }
    }
}

/// The counter of a region, if one is bound to it.
pub(crate) type Counter = Option<u32>;

/// The memory of this process, guarded by the protection table. The table's checks run in a [`Section`].
pub(crate) struct CheckedMemory<M> {
    pub(crate) protection: Arc<Protection>,
    pub(crate) section: Section,
    pub(crate) memory: M,
    /// Set if new requests must not name our memory to peers, and must carry their payload instead.
    pub(crate) no_remote_iovecs: bool,
}

impl<M> CheckedMemory<M> {
    pub(crate) fn new(section: Section, memory: M) -> Self {
        Self {
            protection: Arc::clone(section.protection()),
            section,
            memory,
            no_remote_iovecs: false,
        }
    }
}

impl<M: Memory> CheckedMemory<M> {
    /// Calls `touch` for each part of the bytes `offset .. offset + len` of `sges`, in order, with the number of bytes
    /// before that part.
    fn walk(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        len: u64,
        want: LocalUse,
        mut touch: impl FnMut(Span<'_>, u64) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
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
            let grant = self
                .section
                .check_local(domain, sge.key, addr, part, want)?;
            for_spans(&grant, |span, before| touch(span, done + before))
                .map_err(|trouble| explain(trouble, sge, addr, part, want))?;
            done += part;
            skip = 0;
        }
        Ok(())
    }

    /// Checks that the first `len` bytes of `sges` may be used for `want`.
    pub(crate) fn check_sges(
        &self,
        domain: DomainId,
        sges: &[Sge],
        len: u64,
        want: LocalUse,
    ) -> Result<(), AccessError> {
        self.walk(domain, sges, 0, len, want, |_, _| Ok(()))
    }

    /// Fills `into` with the bytes of `sges` from byte `offset` on.
    // Inlined, it would cost posts without entries the registers that they need (measured: `rkey bench --count`).
    #[inline(never)]
    pub(crate) fn gather(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        mut into: OwnBytes<'_>,
        want: LocalUse,
    ) -> Result<(), AccessError> {
        let len = into.len() as u64;
        if let [sge] = sges {
            let addr = sge.addr.wrapping_add(offset);
            let section = &self.section;
            if let Some(grant) = section.fast_check_local(domain, sge.key, addr, len, want) {
                return self
                    .memory
                    .load(into, grant.memory.start())
                    .map_err(|fault| explain(fault.into(), sge, addr, len, want));
            }
        }
        let all = &mut into;
        self.walk(domain, sges, offset, len, want, |span, before| {
            let (_, rest) = all.reborrow().split(before as usize);
            let (part, _) = rest.split(span.len() as usize);
            Ok(span.load(&self.memory, part)?)
        })
    }

    /// Stores `bytes` to `sges`, starting at byte `offset`.
    #[inline(always)]
    pub(crate) fn scatter(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        bytes: PeerBytes<'_>,
        want: LocalUse,
    ) -> Result<(), AccessError> {
        let len = bytes.len() as u64;
        if let [sge] = sges {
            let addr = sge.addr.wrapping_add(offset);
            let section = &self.section;
            if let Some(grant) = section.fast_check_local(domain, sge.key, addr, len, want) {
                return self
                    .memory
                    .store(grant.memory.start(), bytes)
                    .map_err(|fault| explain(fault.into(), sge, addr, len, want));
            }
        }
        self.scatter_any(domain, sges, offset, bytes, want)
    }

    /// Like [`scatter`](Self::scatter), for any list.
    #[inline(never)]
    fn scatter_any(
        &self,
        domain: DomainId,
        sges: &[Sge],
        offset: u64,
        bytes: PeerBytes<'_>,
        want: LocalUse,
    ) -> Result<(), AccessError> {
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
        touch: impl FnMut(Span<'_>, u64) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        self.walk(domain, sges, offset, len, want, touch)
    }

    /// Calls `touch` for each part of the `len` bytes that a peer requested.
    pub(crate) fn each_remote(
        &self,
        range: &RequestedRange,
        len: u64,
        want: Operation,
        touch: impl FnMut(Span<'_>, u64) -> Result<(), AccessError>,
    ) -> Result<Counter, AccessError> {
        let grant = self.grant(range, len, want)?;
        for_spans(&grant, touch)?;
        Ok(grant.counter())
    }

    /// Stores what a peer wrote.
    #[inline(always)]
    pub(crate) fn store_remote(
        &self,
        range: &RequestedRange,
        bytes: PeerBytes<'_>,
    ) -> Result<Counter, AccessError> {
        let grant = self.grant(range, bytes.len() as u64, Operation::Write);
        let grant = borrow_grant(&grant)?;
        match grant.single() {
            Some(span) => self.memory.store(span.start(), bytes)?,
            None => self.store_spans(grant, bytes)?,
        }
        Ok(grant.counter())
    }

    /// Like [`Self::store_remote`], on the fast path of the check only. `None` if [`Self::store_remote`] must decide; some bytes may have
    /// been stored.
    #[inline(always)]
    pub(crate) fn try_store_remote(
        &self,
        range: &RequestedRange,
        bytes: PeerBytes<'_>,
    ) -> Option<Counter> {
        let grant = self.fast_grant(range, bytes.len() as u64, Operation::Write)?;
        let stored = self.memory.store(grant.memory.start(), bytes);
        stored.ok().map(|()| grant.counter)
    }

    /// Like [`Self::load_remote`], on the fast path of the check only. `None` if [`Self::load_remote`] must decide.
    #[inline(always)]
    pub(crate) fn try_load_remote(
        &self,
        range: &RequestedRange,
        into: OwnBytes<'_>,
    ) -> Option<Counter> {
        let grant = self.fast_grant(range, into.len() as u64, Operation::Read)?;
        let loaded = self.memory.load(into, grant.memory.start());
        loaded.ok().map(|()| grant.counter)
    }

    /// Like [`Self::atomic`], on the fast path of the check only. `None` if [`Self::atomic`] must decide; then the atomic has not
    /// been executed.
    #[inline(always)]
    pub(crate) fn try_atomic(
        &self,
        range: &RequestedRange,
        what: Atomic,
    ) -> Option<(u64, Counter)> {
        let grant = self.fast_grant(range, 8, Operation::Atomic)?;
        let old = what.run(&self.memory, grant.memory.start());
        old.ok().map(|old| (old, grant.counter))
    }

    /// Loads what a peer reads.
    #[inline]
    pub(crate) fn load_remote(
        &self,
        range: &RequestedRange,
        into: OwnBytes<'_>,
    ) -> Result<Counter, AccessError> {
        let grant = self.grant(range, into.len() as u64, Operation::Read);
        let grant = borrow_grant(&grant)?;
        match grant.single() {
            Some(span) => self.memory.load(into, span.start())?,
            None => self.load_spans(grant, into)?,
        }
        Ok(grant.counter())
    }

    /// Loads from several spans, or from foreign memory. Out of line, so that the usual case needs no extra registers.
    #[cold]
    #[inline(never)]
    fn load_spans(&self, grant: &Grant<'_>, mut into: OwnBytes<'_>) -> Result<(), AccessError> {
        for_spans(grant, |span, before| {
            let (_, rest) = into.reborrow().split(before as usize);
            let (part, _) = rest.split(span.len() as usize);
            Ok(span.load(&self.memory, part)?)
        })
    }

    /// Stores to several spans, or to foreign memory.
    #[cold]
    #[inline(never)]
    fn store_spans(&self, grant: &Grant<'_>, bytes: PeerBytes<'_>) -> Result<(), AccessError> {
        for_spans(grant, |span, before| self.store_part(span, bytes, before))
    }

    /// Executes an atomic; returns the old value. On foreign memory it is atomic only with respect to other atomics of
    /// this engine.
    pub(crate) fn atomic(
        &self,
        range: &RequestedRange,
        what: Atomic,
    ) -> Result<(u64, Counter), AccessError> {
        let grant = self.grant(range, 8, Operation::Atomic);
        let grant = borrow_grant(&grant)?;
        // The table denies an atomic that crosses segments.
        let old = match grant.single() {
            Some(word) if word.len() == 8 => what.run(&self.memory, word.start())?,
            _ => self.atomic_on_span(grant, range, what)?,
        };
        Ok((old, grant.counter()))
    }

    /// An atomic on a word of a scatter list, or of foreign memory.
    #[cold]
    #[inline(never)]
    fn atomic_on_span(
        &self,
        grant: &Grant<'_>,
        range: &RequestedRange,
        what: Atomic,
    ) -> Result<u64, Fault> {
        match grant.spans().next().filter(|span| span.len() == 8) {
            Some(word) if word.in_process().is_some() => what.run(&self.memory, word.start()),
            Some(word) => what.run(&word.as_target(&self.memory), word.start()),
            None => Err(Fault::at(range.addr)),
        }
    }

    #[inline(always)]
    pub(crate) fn grant(
        &self,
        range: &RequestedRange,
        len: u64,
        want: Operation,
    ) -> Result<Grant<'_>, Box<Denial>> {
        self.section
            .check_remote(&range.who, range.key, range.addr, len, want)
    }

    /// Like [`Self::grant`], on the fast path of the check only. `None` if [`Self::grant`] must decide.
    #[inline(always)]
    fn fast_grant(
        &self,
        range: &RequestedRange,
        len: u64,
        want: Operation,
    ) -> Option<FastGrant<'_>> {
        self.section
            .fast_check_remote(&range.who, range.key, range.addr, len, want)
    }

    fn store_part(
        &self,
        span: Span<'_>,
        bytes: PeerBytes<'_>,
        before: u64,
    ) -> Result<(), AccessError> {
        let part = bytes.slice(before as usize, span.len() as usize);
        // The spans of a grant add up to its length, which is the length of `bytes`.
        let part = part.ok_or(Fault::at(span.start()))?;
        Ok(span.store(&self.memory, part)?)
    }
}

/// Borrows the grant in place: moving a grant costs more than the check that issues it.
#[inline(always)]
fn borrow_grant<'a, 'l>(
    answer: &'a Result<Grant<'l>, Box<Denial>>,
) -> Result<&'a Grant<'l>, AccessError> {
    match answer {
        Ok(grant) => Ok(grant),
        Err(denial) => Err(AccessError::Denied(denial.clone())),
    }
}

/// Makes a denial of a part of a scatter/gather entry name the whole entry, which is what the program posted.
#[cold]
pub(crate) fn name_element(denial: &mut Denial, sges: &[Sge]) {
    let NamedKey::Local(key) = denial.key else {
        return;
    };
    let (addr, len) = (denial.addr, denial.len);
    let is_inside = |sge: &&Sge| {
        let before = addr.wrapping_sub(sge.addr);
        let end = before.checked_add(len);
        sge.key == key && before > 0 && end.is_some_and(|end| end <= u64::from(sge.len))
    };
    if let Some(sge) = sges.iter().find(is_inside) {
        (denial.addr, denial.len) = (sge.addr, sge.len.into());
    }
}

/// Turns a fault of local memory into a denial.
#[cold]
fn explain(trouble: AccessError, sge: &Sge, addr: u64, len: u64, want: LocalUse) -> AccessError {
    match trouble {
        AccessError::Fault(fault) => AccessError::Denied(Denial::fault(
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
    grant: &Grant<'_>,
    mut touch: impl FnMut(Span<'_>, u64) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    if let Some(span) = grant.single() {
        return touch(Span::system(span), 0);
    }
    let mut before = 0;
    for span in grant.spans() {
        touch(span, before)?;
        before += span.len();
    }
    Ok(())
}

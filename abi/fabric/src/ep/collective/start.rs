//! The start of a collective operation: what a call has to keep, and where its bytes are meanwhile. A source is the
//! program's own again when the call returns; a result is written when the operation is complete.

use super::calls::FLAGS;
use super::run::{End, Run};
use super::*;
use crate::cq::Entry;
use crate::ep::atomic::{self, data_type, operation};
use crate::ep::send::Descriptors;
use crate::info::offer::IOV_LIMIT;
use crate::mr::local;
use libc::iovec;
use rkey_device::core::LocalUse;
use rkey_rdm::atomic::{DataType, Op};
use rkey_rdm::collective::kind::Kind;
use rkey_rdm::collective::plan::Plan;
use std::ffi::c_void;

/// Memory of the program's: one buffer as long as it has to be, or a list.
#[derive(Clone, Copy)]
pub(super) enum Memory<'a> {
    One(*mut c_void, *mut c_void),
    List(&'a [Ioc], Descriptors<'a>),
}

/// An operation, as the program asks for it.
pub(super) struct Asked<'a> {
    pub(super) kind: Kind,
    pub(super) source: Memory<'a>,
    pub(super) result: Memory<'a>,
    /// Elements that a member has for another, or for all; without that it follows from the lists.
    pub(super) count: Option<usize>,
    pub(super) group: u64,
    pub(super) root: u64,
    pub(super) datatype: c_int,
    pub(super) op: c_int,
    pub(super) context: *mut c_void,
    /// Without flags those of the endpoint hold.
    pub(super) flags: Option<u64>,
}

/// Our place in a group.
#[derive(Clone, Copy)]
struct Seat {
    n: usize,
    me: usize,
    root: usize,
}

/// Bytes of an element.
pub(super) fn element_size(kind: Kind, datatype: c_int, op: c_int) -> Result<usize> {
    match kind {
        Kind::Barrier => Ok(0),
        _ if kind.reduces() && !operation(op).is_some_and(Op::reduces) => Err(FiError::OPNOTSUPP),
        _ if kind.reduces() => Ok(atomic::limits(rkey_rdm::atomic::Kind::Base, datatype, op)?.1),
        _ => data_type(datatype)
            .and_then(DataType::size)
            .ok_or(FiError::OPNOTSUPP),
    }
}

impl Memory<'_> {
    /// Elements of a list.
    fn elements(self) -> Option<usize> {
        match self {
            Self::One(..) => None,
            Self::List(list, _) => Some(atomic::elements_of(list)),
        }
    }

    /// Its pieces, which have so many elements in all, and their descriptors.
    fn pieces(self, elements: usize, size: usize) -> Result<Vec<(iovec, *mut c_void)>> {
        let piece = |addr, len| iovec {
            iov_base: addr,
            iov_len: len,
        };
        match self {
            _ if elements == 0 => Ok(Vec::new()),
            Self::One(addr, desc) => Ok(vec![(piece(addr, elements * size), desc)]),
            Self::List(list, _) if list.len() > IOV_LIMIT => Err(FiError::INVAL),
            Self::List(list, desc) if atomic::elements_of(list) == elements => {
                let numbered = list.iter().enumerate();
                Ok(numbered
                    .map(|(at, one)| (piece(one.addr, one.count * size), desc.get(at)))
                    .collect())
            }
            Self::List(..) => {
                tracing::warn!("a list of a collective operation has not {elements} elements");
                Err(FiError::INVAL)
            }
        }
    }
}

impl Endpoint {
    /// Starts a collective operation.
    pub(super) fn collective(&self, it: &Asked<'_>) -> Result<()> {
        self.check_collective()?;
        let live = self.live()?;
        if it.flags.is_some_and(|flags| flags & !FLAGS != 0) {
            return Err(FiError::BADFLAGS);
        }
        let size = element_size(it.kind, it.datatype, it.op)?;
        let seat = self.seat(live, it)?;
        let (from, to) = it.kind.blocks(seat.n, seat.me == seat.root);
        let count = match it.count {
            Some(count) => count,
            None => {
                let of = |memory: Memory<'_>, blocks: usize| {
                    memory
                        .elements()
                        .filter(|_| blocks > 0)
                        .map(|all| all / blocks)
                };
                of(it.source, from).or(of(it.result, to)).unwrap_or(0)
            }
        };
        let block = count.checked_mul(size).ok_or(FiError::MSGSIZE)?;
        let most = from
            .max(to)
            .max(1)
            .max(if it.kind.has_root() { seat.n } else { 1 });
        if block.checked_mul(most).is_none_or(|all| all > BYTES_MAX) {
            tracing::warn!("a collective operation moves {BYTES_MAX} B at most");
            return Err(FiError::MSGSIZE);
        }
        let source = it.source.pieces(from * count, size)?;
        let result = it.result.pieces(to * count, size)?;
        let element = |(piece, desc): &(iovec, *mut c_void), usage| {
            let (at, len) = (piece.iov_base as u64, piece.iov_len);
            local::collective(&self.domain, &self.group, at, len, *desc, usage)
        };
        for piece in &source {
            element(piece, LocalUse::Send)?;
        }
        let result: Vec<Sge> = result
            .iter()
            .map(|piece| element(piece, LocalUse::Recv))
            .collect::<Result<_>>()?;
        let plan = Plan::new(it.kind, seat.n, seat.me, seat.root);
        let source: Vec<iovec> = source.iter().map(|(piece, _)| *piece).collect();
        let work = self.load(&plan, &source, block)?;
        let flags = it.flags.unwrap_or(0);
        let entry = Entry {
            context: it.context as usize,
            flags: FI_COLLECTIVE,
            ..Entry::default()
        };
        let report = Self::reports(live.tx.as_ref(), flags);
        let end = End::Completion {
            entry,
            report,
            result,
        };
        let mut run = Run::new(0, it.group, 0, plan, end);
        run.block = block;
        let reduction = data_type(it.datatype).zip(operation(it.op));
        run.reduction = reduction.filter(|_| it.kind.reduces());
        run.signature = names::signature(it.kind, seat.root, block, run.reduction);
        run.work = work;
        self.begin_run(live, run, report)
    }

    /// Our place in the group of a call, and that of the root.
    fn seat(&self, live: &Live, it: &Asked<'_>) -> Result<Seat> {
        let mut state = live.state.lock();
        let known = state.collective.as_mut();
        let group = known.and_then(|known| known.group(it.group));
        let group = group.ok_or(FiError::INVAL)?;
        let root = match it.kind.has_root() {
            false => 0,
            true => {
                let address = live.av.as_ref().and_then(|av| av.get(it.root));
                let rank = address.and_then(|address| group.rank_of(address));
                rank.ok_or_else(|| {
                    tracing::warn!("the root of a collective operation is no member of the group");
                    FiError::INVAL
                })?
            }
        };
        Ok(Seat {
            n: group.members.len(),
            me: group.rank,
            root,
        })
    }

    /// The working memory of a plan, with the source in it.
    fn load(&self, plan: &Plan, source: &[iovec], block: usize) -> Result<Vec<u8>> {
        let mut bytes = zeroed(plan.load.len() * block)?;
        self.gather(source, &mut bytes)?;
        let in_order = plan.load.iter().enumerate().all(|(from, &to)| from == to);
        if in_order && !plan.load.is_empty() {
            bytes
                .try_reserve_exact(plan.blocks * block - bytes.len())
                .map_err(|_| FiError::NOMEM)?;
            bytes.resize(plan.blocks * block, 0);
            return Ok(bytes);
        }
        let mut work = zeroed(plan.blocks * block)?;
        for (from, &to) in plan.load.iter().enumerate() {
            let there = &bytes[from * block..(from + 1) * block];
            work[to * block..(to + 1) * block].copy_from_slice(there);
        }
        Ok(work)
    }

    /// Numbers an operation, and lets it begin.
    fn begin_run(&self, live: &Live, mut run: Run, report: bool) -> Result<()> {
        let mut guard = live.state.lock();
        let state = &mut *guard;
        let full = |state: &State| {
            let runs = state.collective.as_ref().map_or(0, |it| it.runs.len());
            runs >= RUNS_MAX || report && live.tx.as_ref().is_some_and(|tx| tx.cq.is_full())
        };
        if full(state) {
            self.advance(live, state);
            if full(state) {
                return Err(FiError::AGAIN);
            }
        }
        let it = state.collective.get_or_insert_default();
        let group = it.groups.iter_mut().find(|it| it.address == run.group);
        let group = group.ok_or(FiError::INVAL)?;
        if let Some(error) = group.broken {
            return Err(error);
        }
        if !group.joined {
            tracing::warn!("a collective group is used before FI_JOIN_COMPLETE");
            return Err(FiError::OPBADSTATE);
        }
        run.seq = group.next;
        group.next = match run.seq + 1 {
            inbox::LEFT => 1,
            next => next,
        };
        it.started += 1;
        run.number = it.started;
        it.runs.push(run);
        self.carry_on(live, state);
        Ok(())
    }
}

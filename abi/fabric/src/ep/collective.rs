//! Starts collective operations: checks the arguments, and copies the source, so that the program may reuse it when the
//! call returns. The result is valid once the operation has completed.

use super::atomic::elements_of;
use super::datatype::{self, data_type, operation};
use super::group::check;
use super::payload::{gather, load};
use super::report::{Counts, Posted};
use super::send::Descriptors;
use super::*;
use crate::info::offer::IOV_LIMIT;
use crate::mr::buffers::Held;
use crate::mr::local;
use libc::iovec;
use rkey_device::core::LocalUse;
use rkey_device::time;
use rkey_rdm::atomic::{DataType, Op};
use rkey_rdm::collective::BYTES_MAX;
use rkey_rdm::collective::kind::Kind;
use rkey_rdm::endpoint::{Call, Groups};
use rkey_rdm::error::Error;
use std::ffi::c_void;

/// The flags that the program may pass.
const FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE;

/// The program's memory: one buffer of the required length, or a list.
#[derive(Clone, Copy)]
pub(super) enum Memory<'a> {
    One(*mut c_void, *mut c_void),
    List(&'a [Ioc], Descriptors<'a>),
}

/// An operation, as the program requests it.
pub(super) struct CollectiveArgs<'a> {
    pub(super) kind: Kind,
    pub(super) source: Memory<'a>,
    pub(super) result: Memory<'a>,
    /// Elements per block, as the program passed it; if `None`, the lists decide (see [`Self::elements_per_block`]).
    pub(super) count: Option<usize>,
    pub(super) group: u64,
    pub(super) root: u64,
    pub(super) datatype: c_int,
    pub(super) op: c_int,
    pub(super) context: *mut c_void,
    /// `None`: the endpoint's default flags, which the function tables fill in.
    pub(super) flags: Option<u64>,
}

/// The size of a group, our rank in it, and the root's.
#[derive(Clone, Copy)]
struct Seat {
    n: usize,
    me: usize,
    root: usize,
}

/// The size of an element, in bytes.
pub(super) fn element_size(kind: Kind, datatype: c_int, op: c_int) -> Result<usize> {
    match kind {
        Kind::Barrier => Ok(0),
        _ if kind.reduces() && !operation(op).is_some_and(Op::reduces) => Err(FiError::OPNOTSUPP),
        _ if kind.reduces() => Ok(datatype::limits(rkey_rdm::atomic::Kind::Base, datatype, op)?.1),
        _ => data_type(datatype)
            .and_then(DataType::size)
            .ok_or(FiError::OPNOTSUPP),
    }
}

impl Memory<'_> {
    /// The number of elements in a list; `None` for one buffer.
    fn elements(self) -> Option<usize> {
        match self {
            Self::One(..) => None,
            Self::List(list, _) => Some(elements_of(list)),
        }
    }

    /// The buffers and their descriptors. The buffers must have `elements` elements in total.
    fn buffers(self, elements: usize, size: usize) -> Result<Vec<(iovec, *mut c_void)>> {
        let buffer = |addr, len| iovec {
            iov_base: addr,
            iov_len: len,
        };
        match self {
            _ if elements == 0 => Ok(Vec::new()),
            Self::One(addr, desc) => Ok(vec![(buffer(addr, elements * size), desc)]),
            Self::List(list, _) if list.len() > IOV_LIMIT => Err(FiError::INVAL),
            Self::List(list, desc) if elements_of(list) == elements => {
                let numbered = list.iter().enumerate();
                Ok(numbered
                    .map(|(at, one)| (buffer(one.addr, one.count * size), desc.get(at)))
                    .collect())
            }
            Self::List(list, _) => {
                tracing::warn!(
                    "the buffers of a collective operation have {} elements in total, but must have {elements}",
                    elements_of(list)
                );
                Err(FiError::INVAL)
            }
        }
    }
}

impl CollectiveArgs<'_> {
    /// The number of elements of a block: the program's count, or else the length of the source list divided by its `from`
    /// blocks, or of the result list divided by its `to` blocks.
    fn elements_per_block(&self, from: usize, to: usize) -> usize {
        self.count.unwrap_or_else(|| {
            let of = |memory: Memory<'_>, blocks: usize| {
                let elements = memory.elements().filter(|_| blocks > 0);
                elements.map(|all| all / blocks)
            };
            of(self.source, from).or(of(self.result, to)).unwrap_or(0)
        })
    }
}

/// The size of a block in bytes. The operation moves `blocks` blocks, or one for each of the `members` if that is more.
///
/// # Errors
/// `FI_EMSGSIZE`: the blocks together are too large.
fn block_size(count: usize, size: usize, blocks: usize, members: Option<usize>) -> Result<usize> {
    let most = blocks.max(members.unwrap_or(1)).max(1);
    let fits = |block: &usize| block.checked_mul(most).is_some_and(|all| all <= BYTES_MAX);
    count.checked_mul(size).filter(fits).ok_or_else(|| {
        tracing::warn!(
            "a collective operation of {most} blocks of {count} elements of {size} B is too large: it can move at most {BYTES_MAX} B"
        );
        FiError::MSGSIZE
    })
}

impl Endpoint {
    /// Starts a collective operation.
    pub(super) fn collective(&self, it: &CollectiveArgs<'_>) -> Result<()> {
        check(self.ep_type, self.caps)?;
        let live = self.live()?;
        if it.flags.is_some_and(|flags| flags & !FLAGS != 0) {
            return Err(FiError::BADFLAGS);
        }
        let size = element_size(it.kind, it.datatype, it.op)?;
        let seat = self.seat(live, it)?;
        let (from, to) = it.kind.blocks(seat.n, seat.me == seat.root);
        let count = it.elements_per_block(from, to);
        let block = block_size(
            count,
            size,
            from.max(to),
            it.kind.has_root().then_some(seat.n),
        )?;
        let source = it.source.buffers(from * count, size)?;
        let result = it.result.buffers(to * count, size)?;
        let mut held = Held::default();
        let mut sge = |(buffer, desc): &(iovec, *mut c_void), usage| {
            let place = (buffer.iov_base as u64, buffer.iov_len);
            local::collective(&self.domain, &self.pd, place, *desc, usage, &mut held)
        };
        let sources: Vec<Sge> = source
            .iter()
            .map(|buffer| sge(buffer, LocalUse::Send))
            .collect::<Result<_>>()?;
        let result: Vec<Sge> = result
            .iter()
            .map(|buffer| sge(buffer, LocalUse::Recv))
            .collect::<Result<_>>()?;
        let source: Vec<iovec> = source.iter().map(|(buffer, _)| *buffer).collect();
        let reduction = data_type(it.datatype).zip(operation(it.op));
        let call = Call {
            group: it.group,
            seat: (seat.n, seat.me),
            kind: it.kind,
            root: seat.root,
            block,
            reduction: reduction.filter(|_| it.kind.reduces()),
            result,
        };
        let loaded = call.load(|into| {
            let loaded = match self.domain.hmem {
                true => load(&self.domain, &self.pd, &sources, into, LocalUse::Send),
                false => gather(&self.domain, &source, into),
            };
            Ok(loaded?)
        })?;
        let posted = Posted {
            context: it.context as usize,
            flags: FI_COLLECTIVE,
            report: BoundCq::reports(live.host.tx.as_ref(), it.flags.unwrap_or(0)),
            counts: Counts::Endpoint(WRITTEN),
            held,
        };
        let mut state = live.state.lock();
        let full = |state: &State| {
            let tx = live.host.tx.as_ref();
            state.rdm.groups().is_some_and(Groups::is_full)
                || posted.report && tx.is_some_and(|tx| tx.cq.is_full())
        };
        if full(&state) {
            live.advance(&mut state);
            if full(&state) {
                return Err(FiError::AGAIN);
            }
        }
        let rdm = &mut state.rdm;
        let begun = rdm.collective(&live.host, loaded, posted, time::now());
        begun.map_err(|error| match error {
            Error::NotConnected if !rdm.groups().is_some_and(|all| all.has_joined(it.group)) => {
                tracing::warn!(
                    "a collective operation was started too early: first read the FI_JOIN_COMPLETE event of its group"
                );
                FiError::OPBADSTATE
            }
            error => error.into(),
        })
    }

    /// The size of the group of a call, our rank in it, and the root's.
    fn seat(&self, live: &Live, it: &CollectiveArgs<'_>) -> Result<Seat> {
        let state = live.state.lock();
        let groups = state.rdm.groups().ok_or(FiError::INVAL)?;
        let (n, me) = groups.seat(it.group).ok_or(FiError::INVAL)?;
        let root = match it.kind.has_root() {
            false => 0,
            true => {
                let address = live.host.av.as_ref().and_then(|av| av.get(it.root));
                let rank = address.and_then(|address| groups.rank_of(it.group, address));
                rank.ok_or_else(|| {
                    tracing::warn!(
                        "root_addr {:#x} of a collective operation is not a member of the group",
                        it.root
                    );
                    FiError::INVAL
                })?
            }
        };
        Ok(Seat { n, me, root })
    }
}

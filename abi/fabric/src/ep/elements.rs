//! Elements of transfers: mostly one, which needs no list of its own.

use super::send::Descriptors;
use crate::domain::{Domain, Group};
use crate::errno::{FiError, Result};
use crate::info::offer::IOV_LIMIT;
use crate::mr::local;
use libc::iovec;
use rkey_device::core::LocalUse;
use rkey_device::engine::Sge;
use smallvec::{SmallVec, smallvec};

/// Pieces of local memory.
pub(crate) type Sges = SmallVec<[Sge; 1]>;

/// The elements for a list of local buffers.
#[inline]
pub(super) fn elements(
    domain: &Domain,
    group: &Group,
    iov: &[iovec],
    desc: Descriptors<'_>,
    usage: LocalUse,
) -> Result<Sges> {
    let one = |index: usize, piece: &iovec| {
        let at = piece.iov_base as u64;
        local::element(domain, group, at, piece.iov_len, desc.get(index), usage)
    };
    if let [piece] = iov {
        return Ok(smallvec![one(0, piece)?]);
    }
    if iov.len() > IOV_LIMIT {
        return Err(FiError::INVAL);
    }
    let each = iov.iter().enumerate();
    each.map(|(index, piece)| one(index, piece)).collect()
}

/// A part of some local memory.
pub(super) fn part(sges: &[Sge], mut skip: usize, mut len: usize) -> Sges {
    let part = |sge: &Sge| {
        let before = skip.min(sge.len as usize);
        skip -= before;
        let take = (sge.len as usize - before).min(len);
        len -= take;
        (take > 0).then(|| Sge {
            addr: sge.addr.wrapping_add(before as u64),
            len: take as u32,
            key: sge.key,
        })
    };
    sges.iter().filter_map(part).collect()
}

//! `fi_rma`: reads and writes of a peer's memory.
//!
//! They are work requests on the connection, which the peer's device executes.

use super::options::Limits;
use super::payload::{gather, sges};
use super::report::{Deferred, Posted};
use super::send::{Descriptors, total};
use super::*;
use crate::info::offer::RMA_IOV_LIMIT;
use crate::mr::buffers::Held;
use crate::mr::{local, raw};
use libc::iovec;
use rkey_device::core::{LocalUse, RKey};
use rkey_device::engine::{Sge, Target};
use rkey_rdm::commit::RemoteRange;
use rkey_rdm::endpoint::{self, Memory, PlainTransfer};
use rkey_rdm::operation_id::{Form, Plain};
use smallvec::{SmallVec, smallvec};
use std::ffi::c_void;

/// A transfer between local and remote memory.
pub(super) struct Transfer<'a> {
    pub(super) iov: &'a [iovec],
    pub(super) desc: Descriptors<'a>,
    pub(super) peer: u64,
    pub(super) remote: &'a [RmaIov],
    pub(super) data: Option<u64>,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) deferred: Option<&'a Deferred>,
}

/// The remote key for the program's key at the peer of a connection.
pub(super) fn rkey(ep: &Endpoint, device_keys: bool, key: u64) -> Result<RKey> {
    raw::resolve(&ep.domain, key, device_keys).ok_or_else(|| {
        rkey_device::denials::refused(&format!(
            "key {key:#x} was not mapped with fi_mr_map_raw, as the domain's FI_MR_RAW requires"
        ));
        FiError::NOKEY
    })
}

impl<'a> Transfer<'a> {
    /// The buffer and the remote range, if there is one of each and the transfer asks for nothing that a plain operation
    /// cannot do.
    #[inline]
    fn one_piece(&self) -> Option<(&'a iovec, &'a RmaIov)> {
        let extras = FI_INJECT | FI_COMMIT_COMPLETE;
        let usual = self.flags & extras == 0 && self.data.is_none() && self.deferred.is_none();
        match (self.iov, self.remote) {
            ([buffer], [place]) if usual => Some((buffer, place)),
            _ => None,
        }
    }
}

impl Endpoint {
    /// Begins a transfer of one segment as a plain operation: nothing is stored for it beyond the id of its request. `None`
    /// if it cannot be plain now; then nothing has happened.
    #[inline]
    fn transfer_plain(
        &self,
        live: &Live,
        it: &Transfer<'_>,
        reads: bool,
        local: Sge,
        place: &RmaIov,
    ) -> Option<Result<()>> {
        let (mut state, connection) = match self.connection_to(live, it.peer, it.flags) {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        let report = BoundCq::reports(live.host.tx.as_ref(), it.flags);
        let id = state.rdm.outbox().plain_id(Plain {
            context: it.context as usize,
            form: if reads { Form::Read } else { Form::Write },
            report,
        })?;
        Some(
            self.with_room(live, &mut state, connection, 1, report, |state| {
                let device_keys = state.rdm.connections()[connection].device_keys;
                let transfer = PlainTransfer {
                    connection,
                    reads,
                    local,
                    remote: Target {
                        addr: place.addr,
                        key: rkey(self, device_keys, place.key)?,
                    },
                    fence: it.flags & FI_FENCE != 0,
                };
                Ok(state.rdm.transfer_plain(&live.host, id, &transfer)?)
            }),
        )
    }

    pub(super) fn transfer(&self, it: &Transfer<'_>, reads: bool) -> Result<()> {
        self.check_caps(FI_RMA | if reads { FI_READ } else { FI_WRITE })?;
        let live = self.live()?;
        let len = total(it.iov)?;
        let there = it
            .remote
            .iter()
            .try_fold(0usize, |sum, buffer| sum.checked_add(buffer.len));
        if it.remote.is_empty() || it.remote.len() > RMA_IOV_LIMIT || there != Some(len) {
            return Err(FiError::INVAL);
        }
        self.limits.check(Limits::RMA, it.flags, len)?;
        let usage = match reads {
            true => LocalUse::ReadSink,
            false => LocalUse::WriteSource,
        };
        let mut held = Held::default();
        let local = if let Some((buffer, place)) = it.one_piece() {
            let (at, desc) = ((buffer.iov_base as u64, buffer.iov_len), it.desc.get(0));
            let sge = local::sge(&self.domain, &self.pd, at, desc, usage, &mut held)?;
            if held.is_empty()
                && let Some(done) = self.transfer_plain(live, it, reads, sge, place)
            {
                return done;
            }
            Memory::InPlace(rkey_rdm::sges::of(sge))
        } else if it.flags & FI_INJECT != 0 {
            let mut bytes = vec![0; len].into_boxed_slice();
            gather(&self.domain, it.iov, &mut bytes)?;
            Memory::Copy(bytes)
        } else {
            let mut sges = sges(&self.domain, &self.pd, it.iov, it.desc, usage, &mut held)?;
            sges.retain(|sge| sge.len > 0);
            Memory::InPlace(sges)
        };
        let durable = !reads && it.flags & FI_COMMIT_COMPLETE != 0;
        if durable {
            self.check_caps(FI_RMA_PMEM)?;
        }
        let posts = it.remote.len() as u32 + u32::from(durable);
        let (mut state, connection) = self.connection_to(live, it.peer, it.flags)?;
        let report = BoundCq::reports(live.host.tx.as_ref(), it.flags);
        self.with_room(live, &mut state, connection, posts, report, |state| {
            let device_keys = state.rdm.connections()[connection].device_keys;
            let named = |place: &RmaIov| {
                Ok(RemoteRange {
                    addr: place.addr,
                    len: place.len as u64,
                    key: rkey(self, device_keys, place.key)?,
                })
            };
            let remote: SmallVec<[RemoteRange; 1]> = match it.remote {
                [one] => smallvec![named(one)?],
                all => all.iter().map(named).collect::<Result<_>>()?,
            };
            // The peer returns credit for completion data; that credit may have arrived.
            if it.data.is_some() && !state.rdm.connections()[connection].credit.has(0) {
                live.advance(state);
            }
            let transfer = endpoint::Transfer {
                connection,
                reads,
                local,
                remote: &remote,
                data: it.data,
                fence: it.flags & FI_FENCE != 0,
                durable,
            };
            let posted = Posted::one_sided(FI_RMA, reads, it.context, report, it.deferred, held);
            Ok(state.rdm.transfer(&live.host, transfer, posted)?)
        })
    }
}

//! `fi_rma`: reads and writes of a peer's memory.
//!
//! They are work requests of the connection; the peer's device carries them out. Remote completion data
//! is the write's immediate data if it is short enough. Otherwise, and with several places to write to, it
//! is a message of its own that is sent when everything has been written: data arrives only with its bytes.

mod calls;

pub(super) use calls::{OPS, check_flags};

use super::deferred::Deferred;
use super::elements::part;
use super::operation::{Hold, Operation, What};
use super::options::Limits;
use super::send::{Descriptors, total};
use super::*;
use crate::cq::Entry;
use crate::info::offer::RMA_IOV_LIMIT;
use crate::mr::raw;
use libc::iovec;
use rkey_device::core::{LocalUse, WireKey};
use rkey_device::engine::{SendFlags, Target, Work};
use rkey_rdm::operation::UNTRACKED;
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

/// What a key of the program's names at the peer of a connection.
pub(super) fn wire_key(ep: &Endpoint, device_keys: bool, key: u64) -> Result<WireKey> {
    raw::resolve(&ep.domain, key, device_keys).ok_or_else(|| {
        rkey_device::denials::refused(&format!(
            "key {key:#x} was not mapped with fi_mr_map_raw, as the domain's FI_MR_RAW asks for"
        ));
        FiError::NOKEY
    })
}

impl Endpoint {
    pub(super) fn transfer(&self, it: &Transfer<'_>, reads: bool) -> Result<()> {
        self.check_caps(FI_RMA | if reads { FI_READ } else { FI_WRITE })?;
        let live = self.live()?;
        let len = total(it.iov)?;
        let there = it
            .remote
            .iter()
            .try_fold(0usize, |sum, piece| sum.checked_add(piece.len));
        if it.remote.is_empty() || it.remote.len() > RMA_IOV_LIMIT || there != Some(len) {
            return Err(FiError::INVAL);
        }
        let inject = it.flags & FI_INJECT != 0;
        self.limits.check(Limits::RMA, it.flags, len)?;
        let usage = if reads {
            LocalUse::ReadSink
        } else {
            LocalUse::WriteSource
        };
        let (mut sges, hold) = if inject {
            let mut bytes = vec![0; len].into_boxed_slice();
            self.gather(it.iov, &mut bytes)?;
            let key = self.group.everything();
            let sge = Sge {
                addr: bytes.as_ptr() as u64,
                len: len as u32,
                key,
            };
            (smallvec![sge], Hold::Bytes(bytes))
        } else {
            (self.elements(it.iov, it.desc, usage)?, Hold::Nothing)
        };
        sges.retain(|sge| sge.len > 0);
        let commits = !reads && it.flags & FI_COMMIT_COMPLETE != 0;
        if commits {
            self.check_caps(FI_RMA_PMEM)?;
        }
        let pieces = it.remote.len() as u32;
        let posts = pieces + u32::from(commits);
        let imm = it.data.filter(|_| pieces == 1);
        let imm = imm.and_then(|data| u32::try_from(data).ok());
        let data = it.data.filter(|_| imm.is_none());
        let (mut state, connection) = self.connection_to(live, it.peer)?;
        let report = Self::reports(live.tx.as_ref(), it.flags);
        self.in_room(live, &mut state, connection, posts, report, |state| {
            let device_keys = state.connections[connection].device_keys;
            let named = |piece: &RmaIov| Ok((*piece, wire_key(self, device_keys, piece.key)?));
            let places: SmallVec<[_; 1]> = match it.remote {
                [one] => smallvec![named(one)?],
                all => all.iter().map(named).collect::<Result<_>>()?,
            };
            // The data are an entry in the peer's completion queue, which has to have room.
            if it.data.is_some() && !state.connections[connection].credit.take(0) {
                self.advance(live, state);
                if !state.connections[connection].credit.take(0) {
                    return Err(FiError::AGAIN);
                }
            }
            let place = if reads { READ } else { WRITTEN };
            let operation = Operation {
                left: posts + u32::from(commits),
                error: None,
                what: match (data, imm) {
                    (Some(data), _) => What::Write {
                        data,
                        len: len as u32,
                    },
                    (None, Some(_)) => What::WriteTold,
                    (None, None) => What::Transmit,
                },
                entry: Entry {
                    context: it.context as usize,
                    flags: FI_RMA | if reads { FI_READ } else { FI_WRITE },
                    ..Entry::default()
                },
                report,
                counts: deferred::counts(it.deferred, Some(place)),
                connection,
                answered: commits,
                turn: None,
                hold,
            };
            let id = self.begin(state, operation);
            let mut skip = 0;
            for (index, &(piece, key)) in places.iter().enumerate() {
                let remote = Target {
                    addr: piece.addr,
                    key,
                };
                let work = match reads {
                    true => Work::Read { remote },
                    false => Work::Write { remote, imm },
                };
                let part = (places.len() > 1).then(|| part(&sges, skip, piece.len));
                let local = part.as_ref().unwrap_or(&sges);
                skip += piece.len;
                let fence = it.flags & FI_FENCE != 0 && index == 0;
                let flags = if fence {
                    SendFlags::FENCE
                } else {
                    SendFlags::empty()
                };
                if let Err(error) = self.post(state, connection, work, local, None, flags, id) {
                    return self.cut_short(live, state, id, index as u32, error);
                }
            }
            if commits && let Err(error) = self.ask_to_commit(state, connection, &places, id) {
                return self.cut_short(live, state, id, pieces, error);
            }
            Ok(())
        })
    }

    /// A transfer of several requests of which only some could be posted: it fails when these are complete.
    #[cold]
    fn cut_short(
        &self,
        live: &Live,
        state: &mut State,
        id: u64,
        posted: u32,
        error: FiError,
    ) -> Result<()> {
        if posted == 0 {
            if let Some(operation) = state.forget(id) {
                Self::refund(state, &operation);
            }
            return Err(error);
        }
        if let Some(operation) = state.operations.get(id) {
            operation.fail(error);
            operation.left = posted;
            operation.answered = false;
        }
        debug_assert_ne!(id, UNTRACKED);
        self.advance(live, state);
        Ok(())
    }
}

//! The owner's side: granting and revoking leases.

use super::announced;
use super::offer::{LeaseId, LeaseOffer};
use crate::ring::{Half, KeepMapped, LEASES};
use crate::shm::PeerProcess;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The leases that the responder of a link has granted over it. Cheap to clone; all clones share one state. Usable from
/// any thread.
///
/// Revoking a lease takes three steps: [`withdraw`](Self::withdraw), `rkey_base::barrier::heavy`, and
/// [`has_no_copy`](Self::has_no_copy) until it returns true. The steps take 0.2 to 20 microseconds, plus the rest of a copy
/// in progress. If that copy does not end, because the peer has been stopped or violates the protocol,
/// [`abandon`](Self::abandon) gives up the lease.
#[derive(Clone, Debug)]
pub struct LeaseBoard(Arc<Board>);

#[derive(Debug)]
pub(crate) struct Board {
    own: Half,
    peer: Half,
    process: Arc<PeerProcess>,
    state: Mutex<State>,
    _keep: KeepMapped,
}

#[derive(Debug)]
struct State {
    /// Indexes are assigned in order, so that each is reused as late as possible.
    free: VecDeque<u16>,
    /// Indexes abandoned while the peer was copying; free once that copy has ended.
    abandoned: Vec<u16>,
    /// The generation of each granted lease (even if withdrawn); 0 for the others.
    out: [u64; LEASES],
    last_generation: u64,
}

impl Board {
    pub(crate) fn new(own: Half, peer: Half, keep: KeepMapped, process: Arc<PeerProcess>) -> Self {
        let state = State {
            free: (0..LEASES as u16).collect(),
            abandoned: Vec::new(),
            out: [0; LEASES],
            last_generation: 0,
        };
        Self {
            own,
            peer,
            process,
            state: Mutex::new(state),
            _keep: keep,
        }
    }

    /// Withdraws every lease, so that no new copy begins. Call it when the link closes and no more requests can arrive.
    pub(crate) fn withdraw_all(&self) {
        for index in 0..LEASES {
            if let Some(word) = self.own.generation(index) {
                word.store(0, Ordering::Release);
            }
        }
    }

    /// Whether the peer is not copying under this lease, or has ended.
    fn is_idle(&self, index: usize) -> bool {
        let in_use = self.peer.in_use(index);
        in_use.is_none_or(|word| word.load(Ordering::Acquire) == 0) || self.process.is_dead()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl LeaseBoard {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        Self(board)
    }

    /// Grants a lease of `len` bytes at `offset` of a segment. `None` if all 256 leases of the link are granted, or if
    /// the range is empty or wraps around.
    pub fn grant(&self, offset: u64, len: u64, writable: bool) -> Option<LeaseOffer> {
        if len == 0 || offset.checked_add(len).is_none() {
            return None;
        }
        let mut state = self.0.state();
        if state.free.is_empty() {
            let State {
                free, abandoned, ..
            } = &mut *state;
            free.extend(abandoned.extract_if(.., |index| self.0.is_idle(usize::from(*index))));
        }
        let index = state.free.pop_front()?;
        state.last_generation += 1;
        let generation = state.last_generation;
        state.out[usize::from(index)] = generation;
        self.0
            .own
            .generation(usize::from(index))?
            .store(generation, Ordering::Release);
        Some(LeaseOffer {
            id: LeaseId { index, generation },
            offset,
            len,
            writable,
        })
    }

    /// The first step of revoking leases: after the next heavy barrier, no new copy begins. Skips leases that are not,
    /// or no longer, granted.
    pub fn withdraw(&self, leases: &[LeaseId]) {
        let state = self.0.state();
        for lease in leases {
            if state.out.get(lease.index()) == Some(&lease.generation)
                && let Some(word) = self.0.own.generation(lease.index())
            {
                word.store(0, Ordering::Release);
            }
        }
    }

    /// The last step, after [`withdraw`](Self::withdraw) and `rkey_base::barrier::heavy`: returns whether no copy is in
    /// progress. If none is, the lease is revoked. If one is, the lease stays withdrawn (no new copy begins): call this
    /// method again.
    pub fn has_no_copy(&self, lease: LeaseId) -> bool {
        let mut state = self.0.state();
        let index = lease.index();
        if state.out.get(index) != Some(&lease.generation) {
            return true;
        }
        let withdrawn = self
            .0
            .own
            .generation(index)
            .is_none_or(|word| word.load(Ordering::Relaxed) == 0);
        if !withdrawn || !self.0.is_idle(index) {
            return false;
        }
        state.out[index] = 0;
        state.free.push_back(lease.index);
        true
    }

    /// If [`has_no_copy`](Self::has_no_copy) returns false: the bytes, relative to the start of the lease, that the
    /// copy in progress can touch according to the peer. The range may lie outside the lease. `None` if there is no
    /// copy.
    pub fn under_way(&self, lease: LeaseId) -> Option<Range<u64>> {
        if self.has_no_copy(lease) {
            return None;
        }
        announced(self.0.peer.in_use(lease.index())?.load(Ordering::Acquire))
    }

    /// Stops waiting for a withdrawn lease. The caller must have made the peer's copy harmless. The lease's index is
    /// reused only after the peer has ended its copy.
    pub fn abandon(&self, lease: LeaseId) {
        let mut state = self.0.state();
        if state.out.get(lease.index()) == Some(&lease.generation) {
            state.out[lease.index()] = 0;
            state.abandoned.push(lease.index);
        }
    }

    /// The number of granted leases, excluding abandoned ones.
    pub fn out(&self) -> usize {
        let state = self.0.state();
        LEASES - state.free.len() - state.abandoned.len()
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.withdraw_all();
    }
}

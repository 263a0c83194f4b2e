//! Shared transmit contexts: one limit for the operations of several endpoints.
//!
//! Operations are posted to the endpoints, and complete in their queues. Together, the endpoints have at most as many operations
//! in flight as the context has slots; further posts fail with `-FI_EAGAIN`. A slot is free again when its endpoint has
//! handled the completion.

#![allow(unsafe_code)]
// UNSAFETY: declares a kind of handle.

use super::*;
use crate::info::offer::TX_SIZE;
use crate::object::{Users, object};
use std::cell::UnsafeCell;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct StxObject {
    pub(super) fid: UnsafeCell<FidStx>,
    pub(crate) inner: Arc<Stx>,
}
object!(StxObject, FidStx, 4096);

/// A shared transmit context.
pub(crate) struct Stx {
    pub(crate) domain: Arc<Domain>,
    /// The transmit capabilities that bound endpoints may have.
    caps: u64,
    size: usize,
    taken: AtomicUsize,
    pub(super) users: Users,
}

/// The capabilities that concern transmitting.
const TRANSMITS: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_COLLECTIVE | FI_SEND | FI_READ | FI_WRITE;

/// The slots of a shared context that one endpoint holds. Changes only under the lock of the endpoint's state.
pub(super) struct SharedSlots {
    stx: Arc<Stx>,
    slots: AtomicUsize,
}

impl SharedSlots {
    pub(super) fn new(stx: Arc<Stx>) -> Self {
        let slots = AtomicUsize::new(0);
        Self { stx, slots }
    }

    /// Takes a slot, if one is free.
    fn take(&self) -> Result<()> {
        self.stx.take()?;
        self.slots.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Releases the slots that the endpoint no longer needs.
    fn release_unneeded(&self, needed: usize) {
        let given_back = self.slots.load(Ordering::Relaxed).saturating_sub(needed);
        self.slots.fetch_sub(given_back, Ordering::Relaxed);
        self.stx.taken.fetch_sub(given_back, Ordering::AcqRel);
    }

    /// Returns how many slots a closing endpoint had, which [`Stx::part`] frees; the endpoint then has none.
    pub(super) fn leave(&self) -> usize {
        self.slots.swap(0, Ordering::Relaxed)
    }
}

impl Stx {
    /// A context with these capabilities (0: all) and this many slots (0: the default).
    pub(super) fn new(domain: &Arc<Domain>, caps: u64, size: usize) -> Self {
        Self {
            domain: Arc::clone(domain),
            caps: if caps == 0 { TRANSMITS } else { caps },
            size: if size == 0 { TX_SIZE } else { size },
            taken: AtomicUsize::new(0),
            users: Users::default(),
        }
    }

    /// Counts an endpoint as a user. The endpoint must have no transmit capability that the context lacks.
    pub(super) fn join(&self, ep: &Endpoint) -> Result<()> {
        if !Arc::ptr_eq(&self.domain, &ep.domain) || ep.caps & TRANSMITS & !self.caps != 0 {
            return Err(FiError::INVAL);
        }
        self.users.add();
        Ok(())
    }

    /// Removes a closing endpoint, and frees its slots.
    pub(super) fn part(&self, slots: usize) {
        self.taken.fetch_sub(slots, Ordering::AcqRel);
        self.users.remove();
    }

    /// Takes a slot, if one is free.
    fn take(&self) -> Result<()> {
        let one_more = |taken| (taken < self.size).then_some(taken + 1);
        let took = self
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        took.map(drop).map_err(|_| FiError::AGAIN)
    }
}

impl Endpoint {
    /// Takes a slot for an operation in the shared transmit context; fails with `FI_EAGAIN` if its endpoints have taken
    /// all.
    pub(super) fn take_shared_slot(
        &self,
        live: &Live,
        state: &mut State,
        room: &SharedSlots,
        connection: usize,
    ) -> Result<()> {
        if room.take().is_ok() {
            return Ok(());
        }
        live.advance(state);
        Self::free_shared_slots(live, state);
        if !state.rdm.connections()[connection].state().is_open() {
            return Err(FiError::AGAIN);
        }
        room.take()
    }

    /// Frees the slots of completed operations.
    #[inline]
    pub(super) fn free_shared_slots(live: &Live, state: &State) {
        if let Some(room) = &live.stx
            && room.slots.load(Ordering::Relaxed) > 0
        {
            room.release_unneeded(state.rdm.outbox().under_way());
        }
    }
}

//! Shared transmit contexts: one transmit queue for several endpoints.
//!
//! Operations are posted to the endpoints, and complete in their queues. Together they have at most
//! as many operations in flight as the context has slots; a post beyond that gets `-FI_EAGAIN`. A slot is free
//! again when its endpoint has handled the completion.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::*;
use crate::domain::DomainObject;
use crate::info::offer::{INJECT_SIZE, TX_OP_FLAGS, TX_SIZE};
use crate::nosys::{self, nosys};
use crate::object::{Users, busy, find, object, publish, remove, status};
use std::cell::UnsafeCell;
use std::ffi::c_void;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct StxObject {
    fid: UnsafeCell<FidStx>,
    pub(crate) inner: Arc<Stx>,
}
object!(StxObject, FidStx, 4096);

/// A shared transmit context.
pub(crate) struct Stx {
    pub(crate) domain: Arc<Domain>,
    /// The capabilities that endpoints may have.
    caps: u64,
    size: usize,
    taken: AtomicUsize,
    users: Users,
}

/// Capabilities that are about transmitting.
const TRANSMITS: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_COLLECTIVE | FI_SEND | FI_READ | FI_WRITE;

/// The slots that one endpoint has of a shared context. Changes under the lock of the
/// endpoint's state.
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

    /// Gives back the slots that the endpoint does not need any more.
    fn settle(&self, needed: usize) {
        let given_back = self.slots.load(Ordering::Relaxed).saturating_sub(needed);
        self.slots.fetch_sub(given_back, Ordering::Relaxed);
        self.stx.taken.fetch_sub(given_back, Ordering::AcqRel);
    }

    /// Gives up all slots of a closing endpoint; returns how many it had.
    pub(super) fn leave(&self) -> usize {
        self.slots.swap(0, Ordering::Relaxed)
    }
}

impl Stx {
    /// Reserves it for an endpoint, which must have a subset of its capabilities.
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
    /// Takes a slot for an operation in the shared transmit context; `FI_EAGAIN` if its endpoints have all of them.
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
            room.settle(state.rdm.under_way());
        }
    }
}

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

static OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel: nosys!(isize, *mut Fid, *mut c_void),
    getopt: nosys!(c_int, *mut Fid, c_int, c_int, *mut c_void, *mut usize),
    setopt: nosys!(c_int, *mut Fid, c_int, c_int, *const c_void, usize),
    rx_size_left: nosys!(isize, *mut FidEp),
    tx_size_left: nosys!(isize, *mut FidEp),
    ..super::object::OPS
};

/// `fi_stx_context`.
///
/// # Safety
/// Arguments as fi_endpoint(3) requires.
pub(crate) unsafe extern "C" fn stx_context(
    domain: *mut FidDomain,
    attr: *mut TxAttr,
    stx: *mut *mut FidStx,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; null or attributes, as the caller promises.
        let (owner, attr) = unsafe { (find::<DomainObject, _>(domain)?, attr.as_ref()) };
        let caps = attr.map_or(0, |attr| attr.caps);
        let size = attr.map_or(0, |attr| attr.size);
        if attr.is_some_and(|attr| attr.op_flags & !TX_OP_FLAGS != 0) {
            return Err(FiError::BADFLAGS);
        }
        if size > TX_SIZE || attr.is_some_and(|attr| attr.inject_size > INJECT_SIZE) {
            return Err(FiError::INVAL);
        }
        let inner = Stx {
            domain: Arc::clone(&owner.inner),
            caps: if caps == 0 { TRANSMITS } else { caps },
            size: if size == 0 { TX_SIZE } else { size },
            taken: AtomicUsize::new(0),
            users: Users::default(),
        };
        let object = StxObject {
            fid: UnsafeCell::new(FidStx {
                fid: Fid::new(FI_CLASS_STX_CTX, context, &FID_OPS),
                ops: &OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: room for a handle, as the caller promises.
        unsafe { publish(object, stx)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close`: `-FI_EBUSY` while endpoints are bound to it.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<StxObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| busy("endpoints that are bound to the shared transmit context"))?;
        // SAFETY: the program no longer uses the context.
        let object = unsafe { remove::<StxObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

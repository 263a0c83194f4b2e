//! Scalable endpoints: several transmit and receive contexts with one address.
//!
//! Each context is a separate [`Endpoint`] ([`context`]) with its own queue pairs, matching, credit and
//! completion queue, so that contexts share no lock of this provider. Messages are ordered only between one transmit
//! context and one receive context. The scalable endpoint holds what they share: the address, and the listener, which
//! passes a peer on to the receive context that the peer requests. Transmit contexts only connect; peers never
//! send to them.

#![allow(unsafe_code)]
// UNSAFETY: declares a kind of handle.

use super::context::{Choice, Direction};
use super::*;
use crate::object::object;
use rkey_endpoint::listeners::Serving;
use rkey_endpoint::{Absent, serve};
use std::cell::UnsafeCell;
use std::sync::Weak;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct SepObject {
    pub(super) fid: UnsafeCell<FidEp>,
    pub(crate) inner: Arc<Sep>,
}
object!(SepObject, FidEp, 16384);

/// A scalable endpoint.
pub(crate) struct Sep {
    pub(crate) domain: Arc<Domain>,
    /// The number that identifies the endpoint to regions that serve only one endpoint.
    pub(crate) number: u32,
    pub(super) ep_type: c_int,
    pub(super) pd: Arc<ProtectionDomain>,
    /// The capabilities that its transmit contexts can have, and their default flags.
    pub(super) transmit: Choice,
    /// The capabilities that its receive contexts can have, and their default flags.
    pub(super) receive: Choice,
    transmitters: Mutex<Slots>,
    receivers: Mutex<Slots>,
    shared: Mutex<Shared>,
    /// The open contexts.
    pub(super) users: Users,
}

/// The contexts of one direction, by index.
type Slots = Vec<Option<Weak<Endpoint>>>;

/// The state that all contexts share.
#[derive(Default)]
struct Shared {
    av: Option<Arc<Av>>,
    eq: Option<Arc<Eq>>,
    local_address: LocalAddress,
    /// Set when the endpoint or one of its contexts is enabled.
    serving: Option<Serving>,
}

impl Shared {
    /// Whether the address is final.
    fn has_address(&self) -> bool {
        self.serving.is_some() || self.local_address.is_reserved()
    }
}

impl Sep {
    /// A scalable endpoint with this many contexts of each direction.
    pub(super) fn new(
        domain: &Arc<Domain>,
        pd: Arc<ProtectionDomain>,
        ep_type: c_int,
        (transmit, transmitters): (Choice, usize),
        (receive, receivers): (Choice, usize),
        local_address: LocalAddress,
    ) -> Self {
        let slots = |count| Mutex::new(vec![None; count]);
        Self {
            domain: Arc::clone(domain),
            number: crate::domain::number(),
            ep_type,
            pd,
            transmit,
            receive,
            transmitters: slots(transmitters),
            receivers: slots(receivers),
            shared: Mutex::new(Shared {
                local_address,
                ..Shared::default()
            }),
            users: Users::default(),
        }
    }

    fn slots(&self, direction: Direction) -> &Mutex<Slots> {
        match direction {
            Direction::Transmit => &self.transmitters,
            Direction::Receive => &self.receivers,
        }
    }

    /// Adds a context. `FI_EINVAL`: there is no such index; `FI_EBUSY`: it is in use.
    pub(super) fn join(
        &self,
        direction: Direction,
        index: usize,
        context: &Arc<Endpoint>,
    ) -> Result<()> {
        let mut slots = self.slots(direction).lock();
        let count = slots.len();
        match slots.get_mut(index) {
            Some(slot @ None) => *slot = Some(Arc::downgrade(context)),
            Some(_) => {
                return Err(FiError::BUSY.because(format_args!("{direction} {index} is in use")));
            }
            None => {
                return Err(FiError::INVAL.because(format_args!(
                    "there is no {direction} {index}: the scalable endpoint was opened with {count} (tx_ctx_cnt, rx_ctx_cnt)"
                )));
            }
        }
        self.users.add();
        Ok(())
    }

    /// Removes a context that is being closed. `users` counts the context until its close has ended. When this returns, no new peer
    /// connects to the context.
    pub(super) fn leave(&self, direction: Direction, index: usize) {
        self.slots(direction).lock()[index] = None;
        // The listeners' thread may have found the context just before. Its handler takes `receivers` but never
        // `shared`, so waiting for the handler with `shared` locked cannot deadlock.
        if let Some(serving) = &self.shared.lock().serving {
            serving.wait_for_handler();
        }
    }

    /// The receive context that a peer requests.
    fn receiver(&self, index: u8) -> std::result::Result<Arc<Endpoint>, Absent> {
        let slots = self.receivers.lock();
        let slot = slots.get(usize::from(index)).ok_or(Absent::NoContext)?;
        let context = slot.as_ref().and_then(Weak::upgrade);
        context.ok_or(Absent::NotReady)
    }

    /// Starts listening, so that peers find the enabled receive contexts. Returns the address. A second call only returns
    /// the address.
    pub(super) fn enable(self: &Arc<Self>) -> Result<SocketAddr> {
        let mut shared = self.shared.lock();
        if shared.serving.is_none() {
            if shared.av.is_none() {
                return Err(no_av());
            }
            let listener = shared.local_address.listen(&self.domain.device)?;
            let weak = Arc::downgrade(self);
            let find = move |index| weak.upgrade().ok_or(Absent::Closed)?.receiver(index);
            let listeners = &self.domain.fabric.listeners;
            shared.serving = Some(serve(listeners, listener, find)?);
        }
        Ok(shared.local_address.name(&self.domain.device))
    }

    /// The endpoint's address; `FI_EOPBADSTATE` until it has one.
    pub(super) fn name(&self) -> Result<SocketAddr> {
        let shared = self.shared.lock();
        if !shared.has_address() {
            return Err(FiError::OPBADSTATE);
        }
        Ok(shared.local_address.name(&self.domain.device))
    }

    /// Reserves an address before the endpoint is enabled.
    pub(super) fn set_name(&self, address: SocketAddr) -> Result<()> {
        let mut shared = self.shared.lock();
        if shared.serving.is_some() {
            return Err(FiError::OPBADSTATE);
        }
        shared.local_address.assign(&self.domain.device, address)
    }

    /// The address vector that it is bound to; `FI_ENOAV` if there is none.
    pub(super) fn av(&self) -> Result<Arc<Av>> {
        self.bound_av().ok_or_else(no_av)
    }

    /// The address vector that it is bound to.
    pub(crate) fn bound_av(&self) -> Option<Arc<Av>> {
        self.shared.lock().av.clone()
    }

    /// Binds an address vector for all contexts.
    pub(super) fn bind_av(&self, av: &Arc<Av>) -> Result<()> {
        if !Arc::ptr_eq(&av.domain, &self.domain) {
            return Err(FiError::INVAL);
        }
        let mut shared = self.shared.lock();
        if shared.av.is_some() {
            return Err(FiError::BUSY);
        }
        av.users.add();
        shared.av = Some(Arc::clone(av));
        Ok(())
    }

    /// Binds an event queue. The contexts report no events to it.
    pub(super) fn bind_eq(&self, eq: &Arc<Eq>) -> Result<()> {
        if !Arc::ptr_eq(&eq.fabric, &self.domain.fabric) {
            return Err(FiError::INVAL);
        }
        let mut shared = self.shared.lock();
        if shared.eq.is_some() {
            return Err(FiError::BUSY);
        }
        eq.users.add();
        shared.eq = Some(Arc::clone(eq));
        Ok(())
    }

    /// Closes the endpoint after its contexts. The address is free when this returns.
    pub(super) fn end(&self) {
        // Drop `serving` without `shared` locked: dropping waits for the listeners' thread.
        let Shared {
            av, eq, serving, ..
        } = std::mem::take(&mut *self.shared.lock());
        drop(serving);
        if let Some(av) = av {
            av.users.remove();
        }
        if let Some(eq) = eq {
            eq.users.remove();
        }
        let watched = &self.domain.watched;
        watched.for_each(|region| region.endpoint_closes(self.number));
    }
}

#[cold]
fn no_av() -> FiError {
    FiError::NOAV.because(format_args!(
        "the scalable endpoint is not bound to an address vector (fi_scalable_ep_bind)"
    ))
}

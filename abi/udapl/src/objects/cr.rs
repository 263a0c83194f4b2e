//! CRs (connection requests): requests of peers that the program has not answered yet.

#![allow(unsafe_code)]
// UNSAFETY: programs write to the private data, and know the handle of an EP.

use crate::handles::object::remove;
use crate::objects::ep::Ep;
use crate::objects::ia::Ia;
use crate::objects::service::{Service, Target};
use crate::values::address::Visible;
use crate::values::ep_state::Step;
use crate::values::hello::{Hello, MAX_PRIVATE_DATA, to_text};
use parking_lot::Mutex;
use rkey_device::Incoming;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A connection request.
pub struct Cr {
    pub(crate) ia: Arc<Ia>,
    /// The handle of the CR.
    pub handle: usize,
    /// The hello of the peer's provider.
    pub hello: Hello,
    /// The qualifier that the peer named.
    pub conn_qual: u64,
    /// The EP of the RSP, or the one that the provider made for the PSP.
    pub(crate) ep: Option<Arc<Ep>>,
    /// Whether the provider made that EP.
    made: bool,
    incoming: Mutex<Option<Incoming>>,
    pub(crate) visible: Visible,
    pub(crate) data: Data,
    /// Counts the request as unanswered at its service point.
    _unanswered: Arc<()>,
}

/// The peer's private data, which the program may also write to.
pub(crate) struct Data(pub(crate) Box<UnsafeCell<[u8; MAX_PRIVATE_DATA]>>);
// SAFETY: only the program touches it.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

crate::kind!(
    Cr,
    HANDLE_TYPE_CR,
    INVALID_HANDLE_CR,
    RESOURCE_MEMORY,
    1 << 16
);

impl Cr {
    /// A request to a service point.
    #[must_use]
    pub fn new(
        handle: usize,
        service: &Service,
        ep: Option<Arc<Ep>>,
        incoming: Incoming,
        hello: Hello,
    ) -> Self {
        let mut data = [0; MAX_PRIVATE_DATA];
        for (to, from) in data.iter_mut().zip(&hello.data) {
            *to = *from;
        }
        Self {
            ia: Arc::clone(service.ia()),
            handle,
            visible: Visible::new(hello.address, 0),
            data: Data(Box::new(UnsafeCell::new(data))),
            hello,
            conn_qual: service.conn_qual(),
            ep,
            made: matches!(service.target, Target::Provider),
            incoming: Mutex::new(Some(incoming)),
            _unanswered: service.unanswered(),
        }
    }

    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        &self.ia
    }

    /// Takes the device's connection request; only the first caller gets it.
    pub fn take(&self) -> Option<Incoming> {
        self.incoming.lock().take()
    }

    /// Refuses the request, unless another thread is answering it.
    pub fn reject(&self, data: &[u8]) {
        let Some(incoming) = self.take() else { return };
        incoming.reject(&to_text(data));
        match &self.ep {
            Some(ep) if self.made => discard(ep),
            Some(ep) => drop(ep.take_step(Step::Reject)),
            None => {}
        }
    }
}

/// Frees an EP that was made for a PSP's request, which is now refused.
pub fn discard(ep: &Arc<Ep>) {
    ep.close();
    // SAFETY: the program knows the EP only through the request, and does not use it after refusing the request.
    drop(unsafe { remove::<Ep>(ep.handle) });
}

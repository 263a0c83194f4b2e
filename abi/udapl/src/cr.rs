//! CRs (connection requests): requests of peers that the program has not answered yet.

#![allow(unsafe_code)]
// UNSAFETY: C functions; programs write to the private data.

use crate::address::Visible;
use crate::argument;
use crate::connection::check_data;
use crate::ep::Ep;
use crate::ep_calls::discard;
use crate::ep_state::Step;
use crate::fail::{Fail, Result, call};
use crate::hello::{Hello, MAX_PRIVATE_DATA, to_text};
use crate::ia::Ia;
use crate::object::{all, find, find_or_null, remove};
use crate::psp::Psp;
use crate::service::{Service, Target};
use crate::sys::consts::*;
use crate::sys::{ConnQual, CrHandle, CrParam, EpHandle, Pvoid, Return};
use parking_lot::Mutex;
use rkey_device::Incoming;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A connection request.
pub struct Cr {
    ia: Arc<Ia>,
    /// The handle of the CR.
    pub handle: usize,
    /// The hello of the peer's provider.
    pub hello: Hello,
    /// The qualifier that the peer named.
    pub conn_qual: u64,
    /// The EP of the RSP, or the one that the provider made for the PSP.
    ep: Option<Arc<Ep>>,
    /// Whether the provider made that EP.
    made: bool,
    incoming: Mutex<Option<Incoming>>,
    visible: Visible,
    data: Data,
    /// Counts the request as unanswered at its service point.
    _unanswered: Arc<()>,
}

/// The peer's private data, which the program may also write to.
struct Data(Box<UnsafeCell<[u8; MAX_PRIVATE_DATA]>>);
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

/// `dat_cr_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    cr: CrHandle,
    mask: dat_cr_param_mask,
    param: *mut CrParam,
) -> Return {
    call("dat_cr_query", || {
        // SAFETY: `find` validates the handle.
        let cr = unsafe { find::<Cr>(cr)? };
        argument::mask(2, mask.into(), CR_FIELD_ALL.into())?;
        let value = CrParam {
            remote_ia_address_ptr: cr.visible.pointer(),
            remote_port_qual: cr.hello.port,
            private_data_size: cr.hello.data.len() as Count,
            private_data: cr.data.0.get().cast(),
            local_ep_handle: cr.ep.as_ref().map_or(0, |ep| ep.handle) as EpHandle,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// Accepts a request with the given EP, or with the request's own EP.
///
/// # Errors
/// `DAT_INVALID_HANDLE`, `DAT_INVALID_STATE`, `DAT_INVALID_PARAMETER`.
fn accept_with(cr: &Arc<Cr>, ep: Option<&Arc<Ep>>, data: &[u8]) -> Result {
    check_data(3, data)?;
    let ep = match (&cr.ep, ep) {
        (Some(own), None) => own,
        (Some(own), Some(ep)) if Arc::ptr_eq(own, ep) => own,
        (None, Some(ep)) if Arc::ptr_eq(ep.ia(), &cr.ia) => ep,
        _ => return Err(Fail::handle(INVALID_HANDLE_EP)),
    };
    ep.accept(cr, data)
}

/// `dat_cr_accept`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn accept(cr: CrHandle, ep: EpHandle, size: Count, data: Pvoid) -> Return {
    call("dat_cr_accept", || {
        // SAFETY: `find` validates the handles; the caller promises the data.
        unsafe {
            let object = find::<Cr>(cr)?;
            let ep = find_or_null::<Ep>(ep)?;
            let data = argument::list((3, size), (4, data.cast_const().cast()))?;
            accept_with(object, ep, data)?;
        }
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cr>(cr as usize) }.map(drop)
    })
}

/// `dat_cr_reject`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn reject(cr: CrHandle, size: Count, data: Pvoid) -> Return {
    call("dat_cr_reject", || {
        // SAFETY: `find` validates the handle; the caller promises the data.
        let data = unsafe {
            find::<Cr>(cr)?;
            argument::list((2, size), (3, data.cast_const().cast()))?
        };
        check_data(2, data)?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cr>(cr as usize)? }.reject(data);
        Ok(())
    })
}

/// `dat_cr_handoff`, which passes a request to another PSP of this IA.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn handoff(cr: CrHandle, conn_qual: ConnQual) -> Return {
    call("dat_cr_handoff", || {
        // SAFETY: `find` validates the handle.
        let object = Arc::clone(unsafe { find::<Cr>(cr)? });
        let here =
            |psp: &Psp| Arc::ptr_eq(psp.0.ia(), object.ia()) && psp.0.conn_qual() == conn_qual;
        let found = all::<Psp>(here);
        let psp = found
            .first()
            .ok_or(Fail::new(CONN_QUAL_UNAVAILABLE, NO_SUBTYPE))?;
        if object.ep.is_some() {
            return Err(Fail::state(INVALID_STATE_EP_RESERVED));
        }
        // If the PSP is being freed, the request stays with the CR.
        psp.0
            .hand(|| Some((object.take()?, object.hello.clone())))?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cr>(cr as usize) }.map(drop)
    })
}

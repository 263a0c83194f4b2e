//! The name of an endpoint: the address at which peers find it.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::object::EpObject;
use super::*;
use crate::object::{find, status, write_name};
use std::ffi::c_void;

/// `fi_setname`: reserves an address for an endpoint that is not enabled yet.
pub(super) unsafe extern "C" fn setname(fid: *mut Fid, addr: *mut c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the program says that there are `len` bytes.
        let (object, bytes) = unsafe {
            (
                find::<EpObject, _>(fid)?,
                crate::object::list(addr.cast::<u8>().cast_const(), len)?,
            )
        };
        let (address, _) = object
            .inner
            .domain
            .format
            .decode(bytes)
            .ok_or(FiError::INVAL)?;
        let mut setup = object.inner.setup.lock();
        if object.inner.context.is_some() {
            return Err(FiError::INVAL.because(format_args!(
                "a context has the address of its scalable endpoint: set that of the scalable endpoint"
            )));
        }
        if setup.enabled {
            return Err(FiError::OPBADSTATE);
        }
        setup
            .local_address
            .assign(&object.inner.domain.device, address)
    })
}

/// `fi_getname`.
pub(super) unsafe extern "C" fn getname(
    fid: *mut Fid,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let ep = &unsafe { find::<EpObject, _>(fid)? }.inner;
        let name = match ep.live.get() {
            Some(live) => live.name(),
            None => ep.name_before(&mut ep.setup.lock())?,
        };
        // SAFETY: the caller guarantees the room.
        unsafe { write_name(&ep.domain.format.encode(name), addr, len) }
    })
}

impl Endpoint {
    /// The name of an endpoint that is not enabled; `FI_EOPBADSTATE` if it has none yet. Reserves the address of an
    /// `FI_EP_MSG` endpoint that does not accept a request, so that the address does not change.
    pub(super) fn name_before(&self, setup: &mut Setup) -> Result<SocketAddr> {
        if let Some(context) = &self.context {
            return context.sep.name();
        }
        // The address of an endpoint that accepts a request is that of the listener.
        let accepts = setup.request.is_some();
        if self.ep_type == FI_EP_MSG && !accepts {
            setup.local_address.reserve_if_free(&self.domain.device)?;
        } else if !accepts && !setup.local_address.is_reserved() {
            return Err(FiError::OPBADSTATE);
        }
        Ok(setup.local_address.name(&self.domain.device))
    }
}

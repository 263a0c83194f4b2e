//! Connection requests, from the peer's first packet to the program's answer. The `fi_info` of an `FI_CONNREQ` event
//! contains the request's handle.

#![allow(unsafe_code)]
// UNSAFETY: reads handles and data of the program.

use crate::errno::{FiError, Result};
use crate::info::offer::CM_DATA_SIZE;
use crate::object::{find, input, list, object, remove};
use crate::sys::*;
use parking_lot::Mutex;
use rkey_device::Incoming;
use rkey_endpoint::complaint::complain;
use rkey_endpoint::why_not;
use rkey_rdm::hello::Hello;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::sync::Arc;

/// The error for a request whose peer no longer waits.
const GONE: FiError = FiError(libc::ECONNABORTED);

/// A peer that requests a connection.
pub(crate) struct Request {
    pub(crate) incoming: Incoming,
    pub(crate) hello: Hello,
}

/// A connection request, until the program answers it, or [`Pending::is_waiting`] finds that the peer has exited.
pub(crate) struct Pending(Mutex<Option<Request>>);

impl Pending {
    pub(crate) fn new(request: Request) -> Self {
        Self(Mutex::new(Some(request)))
    }

    /// Whether the peer still waits for an answer. If not, drops the request.
    pub(crate) fn is_waiting(&self) -> bool {
        let mut request = self.0.lock();
        if request.as_ref().is_some_and(|it| it.incoming.is_gone()) {
            *request = None;
        }
        request.is_some()
    }
}

/// The handle in the `fi_info` of a connection request.
#[repr(C)]
pub(crate) struct RequestObject {
    fid: UnsafeCell<Fid>,
    request: Arc<Pending>,
}
object!(RequestObject, Fid, 65536);

impl RequestObject {
    pub(crate) fn new(request: Arc<Pending>) -> Self {
        let fid = Fid {
            fclass: FI_CLASS_CONNREQ,
            context: std::ptr::null_mut(),
            ops: std::ptr::null(),
        };
        Self {
            fid: UnsafeCell::new(fid),
            request,
        }
    }
}

/// Reads the hello of a peer that requests a connection; also returns the peer's address and data. Refuses the peer if the
/// hello is invalid.
pub(crate) fn read_request(incoming: Incoming) -> Option<(Request, SocketAddr, Vec<u8>)> {
    let Some(mut hello) = Hello::decode(&incoming.peer().private_data) else {
        let why = why_not(&incoming.peer().private_data);
        complain(format_args!(
            "refused a connection from {}: {why}",
            incoming.peer().described()
        ));
        // Without a text, which the client would take for the program's data.
        incoming.reject("");
        return None;
    };
    // A client on another host need not know the address at which we see it.
    if let Some(host) = incoming.peer().host {
        let is_its = hello.name.ip().to_canonical() == host;
        hello.name = SocketAddr::new(host, if is_its { hello.name.port() } else { 0 });
    }
    // A client does not have to listen. If it does not, its port cannot be confirmed, and is dropped.
    if !incoming.listens_at(hello.name) {
        hello.name = SocketAddr::new(hello.name.ip(), 0);
    }
    let (name, data) = (hello.name, hello.data.clone());
    Some((Request { incoming, hello }, name, data))
}

/// Removes a request's handle, and takes the request. Returns `FI_ECONNABORTED` if it was dropped because the peer has exited.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub(crate) unsafe fn take_request(handle: *mut Fid) -> Result<Request> {
    // SAFETY: `find` validates the handle.
    let object = unsafe { remove::<RequestObject, _>(handle)? };
    let request = object.request.0.lock().take();
    request.ok_or(GONE)
}

/// Removes a request's handle, and refuses the peer, unless the peer has exited.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub(crate) unsafe fn reject(handle: *mut Fid, data: &[u8]) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    match unsafe { take_request(handle) } {
        Ok(request) => {
            let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
            request.incoming.reject(&hex);
        }
        Err(error) if error == GONE => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Whether a request was dropped because its peer has exited.
///
/// # Safety
/// `info` is the `fi_info` of a request that the program has not seen.
pub(crate) unsafe fn has_ended(info: *mut Info) -> bool {
    // SAFETY: the caller guarantees that we made it and that its handle is that of a request.
    let object = unsafe {
        let info = input(info.cast_const()).ok();
        info.and_then(|it| find::<RequestObject, _>(it.handle).ok())
    };
    object.is_some_and(|it| it.request.0.lock().is_none())
}

/// Refuses a request that the program will not see, and frees its information.
///
/// # Safety
/// `info` is the `fi_info` of a request that the program has not seen.
pub(crate) unsafe fn forget_request(info: *mut Info) {
    // SAFETY: the caller guarantees that we made it and that its handle is that of a request.
    unsafe {
        if let Ok(info) = input(info.cast_const()) {
            let _ = reject(info.handle, &[]);
        }
        crate::info::build::free(info);
    }
}

/// The program's connection data.
///
/// # Safety
/// `param` is null or has `len` bytes.
pub(crate) unsafe fn parameters<'a>(param: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len > CM_DATA_SIZE {
        return Err(FiError::INVAL);
    }
    if param.is_null() {
        return Ok(&[]);
    }
    // SAFETY: not null, and `len` bytes as the caller guarantees.
    Ok(unsafe { list(param.cast(), len)? })
}

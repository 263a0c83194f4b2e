//! Connection management of `FI_EP_MSG`: connect, accept, shutdown. Results go to the event queue.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::connection::Hello;
use super::header::{Header, Kind};
use super::object::{EpObject, give_name};
use super::*;
use crate::complaint::complain;
use crate::eq::Failure;
use crate::info::offer::CM_DATA_SIZE;
use crate::object::{find, input, list, object, remove, status};
use rkey_device::{DeviceError, Incoming};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::time::Duration;

/// How long a peer may take to accept.
const PATIENCE: Duration = Duration::from_secs(60);
/// The error of a peer that refused, for `err` of the event.
const REFUSED: FiError = FiError::CONNREFUSED;

/// A peer that asks for a connection.
pub(crate) struct Request {
    pub(crate) incoming: Incoming,
    pub(super) hello: Hello,
}

/// The handle in the `fi_info` of a connection request.
#[repr(C)]
pub(crate) struct RequestObject {
    fid: UnsafeCell<Fid>,
    request: Mutex<Option<Request>>,
}
object!(RequestObject, Fid, 65536);

impl RequestObject {
    pub(crate) fn new(request: Request) -> Self {
        let fid = Fid {
            fclass: FI_CLASS_CONNREQ,
            context: std::ptr::null_mut(),
            ops: std::ptr::null(),
        };
        Self {
            fid: UnsafeCell::new(fid),
            request: Mutex::new(Some(request)),
        }
    }
}

/// Reads what a peer says that asks for a connection.
pub(crate) fn read_request(incoming: Incoming) -> Option<(Request, SocketAddr, Vec<u8>)> {
    let Some(mut hello) = Hello::decode(&incoming.peer().private_data) else {
        incoming.reject("");
        return None;
    };
    // A client need not listen anywhere; but then its address says nothing.
    if !incoming.listens_at(hello.name) {
        hello.name = SocketAddr::new(hello.name.ip(), 0);
    }
    let (name, data) = (hello.name, hello.data.clone());
    Some((Request { incoming, hello }, name, data))
}

/// Takes a request from its handle. An endpoint can also be made with the handle of something else
/// (a passive endpoint), which says nothing about a peer.
///
/// # Safety
/// The handle of a request, or something else, which is refused.
pub(super) unsafe fn take_request(handle: *mut Fid) -> Result<Option<Request>> {
    // SAFETY: a handle, or something that is refused.
    let object = unsafe { remove::<RequestObject, _>(handle)? };
    Ok(object.request.into_inner())
}

/// Takes a request from its handle to refuse it.
///
/// # Safety
/// The handle of a request, or something else, which is refused.
pub(crate) unsafe fn reject(handle: *mut Fid, data: &[u8]) -> Result<()> {
    // SAFETY: as the caller promises.
    let request = unsafe { take_request(handle)? }.ok_or(FiError::INVAL)?;
    let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
    request.incoming.reject(&hex);
    Ok(())
}

/// Forgets a request of which the program will not hear: the peer is refused.
///
/// # Safety
/// The information of a request that nobody has seen.
pub(crate) unsafe fn forget_request(info: *mut Info) {
    // SAFETY: as the caller promises: made by us, and its handle that of a request.
    unsafe {
        if let Ok(info) = input(info.cast_const()) {
            let _ = reject(info.handle, &[]);
        }
        crate::info::build::free(info);
    }
}

/// The data that a peer refused with.
fn rejected_with(reason: &str) -> Vec<u8> {
    let pairs = reason.as_bytes().chunks_exact(2);
    pairs
        .map_while(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Connection data of the program.
///
/// # Safety
/// Null or so many bytes.
pub(crate) unsafe fn parameters<'a>(param: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len > CM_DATA_SIZE {
        return Err(FiError::INVAL);
    }
    if param.is_null() {
        return Ok(&[]);
    }
    // SAFETY: not null, and so many bytes as the caller promises.
    unsafe { list(param.cast(), len) }
}

impl Endpoint {
    /// A new queue pair as the connection of this endpoint.
    fn only_connection(&self, live: &Live, peer: &Hello) -> Result<rkey_device::Qp> {
        let mut state = live.state.lock();
        if !state.connections.is_empty() {
            return Err(FiError::ISCONN);
        }
        let qp = self.new_qp(live, None)?;
        self.add_connection(live, &mut state, qp.clone(), peer)?;
        Ok(qp)
    }

    fn connected(&self, live: &Live, data: &[u8]) {
        let mut state = live.state.lock();
        state.connections[0].pinned = false;
        state.connections[0].up = !state.connections[0].lost;
        drop(state);
        if let Some(eq) = &live.eq {
            let fid = self.handle.load(Ordering::Relaxed);
            eq.unless_closing(&self.closing, || {
                eq.connection(FI_CONNECTED, fid, std::ptr::null_mut(), data);
            });
        }
    }

    fn not_connected(&self, live: &Live, error: FiError, error_data: Vec<u8>) {
        let mut state = live.state.lock();
        state.connections[0].pinned = false;
        state.connections[0].qp = None;
        drop(state);
        if let Some(eq) = &live.eq {
            let fid = self.handle.load(Ordering::Relaxed);
            eq.unless_closing(&self.closing, || {
                eq.failed(Failure {
                    fid,
                    context: 0,
                    data: 0,
                    error,
                    error_data,
                });
            });
        }
    }

    /// The thread of a connect.
    fn connect(&self, qp: &rkey_device::Qp, address: SocketAddr, data: &[u8]) {
        let Some(live) = self.live.get() else { return };
        let hello = self.hello(live, data).encode();
        match self.domain.device.connect(address, &[qp], &hello, PATIENCE) {
            Ok(peer) => match Hello::decode(&peer.private_data) {
                Some(there) => {
                    live.state.lock().connections[0].device_keys = there.device_keys;
                    self.connected(live, &there.data);
                }
                None => self.not_connected(live, FiError::CONNRESET, Vec::new()),
            },
            Err(DeviceError::Refused { reason }) => {
                self.not_connected(live, REFUSED, rejected_with(&reason));
            }
            Err(error) => {
                let number = crate::errno::of_device(&error);
                self.not_connected(live, number, Vec::new());
            }
        }
    }
}

/// `fi_connect`.
pub(super) unsafe extern "C" fn connect(
    ep: *mut FidEp,
    addr: *const c_void,
    param: *const c_void,
    len: usize,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused; data as the caller promises.
        let (ep, data) = unsafe { (&find::<EpObject, _>(ep)?.inner, parameters(param, len)?) };
        if ep.ep_type != FI_EP_MSG {
            return Err(FiError::NOSYS);
        }
        if addr.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: an address of the domain's format, as the caller promises.
        let address = unsafe { crate::av::address_at(ep.domain.format, addr.cast()) }.0;
        let address = address.ok_or(FiError::INVAL)?;
        ep.enable()?;
        let live = ep.live()?;
        let unknown = Hello {
            name: address,
            ..ep.hello(live, &[])
        };
        let qp = ep.only_connection(live, &unknown)?;
        let (ep, data) = (Arc::clone(ep), data.to_vec());
        std::thread::Builder::new()
            .name("rkey-fi-connect".to_owned())
            .spawn(move || ep.connect(&qp, address, &data))
            .map_err(|_| FiError::NOMEM)?;
        Ok(())
    })
}

/// `fi_accept`.
pub(super) unsafe extern "C" fn accept(ep: *mut FidEp, param: *const c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused; data as the caller promises.
        let (ep, data) = unsafe { (&find::<EpObject, _>(ep)?.inner, parameters(param, len)?) };
        if ep.ep_type != FI_EP_MSG {
            return Err(FiError::NOSYS);
        }
        ep.enable()?;
        let live = ep.live()?;
        let request = ep.setup.lock().request.take().ok_or(FiError::INVAL)?;
        if let Err(why) = ep.admits(live, &request.hello) {
            complain(format_args!(
                "a connection from {} was refused: {why}",
                request.hello.name
            ));
            request.incoming.reject("");
            return Err(FiError::CONNREFUSED);
        }
        let qp = ep.only_connection(live, &request.hello)?;
        let (ep, hello) = (Arc::clone(ep), ep.hello(live, data).encode());
        std::thread::Builder::new()
            .name("rkey-fi-accept".to_owned())
            .spawn(move || {
                let Some(live) = ep.live.get() else { return };
                match request.incoming.accept(&[&qp], &hello) {
                    Ok(_) => ep.connected(live, &[]),
                    Err(error) => {
                        ep.not_connected(live, crate::errno::of_device(&error), Vec::new());
                    }
                }
            })
            .map_err(|_| FiError::NOMEM)?;
        Ok(())
    })
}

/// `fi_shutdown`: tells the peer, after everything that was sent before.
pub(super) unsafe extern "C" fn shutdown(ep: *mut FidEp, flags: u64) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        if ep.ep_type != FI_EP_MSG {
            return Err(FiError::NOSYS);
        }
        let live = ep.live()?;
        {
            let mut state = live.state.lock();
            match state.connections.first() {
                Some(connection) if connection.up => {}
                _ => return Err(FiError::NOTCONN),
            }
            ep.say(&mut state, 0, &Header::new(Kind::Bye), &[]);
        }
        ep.linger(live);
        let mut state = live.state.lock();
        ep.lose(live, &mut state, 0);
        Ok(())
    })
}

/// `fi_getpeer`.
pub(super) unsafe extern "C" fn getpeer(
    ep: *mut FidEp,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        if ep.ep_type != FI_EP_MSG {
            return Err(FiError::NOSYS);
        }
        let peer = match ep.live()?.state.lock().connections.first() {
            Some(connection) if connection.up => connection.peer,
            _ => return Err(FiError::NOTCONN),
        };
        // SAFETY: room as the caller promises.
        unsafe { give_name(&ep.domain.format.encode(peer), addr, len) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_refusal_survives() {
        assert_eq!(rejected_with("00ff10"), [0, 255, 16]);
        assert!(rejected_with("no hex at all").is_empty());
    }
}

//! Connection management of `FI_EP_MSG`: connect, accept, shutdown. Results are reported to the event queue.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::object::EpObject;
use super::*;
use crate::connect_request::parameters;
use crate::eq::Failure;
use crate::object::{find, status, write_name};
use rkey_device::{ConnectOptions, DeviceError};
use rkey_endpoint::complaint::complain;
use rkey_endpoint::listeners::{Accepted, Coming};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long to wait for a peer to accept.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);
/// The error for a refusal by the peer, in `err` of the event.
const REFUSED: FiError = FiError::CONNREFUSED;

/// The data that a peer sent with its refusal.
fn rejected_with(reason: &str) -> Vec<u8> {
    let pairs = reason.as_bytes().chunks_exact(2);
    pairs
        .map_while(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

impl Endpoint {
    /// Creates the endpoint's only connection, and returns its queue pair. Returns `FI_EISCONN` if there is already one.
    fn only_connection(&self, live: &Live, peer: SocketAddr) -> Result<rkey_device::Qp> {
        let mut state = live.state.lock();
        if state.rdm.connections().slots() > 0 {
            return Err(FiError::ISCONN);
        }
        let qp = live.new_qp(None)?;
        live.add_connection(&mut state, qp.clone(), peer.into())?;
        Ok(qp)
    }

    /// Undoes [`Endpoint::only_connection`]. Must not be called if a request has been sent to the peer.
    fn no_connection(live: &Live) {
        let mut state = live.state.lock();
        state.rdm.outbox_mut().forget_connections();
    }

    /// Connects with `make` in a separate thread, and reports the result to the program.
    fn make_connection(
        self: &Arc<Self>,
        live: &Live,
        thread: std::thread::Builder,
        make: impl FnOnce(&Self, &Live) -> Made + Send + 'static,
    ) -> Result<()> {
        let ep = Arc::clone(self);
        let spawned = rkey_device::threads::spawn_by(thread, move || {
            let Some(live) = ep.live.get() else { return };
            let made = catch_unwind(AssertUnwindSafe(|| make(&ep, live)));
            ep.report_connection(made.unwrap_or(Err((FiError::IO, Vec::new()))));
        });
        spawned.map(drop).map_err(|_| {
            Self::no_connection(live);
            FiError::NOMEM
        })
    }

    fn report_connection(&self, made: Made) {
        let Some(live) = self.live.get() else { return };
        match made {
            Ok(data) => self.connected(live, &data),
            Err((error, data)) => self.not_connected(live, error, data),
        }
    }

    fn connected(&self, live: &Live, data: &[u8]) {
        let mut state = live.state.lock();
        // The peer may already have exited. If so, the disconnection is reported after the connection.
        let lost = state.rdm.made(&live.host, 0).is_err();
        let over = lost && !self.closing.load(Ordering::Acquire);
        // Report this under the lock, so that the program gets the event of the connection before that of its end.
        if let Some(eq) = &live.host.eq {
            let fid = self.handle.load(Ordering::Relaxed);
            eq.unless_closing(&self.closing, || {
                eq.connection(FI_CONNECTED, fid, std::ptr::null_mut(), data);
            });
        }
        if over {
            state.rdm.tell_shut(&live.host);
        }
    }

    fn not_connected(&self, live: &Live, error: FiError, error_data: Vec<u8>) {
        let mut state = live.state.lock();
        state.rdm.outbox_mut().refuse(0);
        drop(state);
        if let Some(eq) = &live.host.eq {
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

    /// Accepts the request that the endpoint was opened for; the listeners' thread completes it. Refuses a peer that the endpoint does
    /// not admit. If no queue pair can be created, the request remains, and can be accepted later.
    fn accept(self: &Arc<Self>, live: &Live, data: &[u8]) -> Result<()> {
        let request = self.setup.lock().request.take().ok_or(FiError::INVAL)?;
        let (asker, port) = (
            request.incoming.peer().node,
            request.incoming.local_address().port(),
        );
        if let Err(why) = live.admission.admits(&request.hello, asker, port) {
            complain(format_args!(
                "refused a connection from {}: {why}",
                request.hello.name
            ));
            request.incoming.reject("");
            return Err(FiError::CONNREFUSED);
        }
        let begun = self.only_connection(live, request.hello.name);
        let qp = match begun {
            Ok(qp) => qp,
            Err(error) => {
                self.setup.lock().request = Some(request);
                return Err(error);
            }
        };
        live.state
            .lock()
            .rdm
            .outbox_mut()
            .set_device_keys(0, request.hello.device_keys);
        let hello = live.answer(&request.hello, data).encode();
        let (ep, this) = (Arc::clone(self), Arc::clone(self));
        let then = move |ready: std::result::Result<(), DeviceError>| {
            let made = ready.map(|()| Vec::new());
            ep.report_connection(
                made.map_err(|error| (crate::errno::of_device(&error), Vec::new())),
            );
        };
        let answered = self.domain.fabric.listeners.accept(|| {
            let accepting = request.incoming.answer(&[&qp], &hello)?;
            Ok(Accepted {
                client: Coming {
                    accepting,
                    then: Box::new(then),
                },
                is_wanted: Box::new(move || !this.closing.load(Ordering::Acquire)),
            })
        });
        if let Err(error) = answered {
            self.not_connected(live, error, Vec::new());
        }
        Ok(())
    }

    /// Requests a connection from the listener at an address, and waits for the answer.
    fn connect(&self, live: &Live, qp: &rkey_device::Qp, address: SocketAddr, data: &[u8]) -> Made {
        let how = ConnectOptions {
            local: None,
            find: ACCEPT_TIMEOUT,
            answer: ACCEPT_TIMEOUT,
        };
        match live.ask_at(address.into(), qp, data, &how) {
            Ok(there) => {
                live.state
                    .lock()
                    .rdm
                    .outbox_mut()
                    .set_device_keys(0, there.device_keys);
                Ok(there.data)
            }
            Err(DeviceError::Refused { reason }) => Err((REFUSED, rejected_with(&reason))),
            Err(error) => Err((crate::errno::of_device(&error), Vec::new())),
        }
    }
}

/// The result of a connection attempt: the peer's data, or the error and data of the event.
type Made = std::result::Result<Vec<u8>, (FiError, Vec<u8>)>;

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_owned())
}

/// `fi_connect`.
pub(super) unsafe extern "C" fn connect(
    ep: *mut FidEp,
    addr: *const c_void,
    param: *const c_void,
    len: usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees valid data.
        let (ep, data) = unsafe { (&find::<EpObject, _>(ep)?.inner, parameters(param, len)?) };
        if ep.ep_type != FI_EP_MSG {
            return Err(FiError::NOSYS);
        }
        if addr.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: an address of the domain's format, as the caller guarantees.
        let address = unsafe { crate::av::address_at(ep.domain.format, addr.cast()) }.0;
        let address = address.ok_or(FiError::INVAL)?;
        ep.enable()?;
        let live = ep.live()?;
        let qp = ep.only_connection(live, address)?;
        let data = data.to_vec();
        ep.make_connection(live, thread("rkey-fi-connect"), move |ep, live| {
            ep.connect(live, &qp, address, &data)
        })
    })
}

/// `fi_accept`.
pub(super) unsafe extern "C" fn accept(ep: *mut FidEp, param: *const c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees valid data.
        let (ep, data) = unsafe { (&find::<EpObject, _>(ep)?.inner, parameters(param, len)?) };
        if ep.ep_type != FI_EP_MSG {
            return Err(FiError::NOSYS);
        }
        ep.enable()?;
        let live = ep.live()?;
        ep.accept(live, data)
    })
}

/// `fi_shutdown`: ends the connection; the peer is notified after all earlier messages.
pub(super) unsafe extern "C" fn shutdown(ep: *mut FidEp, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
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
            match state.rdm.connections().first() {
                Some(connection) if connection.state().is_open() => {}
                _ => return Err(FiError::NOTCONN),
            }
            state.rdm.say_bye(&live.host, 0);
        }
        live.linger();
        live.state.lock().rdm.lose(&live.host, 0);
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
        // SAFETY: `find` validates the handle.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        if ep.ep_type != FI_EP_MSG {
            return Err(FiError::NOSYS);
        }
        let peer = match ep.live()?.state.lock().rdm.connections().first() {
            Some(connection) if connection.state().is_open() => connection.peer,
            _ => return Err(FiError::NOTCONN),
        };
        // SAFETY: the caller guarantees the room.
        unsafe { write_name(&ep.domain.format.encode(peer), addr, len) }
    })
}

#[cfg(test)]
mod tests;

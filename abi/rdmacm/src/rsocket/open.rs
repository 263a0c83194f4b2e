//! `rsocket`, `rbind`, `rlisten`, `raccept`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::cm::Id;
use super::datagram::Datagram;
use super::names::{read_address, write_address};
use super::options::Options;
use super::repolling;
use super::service;
use super::socket::{Listening, Phase, Socket, State};
use super::table::{self, Any};
use rkey_kit::{Errno, c_call_or_minus_one};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

/// The limits of a listener's backlog: connections that wait for `raccept`.
const BACKLOG_MIN: usize = 16;
const BACKLOG_MAX: usize = 1024;

/// Creates an identifier for a socket that has none.
pub(super) fn ensure_id(socket: &Arc<Socket>, state: &mut State) -> Result<(), Errno> {
    if state.id.is_none() {
        let id = Id::new(service::channel()?)?;
        table::register(id.key()?, socket);
        state.id = Some(id);
        state.enter(Phase::New);
    }
    Ok(())
}

/// Adds a socket, so that programs can use it. Returns its number.
fn publish(socket: Any) -> c_int {
    let number = table::insert(socket);
    repolling::forget(number);
    number
}

/// Opens a socket. As in the stock library, it refuses `SOCK_NONBLOCK` and `SOCK_CLOEXEC`: librspreload then falls back to an
/// ordinary socket. Programs that pass these flags also use `accept4` and `epoll`, which librspreload does not intercept.
fn open(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    rkey_kit::log::start();
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return Err(Errno::OPNOTSUPP);
    }
    let channel = service::channel()?;
    match (kind, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            let id = Id::new(channel)?;
            let key = id.key()?;
            let socket = Arc::new(Socket::new(id, Options::new(domain, kind), false)?);
            table::register(key, &socket);
            Ok(publish(Any::Stream(socket)))
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            let socket = Arc::new(Datagram::new(domain, false)?);
            Ok(publish(Any::Datagram(socket)))
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// `rsocket`.
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    c_call_or_minus_one(|| open(domain, kind, protocol))
}

/// `rbind`.
///
/// # Safety
/// `address` is null or points to `len` bytes.
pub unsafe extern "C" fn rbind(
    number: c_int,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    c_call_or_minus_one(|| {
        let socket = table::find(number)?;
        // SAFETY: guaranteed by the caller.
        let address = unsafe { read_address(address, len) }?;
        let socket = match socket {
            Any::Stream(socket) => socket,
            Any::Datagram(socket) => {
                socket.state.lock().bind(address)?;
                return Ok(0);
            }
        };
        let mut state = socket.state.lock();
        let options = state.options;
        match state.phase {
            Phase::New => {}
            Phase::Closed => return Err(Errno::BADF),
            _ => return Err(Errno::INVAL),
        }
        ensure_id(&socket, &mut state)?;
        let id = state.id.as_ref().ok_or(Errno::BADF)?;
        id.set_options(options.reuse_address, options.one_family)?;
        id.bind(address)?;
        Ok(0)
    })
}

/// `rlisten`.
pub extern "C" fn rlisten(number: c_int, backlog: c_int) -> c_int {
    c_call_or_minus_one(|| {
        let socket = table::stream(number)?;
        let limit = usize::try_from(backlog).unwrap_or(BACKLOG_MAX);
        let limit = limit.clamp(BACKLOG_MIN, BACKLOG_MAX);
        let mut state = socket.state.lock();
        match &mut state.phase {
            Phase::New => {}
            Phase::Listening(listening) => {
                listening.limit = limit;
                return Ok(0);
            }
            Phase::Closed => return Err(Errno::BADF),
            _ => return Err(Errno::INVAL),
        }
        // Change the phase before `listen`, because a request may arrive at once.
        state.enter(Phase::Listening(Listening {
            ready: VecDeque::new(),
            pending: Vec::new(),
            limit,
        }));
        let id = state.id.as_ref().ok_or(Errno::BADF)?;
        let listens = id.listen();
        if let Err(error) = listens {
            state.enter(Phase::New);
            return Err(error);
        }
        Ok(0)
    })
}

/// `raccept`.
///
/// # Safety
/// `address` and `len` are null or valid for writes of an address and its length.
pub unsafe extern "C" fn raccept(
    number: c_int,
    address: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    c_call_or_minus_one(|| {
        let socket = table::stream(number)?;
        let deadline = socket.deadline(|options| options.receive_timeout);
        let blocks = socket.blocks(0);
        let accepted = socket.wait(blocks, deadline, |state| match &mut state.phase {
            Phase::Listening(listening) => listening.ready.pop_front().map(Ok),
            Phase::Closed => Some(Err(Errno::BADF)),
            _ => Some(Err(Errno::INVAL)),
        })?;
        let peer = {
            let mut state = accepted.state.lock();
            state.listener = None;
            state.id.as_ref().map(Id::addresses).transpose()?
        };
        if let Some((_, Some(peer))) = peer
            && !address.is_null()
        {
            // SAFETY: guaranteed by the caller.
            unsafe { write_address(peer, address, len) }?;
        }
        Ok(publish(Any::Stream(accepted)))
    })
}

//! `rconnect`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::names::read_address;
use super::open::ensure_id;
use super::socket::{Phase, Socket, State};
use super::table::{self, Any};
use crate::lookup::address::{is_any, is_ours};
use crate::state::front::with;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a non-blocking call waits for the peer's answer. Peers answer at once, unless they are stopped or on a slow network.
/// librspreload falls back to an ordinary socket only if this call itself reports a refusal.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for a peer on another host. If no program uses RDMA there, the request is refused after two seconds.
const ANSWER_TIMEOUT_FAR: Duration = Duration::from_secs(3);

const EALREADY: Errno = Errno::from_raw(libc::EALREADY);
const EINPROGRESS: Errno = Errno::from_raw(libc::EINPROGRESS);
const EISCONN: Errno = Errno::from_raw(libc::EISCONN);

/// Starts to connect. Returns whether the peer is on this host.
fn begin(socket: &Arc<Socket>, state: &mut State, to: SocketAddr) -> Result<bool, Errno> {
    match state.phase {
        Phase::New | Phase::Refused(_) => {}
        Phase::Connecting(_) => return Err(EALREADY),
        Phase::Open(_) => return Err(EISCONN),
        Phase::Closed => return Err(Errno::BADF),
        Phase::Listening(_) => return Err(Errno::INVAL),
    }
    let is_here = is_any(to.ip()) || is_ours(to.ip());
    if !is_here && with(|parts| Ok(parts.wire().is_none()))? {
        tracing::info!(
            "{} is not an address of this host; to reach other hosts, set RKEY_WIRE=auto",
            to.ip()
        );
        return Err(Errno::NETUNREACH);
    }
    ensure_id(socket, state)?;
    state.is_reported = false;
    let id = state.id.as_ref().ok_or(Errno::BADF)?;
    id.resolve(to)?;
    state.enter(Phase::Connecting(None));
    Ok(is_here)
}

fn answer(state: &mut State) -> Option<Result<(), Errno>> {
    match &state.phase {
        Phase::Connecting(_) => None,
        Phase::Open(_) => Some(Ok(())),
        Phase::Refused(error) => {
            state.is_reported = true;
            Some(Err(*error))
        }
        _ => Some(Err(Errno::BADF)),
    }
}

/// `rconnect`.
///
/// # Safety
/// `address` is null or points to `len` bytes.
pub unsafe extern "C" fn rconnect(
    number: c_int,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    c_call_or_minus_one(|| {
        let socket = table::find(number)?;
        // SAFETY: guaranteed by the caller.
        let to = unsafe { read_address(address, len) }?;
        let socket = match socket {
            Any::Stream(socket) => socket,
            Any::Datagram(socket) => {
                socket.state.lock().connect(to);
                return Ok(0);
            }
        };
        let is_here = {
            let mut state = socket.state.lock();
            begin(&socket, &mut state, to)?
        };
        let deadline = match (socket.waiting.is_nonblocking(), is_here) {
            (true, true) => Some(rkey_device::time::now() + ANSWER_TIMEOUT),
            (true, false) => Some(rkey_device::time::now() + ANSWER_TIMEOUT_FAR),
            (false, _) => socket.deadline(|options| options.send_timeout),
        };
        socket
            .wait(true, deadline, answer)
            .map_err(|error| match error {
                Errno::AGAIN => EINPROGRESS,
                error => error,
            })?;
        Ok(0)
    })
}

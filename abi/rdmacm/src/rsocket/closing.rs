//! `rshutdown` and `rclose`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::repolling;
use super::socket::{Phase, Socket};
use super::stream::Shutdown;
use super::table::{self, Any};
use super::waiting::Progress;
use rkey_kit::{Errno, c_call, c_call_or_minus_one};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// How long `rclose` waits, by default, for sent data to reach the peer's memory. That takes microseconds, unless the peer is
/// stopped.
const LINGER: Duration = Duration::from_secs(10);

/// `rshutdown`.
pub extern "C" fn rshutdown(number: c_int, how: c_int) -> c_int {
    c_call_or_minus_one(|| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::INVAL),
        };
        let socket = match table::find(number)? {
            Any::Stream(socket) => socket,
            Any::Datagram(socket) => {
                socket.end();
                return Ok(0);
            }
        };
        let mut state = socket.state.lock();
        state.progress();
        state.connection()?.shut(how);
        state.edges.phase();
        drop(state);
        // Other threads that wait for the socket must check again.
        socket.waiting.wake_fd.signal();
        Ok(0)
    })
}

/// Closes a socket whose number is already invalid, after the data that it has sent has reached the peer.
fn close(socket: &Arc<Socket>) {
    linger(socket);
    end(socket);
}

/// Disconnects, and waits until the sent data has reached the peer, or the time for lingering (`SO_LINGER`) has passed.
fn linger(socket: &Arc<Socket>) {
    let linger = {
        let mut state = socket.state.lock();
        state.progress();
        if let Phase::Open(connection) = &mut state.phase {
            connection.shut(Shutdown::Both);
        }
        state.options.linger.unwrap_or(LINGER)
    };
    let deadline = rkey_device::time::now() + linger;
    let is_done = || {
        socket.wait(true, Some(deadline), |state| match &state.phase {
            Phase::Open(connection) if !connection.stream().is_idle() => None,
            _ => Some(Ok(())),
        })
    };
    while is_done() == Err(Errno::INTR) {}
}

/// Ends a socket at once. The connection manager tells the peer.
fn end(socket: &Arc<Socket>) {
    let (id, phase, iomaps) = {
        let mut state = socket.state.lock();
        let iomaps = std::mem::take(&mut state.iomaps);
        let (id, phase) = state.close();
        (id, phase, iomaps)
    };
    if let Some(Ok(key)) = id.as_ref().map(|id| id.key()) {
        table::unregister(key);
    }
    // The identifier first: the connection manager uses the queue pair until it has ended.
    drop(id);
    if let Phase::Listening(listening) = phase {
        // The program has sent nothing on them, so there is nothing to wait for. Stopped peers do not delay this.
        let pending = listening.pending.into_iter().map(|(_, socket)| socket);
        for socket in listening.ready.into_iter().chain(pending) {
            end(&socket);
        }
    } else {
        drop(phase);
    }
    drop(iomaps);
    socket.waiting.wake_fd.signal();
}

/// `rclose`, for sockets and for instances of `repoll_create`. Like the stock library, returns the error number `EBADF` itself, not
/// -1, if the number is not that of a socket.
pub extern "C" fn rclose(number: c_int) -> c_int {
    c_call(|| {
        crate::state::front::service()?;
        if repolling::close(number) {
            return Ok(0);
        }
        let socket = table::remove(number).ok_or(Errno::BADF)?;
        // Before it is signalled, and before this waits for the peer.
        repolling::stop_watching(number);
        match &socket {
            Any::Stream(socket) => close(socket),
            Any::Datagram(socket) => socket.end(),
        }
        // Another thread may have added it again meanwhile. The number is still that of the socket.
        repolling::stop_watching(number);
        Ok(0)
    })
}

//! The calls that send and receive.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::connection::RESET;
use super::datagram::Datagram;
use super::memory::Buffers;
use super::names::{read_address, write_address};
use super::socket::Socket;
use super::table::{self, Any};
use rkey_kit::Errno;
use rkey_kit::argument::{input, list, output};
use rkey_kit::contained;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

/// `EPIPE`.
const PIPE: Errno = Errno::from_raw(libc::EPIPE);
/// The maximum number of buffers in one call.
const BUFFERS_MAX: usize = 1024;
/// The flags that sending calls support or may ignore.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_MORE
    | libc::MSG_DONTROUTE
    | libc::MSG_EOR;
/// The flags that receiving calls support or may ignore.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_TRUNC
    | libc::MSG_CMSG_CLOEXEC;

/// Sends bytes or a datagram.
fn send(
    socket: &Any,
    mut from: Buffers<'_>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize, Errno> {
    if flags & !SEND_FLAGS != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    match socket {
        Any::Stream(socket) => send_bytes(socket, from, flags),
        Any::Datagram(socket) => socket.send(&mut from, to, blocks(socket, flags)),
    }
}

fn blocks(socket: &Datagram, flags: c_int) -> bool {
    !socket.waiting.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
}

/// The result of receiving.
struct Received {
    len: usize,
    /// Whether a datagram was truncated.
    is_cut: bool,
    /// The sender, for a datagram.
    from: Option<SocketAddr>,
}

/// Receives bytes or a datagram.
fn receive(socket: &Any, mut to: Buffers<'_>, flags: c_int) -> Result<Received, Errno> {
    if flags & !RECEIVE_FLAGS != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    match socket {
        Any::Stream(socket) => Ok(Received {
            len: receive_bytes(socket, to, flags)?,
            is_cut: false,
            from: None,
        }),
        Any::Datagram(socket) => {
            let peeks = flags & libc::MSG_PEEK != 0;
            let (copied, len, from) = socket.receive(&mut to, blocks(socket, flags), peeks)?;
            Ok(Received {
                len: if flags & libc::MSG_TRUNC != 0 {
                    len
                } else {
                    copied
                },
                is_cut: len > copied,
                from: Some(from),
            })
        }
    }
}

/// Sends bytes. A blocking call sends all of them.
///
/// # Errors
/// `EAGAIN`, `EINTR`, `EFAULT`: nothing was sent. `EPIPE`: this side has shut down sending. `ECONNRESET`: the peer has disconnected.
fn send_bytes(socket: &Socket, mut from: Buffers<'_>, flags: c_int) -> Result<usize, Errno> {
    let blocks = socket.blocks(flags);
    let deadline = socket.deadline(|options| options.send_timeout);
    let mut done = 0;
    let result = socket.wait(blocks, deadline, |state| {
        let connection = match state.connection() {
            Ok(connection) => connection,
            Err(error) => return Some(Err(error)),
        };
        if !connection.stream().is_writable() {
            let error = match connection.stream().is_shut() {
                true => PIPE,
                false => connection.error.take().unwrap_or(RESET),
            };
            return Some(Err(error));
        }
        if let Err(error) = connection.send(&mut from, &mut done) {
            return Some(Err(error));
        }
        from.is_empty().then_some(Ok(()))
    });
    match result {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

/// Receives bytes. Returns 0 at the end of the stream.
///
/// # Errors
/// `EAGAIN`, `EINTR`, `EFAULT`: nothing was received. `ECONNRESET`: the connection has failed.
fn receive_bytes(socket: &Socket, mut to: Buffers<'_>, flags: c_int) -> Result<usize, Errno> {
    let blocks = socket.blocks(flags);
    let deadline = socket.deadline(|options| options.receive_timeout);
    let (peeks, wants_all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let want = to.len();
    let mut done = 0;
    let result = socket.wait(blocks, deadline, |state| {
        let connection = match state.connection() {
            Ok(connection) => connection,
            Err(error) => return Some(Err(error)),
        };
        let got = match peeks {
            true => connection
                .peek(&mut to, done as u32)
                .map(|len| len as usize),
            false => connection.receive(&mut to),
        };
        match got {
            Ok(len) => done += len,
            Err(error) => return Some(Err(error)),
        }
        let is_over = !connection.stream().is_readable();
        if done == want || done > 0 && (!wants_all || is_over) {
            return Some(Ok(()));
        }
        is_over.then(|| connection.error.take().map_or(Ok(()), Err))
    });
    match result {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

pub(super) fn single(base: *mut c_void, len: usize) -> [libc::iovec; 1] {
    [libc::iovec {
        iov_base: base,
        iov_len: len,
    }]
}

/// The list of buffers that a program passes.
///
/// # Safety
/// `buffers` points to `count` buffers.
unsafe fn iovecs<'a>(
    buffers: *const libc::iovec,
    count: usize,
) -> Result<&'a [libc::iovec], Errno> {
    if count > BUFFERS_MAX {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { list(buffers, count) }
}

pub(super) fn count_or_minus_one(body: impl FnOnce() -> Result<usize, Errno>) -> isize {
    match contained(body) {
        Ok(count) => count as isize,
        Err(error) => {
            error.set();
            -1
        }
    }
}

/// The destination of a datagram, if the program passes one. Streams ignore it.
///
/// # Safety
/// If not null, it points to `len` bytes.
unsafe fn destination(
    socket: &Any,
    to: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    match socket {
        Any::Datagram(_) if !to.is_null() && len > 0 => {
            // SAFETY: guaranteed by the caller.
            unsafe { read_address(to, len) }.map(Some)
        }
        _ => Ok(None),
    }
}

/// `rsend`.
///
/// # Safety
/// `data` points to `len` readable bytes.
pub unsafe extern "C" fn rsend(
    number: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { rsendto(number, data, len, flags, null(), 0) }
}

/// `rsendto`.
///
/// # Safety
/// `data` points to `len` readable bytes; `to` is null or points to `to_len` bytes.
pub unsafe extern "C" fn rsendto(
    number: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> isize {
    let buffers = single(data.cast_mut(), len);
    count_or_minus_one(|| {
        let socket = table::find(number)?;
        // SAFETY: guaranteed by the caller.
        let (buffers, to) = unsafe { (Buffers::new(&buffers)?, destination(&socket, to, to_len)?) };
        send(&socket, buffers, flags, to)
    })
}

/// `rsendmsg`. Control messages are refused.
///
/// # Safety
/// `message` is null or valid.
pub unsafe extern "C" fn rsendmsg(
    number: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    count_or_minus_one(|| {
        let socket = table::find(number)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let message = input(message)?;
            if !message.msg_control.is_null() && message.msg_controllen > 0 {
                return Err(Errno::OPNOTSUPP);
            }
            let buffers = iovecs(message.msg_iov, message.msg_iovlen)?;
            let to = destination(&socket, message.msg_name.cast(), message.msg_namelen)?;
            send(&socket, Buffers::new(buffers)?, flags, to)
        }
    })
}

/// `rwrite`.
///
/// # Safety
/// `data` points to `len` readable bytes.
pub unsafe extern "C" fn rwrite(number: c_int, data: *const c_void, len: usize) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { rsend(number, data, len, 0) }
}

/// `rwritev`.
///
/// # Safety
/// `buffers` points to `count` readable buffers.
pub unsafe extern "C" fn rwritev(
    number: c_int,
    buffers: *const libc::iovec,
    count: c_int,
) -> isize {
    count_or_minus_one(|| {
        let socket = table::find(number)?;
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        // SAFETY: guaranteed by the caller.
        let buffers = unsafe { Buffers::new(iovecs(buffers, count)?) }?;
        send(&socket, buffers, 0, None)
    })
}

/// `rrecv`.
///
/// # Safety
/// `data` is valid for writes of `len` bytes.
pub unsafe extern "C" fn rrecv(
    number: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { rrecvfrom(number, data, len, flags, null_mut(), null_mut()) }
}

/// `rrecvfrom`. For a stream, the length of the address becomes 0.
///
/// # Safety
/// `data` is valid for writes of `len` bytes; `from` and `from_len` are null or valid for writes of an address and its length.
pub unsafe extern "C" fn rrecvfrom(
    number: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_len: *mut libc::socklen_t,
) -> isize {
    let buffers = single(data, len);
    count_or_minus_one(|| {
        let socket = table::find(number)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let got = receive(&socket, Buffers::new(&buffers)?, flags)?;
            match got.from {
                Some(address) if !from.is_null() => write_address(address, from, from_len)?,
                None if !from.is_null() && !from_len.is_null() => from_len.write_unaligned(0),
                _ => {}
            }
            Ok(got.len)
        }
    })
}

/// `rrecvmsg`. There are no control messages.
///
/// # Safety
/// `message` is null or valid.
pub unsafe extern "C" fn rrecvmsg(
    number: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    count_or_minus_one(|| {
        let socket = table::find(number)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let message = output(message)?;
            let buffers = iovecs(message.msg_iov, message.msg_iovlen)?;
            let got = receive(&socket, Buffers::new(buffers)?, flags)?;
            match got.from {
                Some(address) if !message.msg_name.is_null() => {
                    write_address(address, message.msg_name.cast(), &mut message.msg_namelen)?;
                }
                _ => message.msg_namelen = 0,
            }
            message.msg_controllen = 0;
            message.msg_flags = if got.is_cut { libc::MSG_TRUNC } else { 0 };
            Ok(got.len)
        }
    })
}

/// `rread`.
///
/// # Safety
/// `data` is valid for writes of `len` bytes.
pub unsafe extern "C" fn rread(number: c_int, data: *mut c_void, len: usize) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { rrecv(number, data, len, 0) }
}

/// `rreadv`.
///
/// # Safety
/// `buffers` points to `count` writable buffers.
pub unsafe extern "C" fn rreadv(number: c_int, buffers: *const libc::iovec, count: c_int) -> isize {
    count_or_minus_one(|| {
        let socket = table::find(number)?;
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        // SAFETY: guaranteed by the caller.
        let buffers = unsafe { Buffers::new(iovecs(buffers, count)?) }?;
        receive(&socket, buffers, 0).map(|got| got.len)
    })
}

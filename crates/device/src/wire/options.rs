//! Socket options that have no safe wrapper.

#![allow(unsafe_code)]
// UNSAFETY: sets socket options.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Takes IPv6 datagrams without a UDP checksum, which Soft-RoCE sends: the invariant checksum covers them.
pub(super) fn take_without_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, &1_i32)
}

/// Makes a program choose which of the sockets that share an address gets a datagram. It sees the datagram from the UDP payload on,
/// and returns the number of a socket, in the order in which they were bound. Any member of the group may set it for all.
pub(super) fn steer(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog {
        len,
        // The kernel only reads it.
        filter: program.as_ptr().cast_mut(),
    };
    let option = libc::SO_ATTACH_REUSEPORT_CBPF;
    set(socket, libc::SOL_SOCKET, option, &program)
}

fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let value: *const T = value;
    // SAFETY: the socket is open, and the value has the type of the option; what a filter points to lives as long as this call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), length) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

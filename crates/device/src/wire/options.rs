//! Socket options that have no safe wrapper.

#![allow(unsafe_code)]
// UNSAFETY: sets socket options.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Accepts IPv6 datagrams without a UDP checksum, which Soft-RoCE sends: the invariant checksum covers
/// them.
pub(super) fn take_without_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, &1_i32)
}

fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let value: *const T = value;
    // SAFETY: the socket is open, and the value has the option's type.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), length) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

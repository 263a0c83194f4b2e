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

/// Makes the kernel report nothing about a received datagram except its length and its congestion bits. `quinn-udp` also requests
/// its time and destination; with those, the congestion bits of coalesced datagrams do not fit into its buffer.
pub(super) fn report_only_congestion(socket: BorrowedFd<'_>, is_v4: bool) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &0_i32)?;
    match is_v4 {
        true => set(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &0_i32),
        false => set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &0_i32),
    }
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

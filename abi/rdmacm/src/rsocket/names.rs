//! `rgetpeername` and `rgetsockname`; reading and writing addresses in the memory of programs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::cm::Id;
use super::socket::Phase;
use super::table::{self, Any};
use crate::lookup::address;
use rkey_kit::argument::output;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reads an address that a program passes with its length.
///
/// # Errors
/// `EINVAL`: null, or too short. `EAFNOSUPPORT`: neither IPv4 nor IPv6.
///
/// # Safety
/// If not null, it points to `len` bytes.
pub unsafe fn read_address(
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<SocketAddr, Errno> {
    let len = len as usize;
    if address.is_null() || len < size_of::<libc::sa_family_t>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, and long enough for the family.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    let needed = match c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(Errno::from_raw(libc::EAFNOSUPPORT)),
    };
    if len < needed {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, and long enough for its family.
    unsafe { address::read(address) }
}

/// Writes an address to the memory of a program, truncated to the length there, and then its full length. `into` may be null if the
/// length there is 0: librspreload asks only for the length before it falls back to an ordinary socket.
///
/// # Errors
/// `EFAULT`: a pointer is null. `EINVAL`: `len` is misaligned.
///
/// # Safety
/// `into` and `len` are null or valid for writes of an address and its length.
pub unsafe fn write_address(
    address: SocketAddr,
    into: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<(), Errno> {
    if len.is_null() {
        return Err(Errno::FAULT);
    }
    let (storage, whole) = (address::storage(address), address::length(address));
    // SAFETY: not null, and the caller guarantees that it is valid for writes.
    let len = unsafe { output(len) }?;
    let here = whole.min(*len as usize);
    if here > 0 {
        if into.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: not null, and the caller guarantees that it is valid for writes of this length.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), into.cast(), here);
        }
    }
    *len = whole as libc::socklen_t;
    Ok(())
}

unsafe fn get_name(
    number: c_int,
    into: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    peer: bool,
) -> Result<c_int, Errno> {
    let socket = match table::find(number)? {
        Any::Stream(socket) => socket,
        Any::Datagram(socket) => {
            let state = socket.state.lock();
            let address = match peer {
                true => state.peer.ok_or(Errno::from_raw(libc::ENOTCONN))?,
                false => state.local()?,
            };
            // SAFETY: guaranteed by the caller.
            unsafe { write_address(address, into, len) }?;
            return Ok(0);
        }
    };
    let address = {
        let state = socket.state.lock();
        let known = state.id.as_ref().map(Id::addresses).transpose()?;
        let (own, of_peer) = known.unwrap_or_default();
        let any = match state.options.family {
            libc::AF_INET6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
            _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
        };
        match peer {
            true if matches!(state.phase, Phase::Open(_)) => of_peer,
            true => None,
            false => Some(own.unwrap_or(any)),
        }
    };
    let address = address.ok_or(Errno::from_raw(libc::ENOTCONN))?;
    // SAFETY: guaranteed by the caller.
    unsafe { write_address(address, into, len) }?;
    Ok(0)
}

/// `rgetpeername`.
///
/// # Safety
/// `address` and `len` are null or valid for writes of an address and its length.
pub unsafe extern "C" fn rgetpeername(
    number: c_int,
    address: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| unsafe { get_name(number, address, len, true) })
}

/// `rgetsockname`.
///
/// # Safety
/// `address` and `len` are null or valid for writes of an address and its length.
pub unsafe extern "C" fn rgetsockname(
    number: c_int,
    address: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_call_or_minus_one(|| unsafe { get_name(number, address, len, false) })
}

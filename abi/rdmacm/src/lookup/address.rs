//! Socket addresses: conversion from and to C, and which of them belong to this host.

#![allow(unsafe_code)]
// UNSAFETY: reads addresses that C code passes, whose layout depends on their family.

use crate::sys::Gid;
use rkey_kit::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Reads an address that a program passes.
///
/// # Errors
/// `EINVAL`: null, or neither IPv4 nor IPv6.
///
/// # Safety
/// If not null, it points to an address as long as its family requires.
pub unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null; every address begins with its family. It may be unaligned.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let (port, scope) = (u16::from_be(v6.sin6_port), v6.sin6_scope_id);
            Ok(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        _ => {
            tracing::info!("addresses of family {family} are not supported: use IPv4 or IPv6");
            Err(Errno::INVAL)
        }
    }
}

/// Reads an address that a program may omit.
///
/// # Errors
/// Same as for [`read`].
///
/// # Safety
/// Same as for [`read`].
pub unsafe fn read_or_null(address: *const libc::sockaddr) -> Result<Option<SocketAddr>, Errno> {
    match address.is_null() {
        true => Ok(None),
        // SAFETY: guaranteed by the caller.
        false => unsafe { read(address) }.map(Some),
    }
}

/// Converts an address to its C form.
#[must_use]
pub fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: zeros are an address without a family, and the storage has room for every family.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let at = &raw mut storage;
        match address {
            SocketAddr::V4(v4) => at.cast::<libc::sockaddr_in>().write(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => at.cast::<libc::sockaddr_in6>().write(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
        storage
    }
}

/// The port of an address, in network byte order; 0 if it has none.
#[must_use]
pub fn port(storage: &libc::sockaddr_storage) -> u16 {
    // SAFETY: a storage is long and aligned enough for both families.
    unsafe {
        let at = &raw const *storage;
        match libc::c_int::from(storage.ss_family) {
            libc::AF_INET => (*at.cast::<libc::sockaddr_in>()).sin_port,
            libc::AF_INET6 => (*at.cast::<libc::sockaddr_in6>()).sin6_port,
            _ => 0,
        }
    }
}

/// The length of an address in its C form.
#[must_use]
pub fn length(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    }
}

/// The GID of an address.
#[must_use]
pub fn gid(address: SocketAddr) -> Gid {
    Gid(rkey_cm::address::Gid::from(address.ip().to_canonical()).0)
}

/// Whether an address is a wildcard: all addresses of the host. As in the kernel's connection manager, that includes 0.0.0.0/8.
#[must_use]
pub fn is_any(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unspecified(),
    }
}

/// Whether an address belongs to this host.
#[must_use]
pub fn is_ours(ip: IpAddr) -> bool {
    rkey_device::names::is_of_this_host(ip)
}

/// The loopback address of the family of `like`.
#[must_use]
pub fn loopback(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Copies a program's private data. A null pointer means none, whatever the length.
///
/// # Safety
/// If not null, it points to `len` bytes.
pub unsafe fn private_data(data: *const std::ffi::c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: not null, and the caller guarantees the length.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()).to_vec() }
}

/// Reads a number below `/proc/sys/net`.
pub(crate) fn setting(name: &str) -> Option<u16> {
    let text = std::fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    text.trim().parse().ok()
}

/// Whether IPv6 sockets exclude IPv4 by default (`net.ipv6.bindv6only`).
pub fn is_ipv6_alone() -> bool {
    setting("ipv6/bindv6only").is_some_and(|on| on != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip_through_c() {
        for text in ["10.1.2.3:7471", "[fd00::1]:1", "0.0.0.0:0", "[::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = storage(address);
            // SAFETY: the storage has an address of its family.
            let back = unsafe { read((&raw const c).cast()) };
            assert_eq!(back, Ok(address));
            assert_eq!(port(&c), address.port().to_be());
        }
    }

    #[test]
    fn null_and_other_address_families_are_refused() {
        // SAFETY: null, and a whole address.
        unsafe {
            assert_eq!(read(std::ptr::null()), Err(Errno::INVAL));
            assert_eq!(read_or_null(std::ptr::null()), Ok(None));
            let mut unix: libc::sockaddr_storage = std::mem::zeroed();
            unix.ss_family = libc::AF_UNIX as u16;
            assert_eq!(read((&raw const unix).cast()), Err(Errno::INVAL));
        }
    }

    #[test]
    fn wildcard_addresses_are_recognized() {
        for any in ["0.0.0.0", "0.1.2.3", "::"] {
            assert!(is_any(any.parse().unwrap()), "{any}");
        }
        for one in ["127.0.0.1", "::1", "10.0.0.1"] {
            assert!(!is_any(one.parse().unwrap()), "{one}");
        }
    }
}

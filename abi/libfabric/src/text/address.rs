//! Addresses as text: `fi_sockaddr_in://127.0.0.1:7471`.

#![allow(unsafe_code)]
// UNSAFETY: reads socket addresses of the program.

use rkey_fi::sys::{FI_ADDR_STR, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
use std::ffi::{CStr, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The text for an address of a format that our provider has.
///
/// # Safety
/// The address is null, or valid for its format.
pub(super) unsafe fn text(format: u32, address: *const c_void) -> String {
    if address.is_null() {
        return "(null)".to_owned();
    }
    let format = match format {
        // SAFETY: guaranteed by the caller: every socket address begins with its family.
        FI_SOCKADDR => match i32::from(unsafe { *address.cast::<libc::sa_family_t>() }) {
            libc::AF_INET => FI_SOCKADDR_IN,
            libc::AF_INET6 => FI_SOCKADDR_IN6,
            _ => FI_SOCKADDR,
        },
        format => format,
    };
    match format {
        FI_SOCKADDR_IN => {
            // SAFETY: guaranteed by the caller.
            let it = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr));
            format!("fi_sockaddr_in://{ip}:{}", u16::from_be(it.sin_port))
        }
        FI_SOCKADDR_IN6 => {
            // SAFETY: guaranteed by the caller.
            let it = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(it.sin6_addr.s6_addr);
            format!("fi_sockaddr_in6://[{ip}]:{}", u16::from_be(it.sin6_port))
        }
        // SAFETY: guaranteed by the caller.
        FI_ADDR_STR => unsafe { CStr::from_ptr(address.cast()) }
            .to_string_lossy()
            .into_owned(),
        _ => "(an address of another provider)".to_owned(),
    }
}

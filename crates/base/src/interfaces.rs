//! The network interfaces of this host and their addresses.

#![allow(unsafe_code)]
// UNSAFETY: walks the list of `getifaddrs`, and asks for an MTU with an `ioctl`.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The name of the interface.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// The index of the interface.
    pub index: u32,
    /// Whether the interface is a loopback interface.
    pub loopback: bool,
    /// Whether the interface can send: it has a carrier.
    pub running: bool,
}

/// The addresses of the interfaces that are up, in the kernel's order.
#[must_use]
pub fn addresses() -> Vec<Address> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: returns a list that is ours until it is freed below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = head;
    // SAFETY: each element is valid until the list is freed, and the last one links to null.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        if element.ifa_flags & libc::IFF_UP as u32 == 0 || element.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: not null, and every address has a family.
        let family = i32::from(unsafe { (*element.ifa_addr).sa_family });
        let ip = match family {
            libc::AF_INET => {
                // SAFETY: an address of this family is a `sockaddr_in`.
                let address = unsafe { &*element.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: an address of this family is a `sockaddr_in6`.
                let address = unsafe { &*element.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        // SAFETY: the name is a C string of the list.
        let (name, index) = unsafe {
            let name = CStr::from_ptr(element.ifa_name);
            (name, libc::if_nametoindex(name.as_ptr()))
        };
        found.push(Address {
            name: name.to_string_lossy().into_owned(),
            ip,
            index,
            loopback: element.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
            running: element.ifa_flags & libc::IFF_RUNNING as u32 != 0,
        });
    }
    // SAFETY: `getifaddrs` made the list, and nothing uses it afterwards.
    unsafe { libc::freeifaddrs(head) };
    found
}

/// The MTU of an interface in bytes; `None` if there is no such interface.
#[must_use]
pub fn mtu(name: &str) -> Option<u32> {
    let kind = (AddressFamily::INET, SocketType::DGRAM);
    let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).ok()?;
    // SAFETY: zeros are a request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request has a name, and room for the answer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if result != 0 {
        return None;
    }
    // SAFETY: this request's answer is the MTU.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_an_mtu_and_unknown_names_have_none() {
        assert!(mtu("lo").is_some_and(|mtu| mtu >= 1280));
        for name in ["", "no-such-interf", "a name that is longer than any"] {
            assert_eq!(mtu(name), None, "{name}");
        }
    }

    #[test]
    fn the_loopback_interface_has_address_127_0_0_1() {
        let all = addresses();
        let here = all.iter().find(|it| it.ip == Ipv4Addr::LOCALHOST);
        let here = here.expect("this host has no 127.0.0.1");
        assert!(here.loopback && here.index != 0 && !here.name.is_empty());
    }
}

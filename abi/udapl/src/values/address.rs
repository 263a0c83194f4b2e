//! Addresses of IAs, as Rust values and as programs see them.

#![allow(unsafe_code)]
// UNSAFETY: reads socket addresses that C passes, and returns our own addresses.

use crate::handles::fail::{Fail, Result};
use crate::sys::IaAddressPtr;
use crate::sys::consts::*;
use rkey_device::names;
use std::cell::UnsafeCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// An address as a program sees it: `DAT_IA_ADDRESS_PTR` points into it.
pub struct Visible(Box<UnsafeCell<libc::sockaddr_in6>>);

// SAFETY: only `set` writes it, and its callers hold a lock; programs only read it.
unsafe impl Send for Visible {}
// SAFETY: as above.
unsafe impl Sync for Visible {}

impl Visible {
    /// Stores an address in room for either family.
    #[must_use]
    pub fn new(address: IpAddr, port: u16) -> Self {
        // SAFETY: all zeros is a valid socket address.
        let room = Self(Box::new(UnsafeCell::new(unsafe { std::mem::zeroed() })));
        room.set(address, port);
        room
    }

    /// Replaces the address.
    pub fn set(&self, address: IpAddr, port: u16) {
        let room = self.0.get();
        match address {
            IpAddr::V4(address) => {
                // SAFETY: an IPv4 socket address is smaller than the room, and all zeros is a valid one.
                unsafe {
                    let room = room.cast::<libc::sockaddr_in>();
                    (*room).sin_family = libc::AF_INET as libc::sa_family_t;
                    (*room).sin_port = port.to_be();
                    (*room).sin_addr.s_addr = u32::from_ne_bytes(address.octets());
                }
            }
            IpAddr::V6(address) => {
                // SAFETY: our own room.
                unsafe {
                    (*room).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    (*room).sin6_port = port.to_be();
                    (*room).sin6_addr.s6_addr = address.octets();
                }
            }
        }
    }

    /// The pointer for programs.
    #[must_use]
    pub fn pointer(&self) -> IaAddressPtr {
        self.0.get().cast()
    }
}

/// Reads the address that a program passes.
///
/// # Errors
/// `DAT_INVALID_ADDRESS`: another family. `DAT_INVALID_PARAMETER`: null.
///
/// # Safety
/// The argument is null, or a socket address as long as its family requires.
pub unsafe fn read(number: u32, pointer: *const libc::sockaddr) -> Result<IpAddr> {
    if pointer.is_null() {
        return Err(Fail::argument(number));
    }
    // SAFETY: the family is readable, and so is the rest that it implies; the reads need no alignment.
    unsafe {
        match i32::from((&raw const (*pointer).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let address = pointer.cast::<libc::sockaddr_in>().read_unaligned();
                Ok(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let address = pointer.cast::<libc::sockaddr_in6>().read_unaligned();
                Ok(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => Err(Fail::new(INVALID_ADDRESS, INVALID_ADDRESS_UNSUPPORTED)),
        }
    }
}

/// The address at which the device listens for a connection qualifier. The low 16 bits are the port; the next 32 bits
/// become the scope of an IPv6 address, which is part of the name by which listeners are found. `None`: the port would be 0,
/// or the qualifier has more than 48 bits.
#[must_use]
pub fn of_qualifier(address: IpAddr, conn_qual: u64) -> Option<SocketAddr> {
    let (port, scope) = (conn_qual as u16, u32::try_from(conn_qual >> 16).ok()?);
    match scope {
        0 => (port > 0).then(|| SocketAddr::new(address, port)),
        // Port 0 would mean any free port.
        _ if port == 0 => None,
        _ => {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            Some(SocketAddrV6::new(address, port, 0, scope).into())
        }
    }
}

/// The address in the 7th field of a line of dat.conf: an address of this host, or the name of an interface. Anything
/// else is the loopback address.
#[must_use]
pub fn of_parameters(parameters: &str) -> IpAddr {
    let word = parameters.split_whitespace().next().unwrap_or_default();
    if let Ok(address) = word.parse::<IpAddr>()
        && names::is_of_this_host(address)
    {
        return address;
    }
    of_interface(word).unwrap_or_else(|| {
        tracing::warn!(
            "the 7th field of the line in dat.conf begins with {word:?}, which is neither an interface of this host that has an \
             IPv4 address nor an address of this host: the IA gets 127.0.0.1"
        );
        Ipv4Addr::LOCALHOST.into()
    })
}

/// The first IPv4 address of an interface.
fn of_interface(name: &str) -> Option<IpAddr> {
    let addresses = rkey_kit::interfaces::addresses();
    let mut found = addresses
        .into_iter()
        .filter(|address| address.name == name && address.ip.is_ipv4());
    found.next().map(|address| address.ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip_through_a_program() {
        for text in ["127.0.0.1", "::1"] {
            let address: IpAddr = text.parse().unwrap();
            let visible = Visible::new(address, 7);
            // SAFETY: our own address.
            assert_eq!(unsafe { read(1, visible.pointer()) }, Ok(address));
        }
    }

    #[test]
    fn each_connection_qualifier_has_its_own_address() {
        let address: IpAddr = "127.0.0.1".parse().unwrap();
        let text = |conn_qual| of_qualifier(address, conn_qual).map(|it| it.to_string());
        assert_eq!(text(45_248).as_deref(), Some("127.0.0.1:45248"));
        assert_eq!(text(65_537).as_deref(), Some("[::ffff:127.0.0.1%1]:1"));
        for none in [0, 1 << 16, 1 << 48 | 1, u64::MAX] {
            assert_eq!(text(none), None, "{none}");
        }
    }

    #[test]
    fn the_parameters_of_an_ia_name_an_interface_or_an_address() {
        for text in ["lo 0", "127.0.0.1", "", "no-such-interface", "192.0.2.1"] {
            assert_eq!(of_parameters(text).to_string(), "127.0.0.1", "{text:?}");
        }
        assert_eq!(of_parameters("::1").to_string(), "::1");
    }
}

//! Memberships of identifiers in multicast groups, and the addresses of groups.

#![allow(unsafe_code)]
// UNSAFETY: addresses that C code passes.

use rkey_kit::Errno;
use std::ffi::c_int;
use std::net::Ipv4Addr;

/// `AF_IB`, the family of InfiniBand addresses.
const AF_IB: c_int = 27;
/// The length of an InfiniBand address (`struct sockaddr_ib`).
const IB_LEN: usize = 48;

/// The key of an identifier's membership in a multicast group; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupKey(pub(super) u64);

/// An identifier's membership in a group.
#[derive(Clone, Debug)]
pub struct Member {
    /// The key of the membership.
    pub key: GroupKey,
    /// The group.
    pub address: Address,
    /// Whether the queue pair only sends to the group.
    pub only_sends: bool,
    /// The context pointer that the program passed.
    pub context: usize,
    /// Whether the program is leaving the group. The membership ends when its events are acknowledged.
    pub is_left: bool,
    /// How many events of the membership the program has fetched.
    pub fetched: u64,
    /// How many events of the membership the program has acknowledged.
    pub acknowledged: u64,
}

/// The address of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address as the program passed it. The program must pass the same bytes to leave the group.
    bytes: Vec<u8>,
    /// The GID of the group.
    pub(crate) gid: [u8; 16],
}

impl Address {
    /// Reads the address that a program passes.
    ///
    /// # Errors
    /// `EINVAL`: null, or neither IPv4, IPv6 nor InfiniBand.
    ///
    /// # Safety
    /// If not null, it points to an address as long as its family requires.
    pub(crate) unsafe fn read(address: *const libc::sockaddr) -> Result<Self, Errno> {
        if address.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null; every address begins with its family. It may be unaligned.
        let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
        let len = match c_int::from(family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            AF_IB => IB_LEN,
            _ => return Err(Errno::INVAL),
        };
        // SAFETY: the caller guarantees that it is as long as its family requires.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
        let gid = match len {
            // `sockaddr_in`: the address follows the family and the port.
            16 => {
                let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
                match ip.is_unspecified() {
                    true => [0; 16],
                    false => ip.to_ipv6_mapped().octets(),
                }
            }
            // `sockaddr_in6` and `sockaddr_ib`: 8 bytes precede the address.
            _ => std::array::from_fn(|index| bytes[8 + index]),
        };
        let bytes = bytes.to_vec();
        Ok(Self { bytes, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn read(address: SocketAddr) -> Address {
        let c = crate::lookup::address::storage(address);
        // SAFETY: a whole address.
        unsafe { Address::read((&raw const c).cast()) }.unwrap()
    }

    #[test]
    fn a_group_has_the_gid_of_its_address() {
        let mapped = "::ffff:239.1.2.3".parse::<std::net::Ipv6Addr>().unwrap();
        assert_eq!(read("239.1.2.3:0".parse().unwrap()).gid, mapped.octets());
        assert_eq!(read("0.0.0.0:9".parse().unwrap()).gid, [0; 16]);
        let six = read("[ff0e::7]:0".parse().unwrap());
        assert_eq!(six.gid[..2], [0xff, 0x0e]);
        assert_eq!(six.gid[15], 7);
    }

    #[test]
    fn the_gid_of_an_infiniband_address_is_the_address() {
        let mut bytes = [0u8; IB_LEN];
        bytes[..2].copy_from_slice(&(AF_IB as u16).to_ne_bytes());
        bytes[8..24].copy_from_slice(&[9; 16]);
        // SAFETY: a whole address.
        let address = unsafe { Address::read(bytes.as_ptr().cast()) }.unwrap();
        assert_eq!(address.gid, [9; 16]);
    }

    #[test]
    fn group_addresses_with_different_ports_differ() {
        let (one, other) = ("239.1.2.3:1", "239.1.2.3:2");
        assert_ne!(read(one.parse().unwrap()), read(other.parse().unwrap()));
        assert_eq!(read(one.parse().unwrap()), read(one.parse().unwrap()));
    }

    #[test]
    fn null_and_other_address_families_are_refused() {
        let mut bytes = [0u8; IB_LEN];
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        // SAFETY: null, and an address that begins with its family.
        unsafe {
            assert_eq!(Address::read(std::ptr::null()), Err(Errno::INVAL));
            assert_eq!(Address::read(bytes.as_ptr().cast()), Err(Errno::INVAL));
        }
    }
}

//! The GID table: the addresses of this host, as a RoCE device with all of its interfaces would have them.
//!
//! Entry 0 is the link-local address derived from the device's GUID, which every RoCE port has. The IPv4
//! addresses of the interfaces (as `::ffff:a.b.c.d`) and their IPv6 addresses follow, without loopback and
//! link-local ones. If there are no others, the loopback addresses follow, so that programs find at least one.

use crate::sys::Gid;
use parking_lot::Mutex;
use rkey_kit::interfaces::{Address, addresses};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

/// The maximum number of entries of the table.
pub const TABLE_LEN: usize = 64;

/// One GID of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The GID.
    pub gid: Gid,
    /// The index of its interface.
    pub interface: u32,
}

static TABLE: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// The table, read when the process first opens a device and extended at each later opening.
#[must_use]
pub fn table() -> Vec<Entry> {
    let mut table = TABLE.lock();
    if table.is_empty() {
        *table = read();
    }
    table.clone()
}

/// Reads the host's addresses again. Existing entries keep their indices, which earlier contexts use.
pub fn refresh() {
    extend(&mut TABLE.lock(), &read());
}

/// Appends new entries.
fn extend(table: &mut Vec<Entry>, now: &[Entry]) {
    // The first entry is the device's own and never changes.
    let fresh = if table.is_empty() { 0 } else { 1 };
    for entry in now.iter().skip(fresh) {
        if table.len() < TABLE_LEN && !table.contains(entry) {
            table.push(*entry);
        }
    }
}

/// The entry at an index.
#[must_use]
pub fn get(index: usize) -> Option<Entry> {
    table().get(index).copied()
}

/// The address that a GID stands for. IPv4 addresses are not mapped.
pub fn address(gid: Gid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}

/// Whether a GID belongs to this host: an address of any interface, or a loopback address.
#[must_use]
pub fn is_ours(gid: Gid) -> bool {
    let ip = address(gid);
    table().iter().any(|entry| entry.gid == gid) || rkey_device::names::is_of_this_host(ip)
}

/// Whether a GID is a multicast group.
#[must_use]
pub fn is_multicast(gid: Gid) -> bool {
    address(gid).is_multicast()
}

fn read() -> Vec<Entry> {
    arrange(&addresses(), guid())
}

/// The table for a list of addresses.
fn arrange(addresses: &[Address], guid: u64) -> Vec<Entry> {
    let outside: Vec<_> = addresses
        .iter()
        .filter(|a| !a.loopback && !is_link_local(a.ip))
        .collect();
    let first = outside.first().copied().or(addresses.first());
    let mut link_local = [0; 16];
    link_local[..2].copy_from_slice(&[0xfe, 0x80]);
    link_local[8..].copy_from_slice(&guid.to_be_bytes());
    let mut table = vec![Entry {
        gid: Gid(link_local),
        interface: first.map_or(0, |a| a.index),
    }];
    let chosen: Vec<&Address> = if outside.is_empty() {
        addresses.iter().filter(|a| a.loopback).collect()
    } else {
        outside
    };
    for v4 in [true, false] {
        for address in chosen.iter().filter(|a| a.ip.is_ipv4() == v4) {
            let entry = Entry {
                gid: of(address.ip),
                interface: address.index,
            };
            if !table.contains(&entry) {
                table.push(entry);
            }
        }
    }
    table.truncate(TABLE_LEN);
    table
}

/// The GID of an address.
fn of(ip: IpAddr) -> Gid {
    Gid(match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    })
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// The GUID of the device, the same in all processes of a host: derived from a hardware address or, without
/// one, from the host's id or name.
#[must_use]
pub fn guid() -> u64 {
    static GUID: OnceLock<u64> = OnceLock::new();
    *GUID.get_or_init(|| hardware_address().map_or_else(guid_of_host, eui64))
}

/// The 64-bit form of a hardware address (RFC 4291, appendix A).
fn eui64(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn hardware_address() -> Option<[u8; 6]> {
    let mut names: Vec<_> = std::fs::read_dir("/sys/class/net")
        .ok()?
        .flatten()
        .collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    names.iter().find_map(|entry| {
        let text = std::fs::read_to_string(entry.path().join("address")).ok()?;
        let mac = parse_mac(text.trim())?;
        (mac != [0; 6]).then_some(mac)
    })
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn guid_of_host() -> u64 {
    let text = ["/etc/machine-id", "/proc/sys/kernel/hostname"]
        .iter()
        .find_map(|path| {
            std::fs::read_to_string(path)
                .ok()
                .filter(|t| !t.trim().is_empty())
        })
        .unwrap_or_default();
    // FNV-1a, so that all processes compute the same number; the bit marks it as locally assigned.
    let hash = text
        .trim()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    hash | 2 << 56
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, index: u32) -> Address {
        let ip: IpAddr = text.parse().unwrap();
        Address {
            name: format!("eth{index}"),
            ip,
            index,
            loopback: ip.is_loopback(),
            running: true,
        }
    }

    fn texts(table: &[Entry]) -> Vec<String> {
        table
            .iter()
            .map(|e| Ipv6Addr::from(e.gid.0).to_string())
            .collect()
    }

    #[test]
    fn the_link_local_gid_precedes_the_gids_of_interfaces() {
        let host = [
            address("127.0.0.1", 1),
            address("fe80::1", 2),
            address("2001:db8::7", 2),
            address("10.0.0.1", 2),
            address("::1", 1),
        ];
        let table = arrange(&host, 0x0200_0bff_fe00_0001);
        assert_eq!(
            texts(&table),
            ["fe80::200:bff:fe00:1", "::ffff:10.0.0.1", "2001:db8::7"]
        );
        assert_eq!(table[0].interface, 2);
    }

    #[test]
    fn a_host_without_a_network_has_its_loopback_addresses() {
        let host = [address("127.0.0.1", 1), address("::1", 1)];
        let table = arrange(&host, 1);
        assert_eq!(texts(&table), ["fe80::1", "::ffff:127.0.0.1", "::1"]);
    }

    #[test]
    fn a_host_with_many_addresses_fills_the_table() {
        let many: Vec<_> = (0..200)
            .map(|n| address(&format!("10.0.1.{n}"), 3))
            .collect();
        assert_eq!(arrange(&many, 1).len(), TABLE_LEN);
    }

    #[test]
    fn gid_table_entries_keep_their_indices_when_addresses_are_added() {
        let mut table = Vec::new();
        extend(&mut table, &arrange(&[address("10.0.0.1", 2)], 1));
        let before = table.clone();
        let later = [address("10.0.0.2", 3), address("2001:db8::7", 3)];
        extend(&mut table, &arrange(&later, 1));
        let all = [
            "fe80::1",
            "::ffff:10.0.0.1",
            "::ffff:10.0.0.2",
            "2001:db8::7",
        ];
        assert_eq!(texts(&table), all);
        assert_eq!(table[..2], before);
        extend(&mut table, &arrange(&later, 1));
        assert_eq!(texts(&table), all, "no address appears twice");
        let many: Vec<_> = (0..200)
            .map(|n| address(&format!("10.0.1.{n}"), 3))
            .collect();
        extend(&mut table, &arrange(&many, 1));
        assert_eq!(
            (table.len(), texts(&table)[1].as_str()),
            (TABLE_LEN, all[1])
        );
    }

    #[test]
    fn hardware_addresses_are_parsed() {
        let mac = parse_mac("52:54:00:12:34:56").unwrap();
        assert_eq!(eui64(mac), 0x5054_00ff_fe12_3456);
        for bad in ["", "52:54", "52:54:00:12:34:zz", "52:54:00:12:34:56:78"] {
            assert_eq!(parse_mac(bad), None);
        }
    }

    #[test]
    fn gids_of_this_host_and_multicast_gids_are_recognized() {
        assert!(is_ours(of("127.0.0.1".parse().unwrap())) && is_ours(table()[0].gid));
        assert!(!is_ours(of("203.0.113.9".parse().unwrap())));
        assert!(is_multicast(of("ff0e::1".parse().unwrap())));
        assert!(is_multicast(of("239.1.1.1".parse().unwrap())));
        assert!(!is_multicast(of("10.1.1.1".parse().unwrap())));
    }
}

//! How devices on one host find each other without a daemon and without files.
//!
//! A device owns queue pair numbers in blocks of 256. It claims a block by binding an abstract Unix socket whose name contains the
//! block: the kernel makes the claim unique within the network namespace and releases it when the process ends, however it ends. To
//! reach queue pair *n*, a device connects to the socket of block *n* / 256. Programs that prefer addresses listen on an abstract
//! name made of address and port. Names contain the user id (or `any` for devices that are shared with all users), so that users
//! do not interfere with each other.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use rkey_engine::Group;

use crate::config::Share;

/// The number of queue pair numbers in one block.
pub const BLOCK_SIZE: u32 = 256;
/// The number of blocks: queue pair numbers have 24 bits.
pub const BLOCKS: u32 = 1 << 16;

/// The scope of names: one user, or all users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Names of one user's devices.
    User(u32),
    /// Names of devices that all users may reach.
    Any,
}

impl Scope {
    /// The scope for a setting of this process.
    #[must_use]
    pub fn of(share: Share) -> Self {
        match share {
            Share::User => Self::User(rustix::process::geteuid().as_raw()),
            Share::All => Self::Any,
        }
    }

    /// Whether a process of user `uid` may connect.
    #[must_use]
    pub fn admits(self, uid: u32) -> bool {
        match self {
            Self::User(ours) => ours == uid,
            Self::Any => true,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "{uid}"),
            Self::Any => f.write_str("any"),
        }
    }
}

/// The abstract name (without the leading zero byte) of a block of queue pair numbers.
#[must_use]
pub fn block_name(scope: Scope, block: u16) -> String {
    format!("rkey/1/{scope}/qp/{block:04x}")
}

/// The abstract name (without the leading zero byte) of a listener.
#[must_use]
pub fn listen_name(scope: Scope, address: SocketAddr) -> String {
    format!("rkey/1/{scope}/listen/{address}")
}

/// The abstract name (without the leading zero byte) of a block of the connection manager's communication ids.
#[must_use]
pub fn cm_name(scope: Scope, block: u16) -> String {
    format!("rkey/1/{scope}/cm/{block:04x}")
}

/// The blocks of communication ids that are claimed in this network namespace and scope.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn claimed_cm_blocks(scope: Scope) -> std::io::Result<Vec<u16>> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    Ok(parse_proc_net_unix(&text, &format!("rkey/1/{scope}/cm/")))
}

/// The other scopes in which a process of this network namespace has a port of the connection manager.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn other_port_owners(scope: Scope, service: u64) -> std::io::Result<Vec<Scope>> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    let mut owners = parse_owners(&text, &format!("/cm/port/{service:016x}"));
    owners.retain(|owner| *owner != scope);
    Ok(owners)
}

/// The abstract name (without the leading zero byte) of a port of the connection manager, by its service id.
#[must_use]
pub fn cm_port_name(scope: Scope, service: u64) -> String {
    format!("rkey/1/{scope}/cm/port/{service:016x}")
}

/// The abstract name (without the leading zero byte) to which packets from other hosts for a block are forwarded. It contains a
/// user ID in every scope: only processes of one user share an address.
#[must_use]
pub fn wire_name(uid: u32, block: u16) -> String {
    format!("rkey/1/wire/{uid}/{block:04x}")
}

/// The abstract name (without the leading zero byte) with which the device that owns a block advertises members of a
/// group.
#[must_use]
pub fn group_name(scope: Scope, group: Group, block: u16) -> String {
    format!("{}{block:04x}", group_prefix(scope, group))
}

fn group_prefix(scope: Scope, group: Group) -> String {
    match group {
        Group::Gid(gid) => format!("rkey/1/{scope}/group/{:032x}/", u128::from_be_bytes(gid)),
        Group::RawFrames => format!("rkey/1/{scope}/group/wire/"),
    }
}

/// One block of each device in this network namespace and scope that has members of a group.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn members(scope: Scope, group: Group) -> std::io::Result<Vec<u16>> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    Ok(parse_proc_net_unix(&text, &group_prefix(scope, group)))
}

/// What counts as one host for limits: an IPv4 address, or a network of 64 bits, because an IPv6 host can have all addresses of it.
#[must_use]
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// The block of a queue pair number.
#[must_use]
pub fn block_of(qpn: u32) -> u16 {
    ((qpn >> 8) & 0xffff) as u16
}

/// The socket address for an abstract name.
///
/// # Errors
/// The name is longer than the 107 bytes that the kernel accepts.
pub fn abstract_address(name: &str) -> std::io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// The names that a client tries for an address: that of the address itself, then those of wildcard listeners.
#[must_use]
pub fn candidates(scope: Scope, address: SocketAddr) -> Vec<String> {
    let mut names = vec![listen_name(scope, address)];
    let v4: SocketAddr = ([0, 0, 0, 0], address.port()).into();
    let v6: SocketAddr = ([0u16; 8], address.port()).into();
    let wildcards = if address.is_ipv4() {
        [v4, v6]
    } else {
        [v6, v4]
    };
    for wildcard in wildcards {
        let name = listen_name(scope, wildcard);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Whether an address belongs to this host: loopback, wildcard, or an interface's address.
///
/// The check tries to bind a datagram socket to the address with port 0. Binding sends nothing, needs no privileges, and works
/// only for addresses of the host. If it fails for another reason, such as no free descriptor, the address counts as one of this
/// host: other hosts pass fewer checks.
#[must_use]
pub fn is_of_this_host(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    match std::net::UdpSocket::bind((ip, 0)) {
        Ok(_) => true,
        Err(error) => !matches!(
            Errno::from_io_error(&error),
            Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL | Errno::ACCESS)
        ),
    }
}

/// The blocks that devices have claimed in this network namespace and scope, from `/proc/net/unix`.
///
/// # Errors
/// The file cannot be read.
pub fn claimed_blocks(scope: Scope) -> std::io::Result<Vec<u16>> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    Ok(parse_proc_net_unix(&text, &block_prefix(scope)))
}

/// The other scopes in which a device of this network namespace owns a block.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn other_owners(scope: Scope, block: u16) -> std::io::Result<Vec<Scope>> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    let mut owners = parse_owners(&text, &format!("/qp/{block:04x}"));
    owners.retain(|owner| *owner != scope);
    Ok(owners)
}

/// The scopes that have a name with this suffix, without duplicates, according to the text of `/proc/net/unix`.
fn parse_owners(text: &str, suffix: &str) -> Vec<Scope> {
    let owner = |line: &str| {
        let name = line.split_ascii_whitespace().nth(7)?;
        match name.strip_prefix("@rkey/1/")?.strip_suffix(suffix)? {
            "any" => Some(Scope::Any),
            uid => uid.parse().ok().map(Scope::User),
        }
    };
    let mut owners = Vec::new();
    for owner in text.lines().filter_map(owner) {
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    owners
}

fn block_prefix(scope: Scope) -> String {
    format!("rkey/1/{scope}/qp/")
}

/// The blocks in the names that start with `prefix` in the text of `/proc/net/unix`, sorted and without duplicates. Lines look
/// like `0000000000000000: 00000002 00000000 00010000 0005 01 12345 @rkey/1/1000/qp/00ab`; connected sockets carry the same name.
fn parse_proc_net_unix(text: &str, prefix: &str) -> Vec<u16> {
    let prefix = format!("@{prefix}");
    let mut blocks: Vec<u16> = text
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix(&prefix))
        .filter(|digits| digits.len() == 4)
        .filter_map(|digits| u16::from_str_radix(digits, 16).ok())
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_contain_the_scope_and_the_block_or_address() {
        assert_eq!(block_name(Scope::User(1000), 0xab), "rkey/1/1000/qp/00ab");
        assert_eq!(block_name(Scope::Any, 0xffff), "rkey/1/any/qp/ffff");
        assert_eq!(
            listen_name(Scope::User(7), "127.0.0.1:7471".parse().unwrap()),
            "rkey/1/7/listen/127.0.0.1:7471"
        );
        assert_eq!(
            listen_name(Scope::User(7), "[::1]:7471".parse().unwrap()),
            "rkey/1/7/listen/[::1]:7471"
        );
    }

    #[test]
    fn group_names_fit_a_socket_address_and_are_distinct() {
        let scope = Scope::User(u32::MAX);
        let group = Group::Gid([0xff; 16]);
        let name = group_name(scope, group, 0xab);
        assert!(abstract_address(&name).is_ok());
        let line = format!("0: 2 0 0 0005 01 101 @{name}");
        assert_eq!(
            parse_proc_net_unix(&line, &group_prefix(scope, group)),
            [0xab]
        );
        for other in [Group::RawFrames, Group::Gid([0; 16])] {
            assert!(parse_proc_net_unix(&line, &group_prefix(scope, other)).is_empty());
        }
    }

    #[test]
    fn wildcard_listeners_are_tried_after_the_exact_address() {
        let names = candidates(Scope::Any, "127.0.0.1:5".parse().unwrap());
        assert_eq!(
            names,
            [
                "rkey/1/any/listen/127.0.0.1:5",
                "rkey/1/any/listen/0.0.0.0:5",
                "rkey/1/any/listen/[::]:5"
            ]
        );
        assert_eq!(
            candidates(Scope::Any, "0.0.0.0:5".parse().unwrap()).len(),
            2
        );
    }

    #[test]
    fn only_blocks_that_a_socket_claims_are_found_in_proc_net_unix() {
        let text = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 101 @rkey/1/1000/qp/00ab
0000000000000000: 00000003 00000000 00000000 0005 03 102 @rkey/1/1000/qp/00ab
0000000000000000: 00000002 00000000 00010000 0005 01 103 @rkey/1/1000/qp/0001
0000000000000000: 00000002 00000000 00010000 0005 01 104 @rkey/1/1001/qp/0002
0000000000000000: 00000002 00000000 00010000 0005 01 105 @rkey/1/1000/qp/zzzz
0000000000000000: 00000002 00000000 00010000 0005 01 106 @rkey/1/1000/qp/123456
0000000000000000: 00000002 00000000 00010000 0005 01 107
0000000000000000: 00000002 00000000 00010000 0005 01 108 /run/rkey/1/1000/qp/0003
";
        assert_eq!(
            parse_proc_net_unix(text, &block_prefix(Scope::User(1000))),
            [0x0001, 0x00ab]
        );
        let owners = |block: u16| parse_owners(text, &format!("/qp/{block:04x}"));
        assert_eq!(owners(0xab), [Scope::User(1000)]);
        assert_eq!(owners(2), [Scope::User(1001)]);
        assert!(owners(3).is_empty());
        let any = block_prefix(Scope::Any);
        assert_eq!(parse_proc_net_unix(text, &any), [] as [u16; 0]);
    }

    #[test]
    fn blocks_and_ports_of_the_connection_manager_are_distinguished() {
        let service = 0x0106_1d2f;
        let text = format!(
            "0: 2 0 10000 0005 01 1 @{}\n0: 2 0 10000 0005 01 2 @{}\n0: 2 0 10000 0005 01 3 @{}\n",
            cm_name(Scope::User(7), 0xab),
            cm_port_name(Scope::User(7), service),
            cm_port_name(Scope::Any, service),
        );
        assert_eq!(parse_proc_net_unix(&text, "rkey/1/7/cm/"), [0xab]);
        let owners = parse_owners(&text, &format!("/cm/port/{service:016x}"));
        assert_eq!(owners, [Scope::User(7), Scope::Any]);
    }

    #[test]
    fn addresses_of_this_host_are_recognised() {
        assert!(is_of_this_host("127.0.0.1".parse().unwrap()));
        assert!(is_of_this_host("::1".parse().unwrap()));
        assert!(is_of_this_host("0.0.0.0".parse().unwrap()));
        assert!(is_of_this_host("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_of_this_host("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn queue_pair_numbers_map_to_blocks() {
        assert_eq!(block_of(0x00ab_cd12), 0xabcd);
        assert_eq!(block_of(0xff), 0);
    }
}

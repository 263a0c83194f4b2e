//! Which addresses a process serves, and which path MTU fits their interfaces.

use std::net::{IpAddr, SocketAddr};

use rkey_base::interfaces::{self, Address};
use rkey_roce::icrc;
use rkey_roce::packet::{Bth, ImmDt, Mtu, Reth, XrcEth};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::seal::overhead;
use crate::config::{WireConfig, WireSetting};

/// The addresses that a setting selects. Opens no wire.
#[must_use]
pub fn chosen(setting: &WireSetting) -> Vec<IpAddr> {
    match setting {
        WireSetting::Off => Vec::new(),
        WireSetting::Auto => routable(&interfaces::addresses()),
        WireSetting::Addresses(addresses) => addresses.clone(),
    }
}

/// The addresses that other hosts can reach without naming an interface. Those of interfaces without a carrier (such as a bridge that
/// connects nothing) come last, because programs use the first one.
fn routable(all: &[Address]) -> Vec<IpAddr> {
    let is_routable = |it: &&Address| !it.loopback && !it.ip.is_loopback() && !is_link_local(it.ip);
    let mut routable: Vec<&Address> = all.iter().filter(is_routable).collect();
    routable.sort_by_key(|it| !it.running);
    let mut found = Vec::new();
    for address in routable {
        if !found.contains(&address.ip) {
            found.push(address.ip);
        }
    }
    found
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The name of the interface that has an address, and its MTU in bytes.
pub(super) fn interface_of(ip: IpAddr) -> Option<(String, u32)> {
    let all = interfaces::addresses();
    // The loopback interface owns every address of its network.
    let has_it = |it: &Address| it.ip == ip || it.loopback && ip.is_loopback();
    let name = all.into_iter().find(has_it)?.name;
    let mtu = interfaces::mtu(&name)?;
    Some((name, mtu))
}

/// The largest path MTU whose packets fit into IP packets of `bytes`, each with `overhead` more bytes; `None` if not even the
/// smallest does.
pub(super) fn fitting(bytes: u32, is_ipv4: bool, overhead: usize) -> Option<Mtu> {
    /// The headers of the longest packet with a full payload: an XRC write with immediate data.
    const LONGEST: usize = Bth::LEN + XrcEth::LEN + Reth::LEN + ImmDt::LEN;
    let others = headers(is_ipv4) + LONGEST + icrc::LEN + overhead;
    let room = (bytes as usize).checked_sub(others)?;
    Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
}

/// The length of the headers of IP and UDP, in bytes.
pub(super) const fn headers(is_ipv4: bool) -> usize {
    const UDP: usize = 8;
    UDP + if is_ipv4 { 20 } else { 40 }
}

/// The route to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WirePath {
    /// Our address.
    pub local: IpAddr,
    /// The path MTU.
    pub mtu: Mtu,
}

impl WirePath {
    /// The path MTU in messages of the connection manager.
    #[must_use]
    pub fn message_mtu(&self) -> rkey_cm::wire::Mtu {
        // The codes are the same, so the default does not apply.
        rkey_cm::wire::Mtu::of(self.mtu.code()).unwrap_or(rkey_cm::wire::Mtu::B1024)
    }
}

/// The route to another host that a device with this setting would have, as the routing table has it now. `None` if there is no
/// route from an address of the wire. Opens no wire.
#[must_use]
pub fn route(setting: &WireConfig, to: IpAddr) -> Option<WirePath> {
    let path = path(to.to_canonical(), None, overhead(setting.key.is_some()))?;
    chosen(&setting.addresses)
        .contains(&path.local)
        .then_some(path)
}

/// The route to an address, as the routing table has it now; from `local` if given. Datagrams have `overhead` more bytes than their
/// packets.
pub(super) fn path(to: IpAddr, local: Option<IpAddr>, overhead: usize) -> Option<WirePath> {
    let (local, bytes) = mtu_of_route(to, local)?;
    let mtu = fitting(bytes, to.is_ipv4(), overhead)?;
    Some(WirePath { local, mtu })
}

/// The source address of the route to an address, as the routing table has it now, and the route's MTU in bytes; from `local` if given.
pub(super) fn mtu_of_route(to: IpAddr, local: Option<IpAddr>) -> Option<(IpAddr, u32)> {
    let family = match to {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None).ok()?;
    if let Some(local) = local {
        rustix::net::bind(&socket, &SocketAddr::new(local, 0)).ok()?;
    }
    // Connecting a UDP socket sends nothing.
    rustix::net::connect(&socket, &SocketAddr::new(to, icrc::PORT)).ok()?;
    let local = SocketAddr::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
    let bytes = match to {
        IpAddr::V4(_) => sockopt::ip_mtu(&socket),
        IpAddr::V6(_) => sockopt::ipv6_mtu(&socket),
    };
    Some((local.ip().to_canonical(), bytes.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_is_chosen_like_that_of_soft_roce() {
        for (bytes, v4, v6) in [
            (1500, Some(Mtu::Bytes1024), Some(Mtu::Bytes1024)),
            (4200, Some(Mtu::Bytes4096), Some(Mtu::Bytes4096)),
            (4096, Some(Mtu::Bytes2048), Some(Mtu::Bytes2048)),
            (65_536, Some(Mtu::Bytes4096), Some(Mtu::Bytes4096)),
            (576, Some(Mtu::Bytes256), Some(Mtu::Bytes256)),
            (256 + 68, Some(Mtu::Bytes256), None),
            (300, None, None),
            (0, None, None),
        ] {
            assert_eq!(fitting(bytes, true, 0), v4, "{bytes}");
            assert_eq!(fitting(bytes, false, 0), v6, "{bytes}");
        }
    }

    #[test]
    fn loopback_and_link_local_addresses_are_not_chosen() {
        let address = |ip: &str, loopback| Address {
            name: "eth0".to_owned(),
            ip: ip.parse().unwrap(),
            index: 2,
            loopback,
            running: ip != "172.17.0.1",
        };
        let all = [
            address("172.17.0.1", false),
            address("127.0.0.1", true),
            address("10.9.9.9", true),
            address("10.0.0.1", false),
            address("10.0.0.1", false),
            address("169.254.3.4", false),
            address("fe80::1", false),
            address("fd00::1", false),
        ];
        let wanted = ["10.0.0.1", "fd00::1", "172.17.0.1"];
        let wanted = wanted.map(|it| it.parse::<IpAddr>().unwrap());
        assert_eq!(routable(&all), wanted, "without a carrier last");
        assert!(chosen(&WireSetting::Off).is_empty());
    }

    #[test]
    fn this_host_is_reached_through_loopback() {
        for text in ["127.0.0.1", "127.7.7.7"] {
            let route = path(text.parse().unwrap(), None, 0).expect("a route");
            assert!(route.local.is_loopback());
            assert!(route.mtu >= Mtu::Bytes1024);
        }
        let (from, to) = ("127.0.0.9".parse().unwrap(), "127.0.0.1".parse().unwrap());
        assert_eq!(path(to, Some(from), 0).map(|it| it.local), Some(from));
        assert_eq!(path(to, Some("192.0.2.7".parse().unwrap()), 0), None);
        assert_eq!(path("fd00::1".parse().unwrap(), Some(from), 0), None);
        assert_eq!(
            interface_of("127.0.0.1".parse().unwrap()).map(|it| it.0),
            Some("lo".to_owned())
        );
    }
}

//! Assigns ports to identifiers, within this process and between processes.
//!
//! A process claims a port on all addresses (`rkey_device::cm`). Within the process, two identifiers may share a port if their
//! addresses differ and neither is a wildcard, if their families differ and each excludes the other's, or if both set
//! `RDMA_OPTION_ID_REUSEADDR`.

use crate::lookup::address::{is_any, setting};
use crate::state::front::entry;
use crate::state::hub::{Entry, Hub, IdKey};
use rkey_cm::address::ServiceId;
use rkey_device::cm::{Parts, random};
use rkey_kit::Errno;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

const EADDRINUSE: Errno = Errno::from_raw(libc::EADDRINUSE);
const EADDRNOTAVAIL: Errno = Errno::from_raw(libc::EADDRNOTAVAIL);
/// `CAP_NET_BIND_SERVICE`.
const BIND_SERVICE: u32 = 10;
/// The first unprivileged port, if `ip_unprivileged_port_start` cannot be read.
const UNPRIVILEGED: u16 = 1024;

/// Binds an identifier to an address and a port. Port 0 means any free port.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`: another identifier or process has the port. `EACCES`: the port is below
/// `net.ipv4.ip_unprivileged_port_start` (1024 by default), and the caller lacks `CAP_NET_BIND_SERVICE`.
pub fn bind(
    parts: &mut Parts<'_, Hub>,
    key: IdKey,
    address: SocketAddr,
) -> Result<SocketAddr, Errno> {
    let port = address.port();
    if port == 0 {
        return bind_free(parts, key, address);
    }
    let unprivileged = setting("ipv4/ip_unprivileged_port_start").unwrap_or(UNPRIVILEGED);
    if port < unprivileged && !is_privileged() {
        tracing::info!(
            "binding port {port} needs CAP_NET_BIND_SERVICE: the first unprivileged port is {unprivileged}"
        );
        return Err(Errno::ACCES);
    }
    try_bind(parts, key, address)?;
    Ok(address)
}

fn bind_free(
    parts: &mut Parts<'_, Hub>,
    key: IdKey,
    address: SocketAddr,
) -> Result<SocketAddr, Errno> {
    let (first, count) = ephemeral();
    let start = random().map_err(|error| Errno::from(&error))?;
    for step in 0..count {
        let port = first + (start.wrapping_add(step) % count) as u16;
        let address = SocketAddr::new(address.ip(), port);
        match try_bind(parts, key, address) {
            Ok(()) => return Ok(address),
            Err(error) if error == EADDRINUSE || error == EADDRNOTAVAIL => {}
            Err(error) => return Err(error),
        }
    }
    Err(EADDRNOTAVAIL)
}

/// Picks a port for an identifier that only connects: one that no other identifier of this process uses in the same port space.
/// Does not claim it.
///
/// # Errors
/// `EADDRNOTAVAIL`: all ports are in use. The error of the system if no random number is available.
pub fn unclaimed(hub: &Hub, space: i32) -> Result<u16, Errno> {
    let (first, count) = ephemeral();
    let start = random().map_err(|error| Errno::from(&error))?;
    let mut ports = (0..count).map(|step| first + (start.wrapping_add(step) % count) as u16);
    let of_space = hub.entries.values().filter(|it| it.space == space);
    let taken: HashSet<u16> = of_space.filter_map(|it| Some(it.local?.port())).collect();
    ports
        .find(|port| !taken.contains(port))
        .ok_or(EADDRNOTAVAIL)
}

/// Checks that an identifier may bind to an address, given the other identifiers of this process. With `may_share`, two identifiers
/// that both set `RDMA_OPTION_ID_REUSEADDR` do not conflict.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`: another identifier has the address. `EINVAL`: the identifier has ended.
pub fn is_free(
    hub: &mut Hub,
    key: IdKey,
    address: SocketAddr,
    may_share: bool,
) -> Result<(), Errno> {
    let own = entry(hub, key)?;
    let (space, shares) = (own.space, may_share && own.options.reuse_address);
    let has_one_family = own.has_one_family(address);
    let others = hub.entries.iter();
    let others = others.filter(|(it, other)| **it != key && other.space == space);
    for (_, other) in others.filter(|(_, other)| other.claims) {
        let Some(taken) = other.local.filter(|local| local.port() == address.port()) else {
            continue;
        };
        if shares && other.options.reuse_address {
            continue;
        }
        let are_apart = taken.is_ipv4() != address.is_ipv4();
        if are_apart && has_one_family && other.has_one_family(taken) {
            continue;
        }
        if is_any(taken.ip()) || is_any(address.ip()) {
            return Err(EADDRNOTAVAIL);
        }
        if taken.ip() == address.ip() {
            return Err(EADDRINUSE);
        }
    }
    Ok(())
}

fn try_bind(parts: &mut Parts<'_, Hub>, key: IdKey, address: SocketAddr) -> Result<(), Errno> {
    is_free(parts.handler, key, address, true)?;
    let own = entry(parts.handler, key)?;
    let service = ServiceId::new(own.port_space(), address.port());
    match parts.claim(service) {
        Ok(true) => {}
        Ok(false) => return Err(EADDRINUSE),
        Err(error) => {
            tracing::error!("cannot claim port {}: {error}", address.port());
            return Err(Errno::from(&error));
        }
    }
    let own = entry(parts.handler, key)?;
    own.local = Some(address);
    own.claims = true;
    Ok(())
}

/// Releases the port of an identifier.
pub fn release(parts: &mut Parts<'_, Hub>, key: IdKey) {
    let claimed = |entry: &Entry| {
        let port = entry.local.filter(|_| entry.claims)?.port();
        Some(ServiceId::new(entry.port_space(), port))
    };
    let service = parts.handler.entries.get(&key).and_then(claimed);
    if let Some(service) = service {
        parts.release(service);
    }
}

/// The first of the kernel's ephemeral ports, and their number.
fn ephemeral() -> (u16, u32) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first != 0 && first <= last => {
            (first, u32::from(last - first) + 1)
        }
        _ => (32768, 28232),
    }
}

fn is_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:\t"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << BIND_SERVICE != 0)
}

/// Whether binding to this address leaves the device undetermined, as in the stock library.
#[must_use]
pub fn leaves_device_undetermined(ip: IpAddr) -> bool {
    is_any(ip) || ip.is_loopback()
}

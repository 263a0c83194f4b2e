//! `fi_getinfo`: matches the provider's offers with a program's hints.
//!
//! `offer` describes each kind of endpoint, `filter` narrows an offer down to the hints, `build` makes the list
//! of C structures that libfabric frees.

#![allow(unsafe_code)]
// UNSAFETY: a C function that reads structures of the program.

pub(crate) mod build;
pub(crate) mod filter;
pub(crate) mod offer;

use crate::address::{self, Format};
use crate::errno::{FiError, Result};
use crate::object::status;
use crate::sys::*;
use filter::Hints;
use parking_lot::Mutex;
use rkey_device::wire::{WirePath, chosen, route};
use rkey_device::{Config, WireSetting, names};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};
use std::net::{IpAddr, SocketAddr};

/// The names of the fabric and the domain.
pub(crate) const FABRIC_NAME: &CStr = c"rkey";
pub(crate) const DOMAIN_NAME: &CStr = c"rkey0";

/// `fi_getinfo`, as libfabric's core calls it.
///
/// # Safety
/// The arguments must be valid as described in fi_getinfo(3).
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int {
    status(|| {
        rkey_kit::log::start();
        if info.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: the caller guarantees C strings and hints.
        let (node, service) = unsafe { (text(node)?, text(service)?) };
        // SAFETY: as above.
        let hints = unsafe { Hints::read(hints) };
        let list = find(version, node, service, flags, &hints).inspect_err(|error| {
            let (caps, format) = (hints.caps, hints.addr_format);
            tracing::debug!(node, service, flags, caps, format, "fi_getinfo: {error:?}");
        })?;
        // SAFETY: not null, so it is writable.
        unsafe { *info = list };
        Ok(())
    })
}

/// A C string from the program, if it passed one.
///
/// # Safety
/// The pointer is null or a C string.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so the caller guarantees a C string.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| FiError::NODATA)
}

fn find(
    version: u32,
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    hints: &Hints<'_>,
) -> Result<*mut Info> {
    let format = Format::of(hints.addr_format).ok_or(FiError::NODATA)?;
    let (source, dest) = addresses(node, service, flags, hints, format)?;
    let is_here = |address: &SocketAddr| names::is_of_this_host(address.ip());
    if let Some(source) = source.filter(|source| !is_here(source)) {
        warn_unreachable(source.ip(), "it is not an address of this host");
        return Err(FiError::NODATA);
    }
    let path = match dest.filter(|dest| !is_here(dest)) {
        Some(dest) => Some(path_to(dest.ip())?),
        None => None,
    };
    let wire = wire_addresses();
    let mut list = build::List::default();
    let mut lacks_mode = false;
    for ep_type in [FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM] {
        let mut required = required(ep_type, hints, &wire)?;
        if path.is_some() && may_access(ep_type, hints) {
            required |= FI_MR_PROV_KEY;
        }
        let offer = match filter::matches(version, ep_type, hints, required) {
            Ok(offer) => offer,
            Err(why) => {
                tracing::debug!(ep_type, "the hints do not match this endpoint type: {why}");
                lacks_mode |= why == filter::MR_MODE;
                continue;
            }
        };
        // Without a source address, an endpoint gets a free port when it is used.
        let source = source.unwrap_or_else(|| match path {
            Some(path) if format.fits(&SocketAddr::new(path.local, 0)) => {
                SocketAddr::new(path.local, 0)
            }
            _ => default_source(format, &wire),
        });
        list.add(&offer, format, source, dest, hints.handle)?;
    }
    if path.is_some() && list.is_empty() && lacks_mode {
        tracing::warn!(
            "no match: packets to other hosts carry only keys that the provider chooses. Add FI_MR_PROV_KEY to the mr_mode of the hints, or request capabilities without FI_RMA"
        );
    }
    list.finish()
}

/// The `mr_mode` bits that programs must set for endpoints of a type. `wire`: [`wire_addresses`]. Packets between hosts carry only the
/// device's own keys, so programs that accept such keys get them for endpoints that other hosts can reach.
pub(crate) fn required(ep_type: c_int, hints: &Hints<'_>, wire: &[IpAddr]) -> Result<c_int> {
    let required = crate::mode::required()?;
    match accepts_device_keys(ep_type, hints) && may_access(ep_type, hints) && !wire.is_empty() {
        true => Ok(required | FI_MR_PROV_KEY),
        false => Ok(required),
    }
}

/// Whether a program accepts keys that the device chooses. Regions with such keys have one authorization key only. Programs that say
/// nothing about a domain keep their own keys for endpoints that are not connected.
fn accepts_device_keys(ep_type: c_int, hints: &Hints<'_>) -> bool {
    let accepts = |domain: &DomainAttr| {
        domain.mr_mode & (FI_MR_PROV_KEY | FI_MR_BASIC) != 0
            && domain.auth_key_size != FI_AV_AUTH_KEY
    };
    hints.domain.map_or(ep_type == FI_EP_MSG, accepts)
}

/// Whether an endpoint that matches the hints may read or write peers' memory, or let them do so. (Atomic operations are messages,
/// which carry every key.)
fn may_access(ep_type: c_int, hints: &Hints<'_>) -> bool {
    let any = FI_RMA | FI_RMA_EVENT | FI_RMA_PMEM;
    ep_type != FI_EP_DGRAM && (hints.caps == 0 || hints.caps & any != 0)
}

/// The addresses at which other hosts reach this program. All hosts may have the same list in `RKEY_WIRE`, so it may name others.
pub(crate) fn wire_addresses() -> Vec<IpAddr> {
    // An invalid setting is reported when the device is opened.
    let setting = Config::from_env().map(|config| config.wire.addresses);
    let mut addresses = setting.map_or_else(|_| Vec::new(), |it| chosen(&it));
    addresses.retain(|address| names::is_of_this_host(*address));
    addresses
}

/// The address of an endpoint for which the program gives none: one that other hosts reach, if there is one.
pub(crate) fn default_source(format: Format, wire: &[IpAddr]) -> SocketAddr {
    let mut addresses = wire.iter().map(|ip| SocketAddr::new(*ip, 0));
    let fitting = addresses.find(|address| format.fits(address));
    fitting.unwrap_or_else(|| format.loopback(0))
}

/// The path to another host.
fn path_to(to: IpAddr) -> Result<WirePath> {
    let config = Config::from_env().map_err(|error| {
        tracing::warn!("{error}");
        FiError::NODATA
    })?;
    if config.wire.addresses == WireSetting::Off {
        warn_unreachable(
            to,
            "it is on another host; to reach other hosts, set RKEY_WIRE=auto",
        );
        return Err(FiError::NODATA);
    }
    route(&config.wire, to).ok_or_else(|| {
        warn_unreachable(
            to,
            "the system has no route to it from any address of RKEY_WIRE",
        );
        FiError::NODATA
    })
}

/// Warns that an address cannot be used, once for each address, because programs request the same peer repeatedly.
fn warn_unreachable(address: IpAddr, why: &str) {
    /// The maximum number of addresses to warn about.
    const MOST: usize = 64;
    static REPORTED: Mutex<BTreeSet<IpAddr>> = Mutex::new(BTreeSet::new());
    let mut told = REPORTED.lock();
    if told.len() < MOST && told.insert(address) {
        tracing::warn!("no match for {address}: {why}");
    } else {
        tracing::info!("no match for {address}: {why}");
    }
}

/// The addresses of this side and of the peer.
fn addresses(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    hints: &Hints<'_>,
    format: Format,
) -> Result<(Option<SocketAddr>, Option<SocketAddr>)> {
    let given = |bytes: Option<&[u8]>| match bytes {
        None => Ok(None),
        Some(bytes) => match format.decode(bytes) {
            Some((address, _)) => Ok(Some(address)),
            None => Err(FiError::NODATA),
        },
    };
    let (mut source, mut dest) = (given(hints.src_addr)?, given(hints.dest_addr)?);
    if node.is_some() || service.is_some() {
        if flags & FI_SOURCE != 0 {
            source = Some(address::resolve(node, service, format, true)?);
        } else {
            dest = Some(address::resolve(node, service, format, false)?);
        }
    }
    Ok((source, dest))
}

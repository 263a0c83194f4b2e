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
    for address in [source, dest].into_iter().flatten() {
        if !rkey_device::names::is_of_this_host(address.ip()) {
            warn_unreachable(address.ip());
            return Err(FiError::NODATA);
        }
    }
    let required = crate::mode::required()?;
    let mut list = build::List::default();
    for ep_type in [FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM] {
        let offer = match filter::matches(version, ep_type, hints, required) {
            Ok(offer) => offer,
            Err(why) => {
                tracing::debug!(ep_type, "the hints do not match this endpoint type: {why}");
                continue;
            }
        };
        // Without a source address, an endpoint gets a free loopback port when it is used.
        let source = source.unwrap_or_else(|| format.loopback(0));
        list.add(&offer, format, source, dest, hints.handle)?;
    }
    list.finish()
}

/// Warns that another host cannot be reached, once for each address, because programs request the same peer
/// repeatedly.
fn warn_unreachable(address: IpAddr) {
    /// The maximum number of addresses to warn about.
    const MOST: usize = 64;
    static REPORTED: Mutex<BTreeSet<IpAddr>> = Mutex::new(BTreeSet::new());
    let mut told = REPORTED.lock();
    if told.len() < MOST && told.insert(address) {
        tracing::warn!(
            "no match: {address} is not an address of this host, and rkey reaches only processes on this host"
        );
    } else {
        tracing::info!("no match: {address} is not an address of this host");
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

//! Descriptors in data transfers: the key under which local memory is accessed, and whether the mode in force allows it.

#![allow(unsafe_code)]
// UNSAFETY: descriptors are handles that C passes.

use super::buffers::Held;
use super::hmem;
use super::region::{Mr, MrObject};
use crate::domain::{ADDRESSES, Domain, ProtectionDomain};
use crate::errno::{FiError, Result};
use crate::object::find;
use crate::sys::*;
use rkey_device::base::VaRange;
use rkey_device::core::{Attempt, LocalUse};
use rkey_device::denials::refused;
use rkey_device::engine::Sge;
use std::ffi::c_void;

/// The scatter/gather entry for a local buffer.
///
/// With `FI_MR_LOCAL` the buffer needs a valid descriptor whose region covers it and has the right (FI-042, FI-090 to
/// FI-094). Otherwise it needs no descriptor; a valid one is used, and any other value is ignored for programs before
/// 1.22 and refused for later ones (FI-043 to FI-047, FI-256). `held` keeps what the provider registers itself.
#[inline]
pub(crate) fn sge(
    domain: &Domain,
    pd: &ProtectionDomain,
    (addr, len): (u64, usize),
    desc: *mut c_void,
    usage: LocalUse,
    held: &mut Held,
) -> Result<Sge> {
    let len32 = u32::try_from(len).map_err(|_| FiError::MSGSIZE)?;
    if desc.is_null() && domain.plain || len == 0 {
        return Ok(Sge {
            addr,
            len: len32,
            key: pd.everything(),
        });
    }
    if let Some(sge) = usual(domain, pd, addr, len32, desc, usage) {
        return Ok(sge);
    }
    let foreign = domain.hmem && hmem::is_foreign(addr)?;
    let needs = match foreign {
        false => domain.has(FI_MR_LOCAL).then_some("FI_MR_LOCAL"),
        // FI-080 to FI-085: the two bits are about different buffers.
        true => domain.has(FI_MR_HMEM).then_some("FI_MR_HMEM"),
    };
    let buffer = Buffer {
        addr,
        len: len32,
        foreign,
    };
    let described = match desc.is_null() && needs.is_none() {
        true => None,
        false => described(domain, pd, &buffer, desc, usage, needs)?,
    };
    match described {
        Some(sge) => Ok(sge),
        None => undescribed(domain, pd, &buffer, usage, held),
    }
}

/// A local buffer.
struct Buffer {
    addr: u64,
    len: u32,
    /// Whether the processor must not access it.
    foreign: bool,
}

/// The entry for a buffer that needs no descriptor.
fn undescribed(
    domain: &Domain,
    pd: &ProtectionDomain,
    buffer: &Buffer,
    usage: LocalUse,
    held: &mut Held,
) -> Result<Sge> {
    let &Buffer { addr, len, foreign } = buffer;
    let range = VaRange::new(addr, u64::from(len)).filter(|range| range.end() <= ADDRESSES);
    let own = match (&domain.buffers, range) {
        (Some(buffers), Some(range)) => buffers.key(pd.id, range, usage, foreign, held)?,
        _ => None,
    };
    let key = match own {
        Some(key) => key,
        None => hmem::unregistered(pd, foreign)?,
    };
    Ok(Sge { addr, len, key })
}

/// The entry for a buffer in memory that needs no registration.
#[inline]
pub(crate) fn unnamed(pd: &ProtectionDomain, addr: u64, len: u32) -> Sge {
    let key = pd.everything();
    Sge { addr, len, key }
}

/// The entry for a buffer whose rights are not checked here: the device checks them at each access. `None` if it takes more
/// than a look at the descriptor to find it.
#[inline]
pub(crate) fn named(
    domain: &Domain,
    pd: &ProtectionDomain,
    addr: u64,
    len: u32,
    desc: *mut c_void,
) -> Option<Sge> {
    if desc.is_null() && domain.plain {
        return Some(unnamed(pd, addr, len));
    }
    let (mr, addr) = region_of(domain, pd, addr, len, desc)?;
    let key = mr.region.local_key;
    Some(Sge { addr, len, key })
}

/// The fast path for a valid descriptor. Returns the same entry as [`described`].
#[inline]
pub(crate) fn usual(
    domain: &Domain,
    pd: &ProtectionDomain,
    addr: u64,
    len: u32,
    desc: *mut c_void,
    usage: LocalUse,
) -> Option<Sge> {
    let (mr, addr) = region_of(domain, pd, addr, len, desc)?;
    // SAFETY: registers and deregisters nothing.
    let table = unsafe { domain.device.protection() };
    let allowed = table.allows(mr.pd, mr.region.id, addr, len.into(), usage);
    allowed.ok().map(|()| Sge {
        addr,
        len,
        key: mr.region.local_key,
    })
}

/// The region of one range that a descriptor names, and the address of a buffer in it; `None` if it takes more checks to find
/// them, or if the buffer is not in the region.
#[inline]
fn region_of<'a>(
    domain: &Domain,
    pd: &ProtectionDomain,
    addr: u64,
    len: u32,
    desc: *mut c_void,
) -> Option<(&'a Mr, u64)> {
    // SAFETY: `find` validates the handle.
    let mr = &unsafe { find::<MrObject, _>(desc) }.ok()?.inner;
    let [range] = &mr.ranges[..] else { return None };
    let offset = addr.wrapping_sub(range.start());
    let inside = offset <= range.len() && u64::from(len) <= range.len() - offset;
    let ours = std::ptr::eq(&raw const *mr.domain, domain) && mr.pd == pd.id && !domain.av_keys;
    (inside && ours).then(|| (mr, mr.base + offset))
}

/// The scatter/gather entry for a local buffer of a collective operation.
///
/// With `FI_MR_COLLECTIVE` its region must also be registered for that (FI-087, FI-101); otherwise the rules of other
/// transfers apply (FI-088, FI-100).
pub(crate) fn collective(
    domain: &Domain,
    pd: &ProtectionDomain,
    (addr, len): (u64, usize),
    desc: *mut c_void,
    usage: LocalUse,
    held: &mut Held,
) -> Result<Sge> {
    if !domain.has(FI_MR_COLLECTIVE) || len == 0 {
        return sge(domain, pd, (addr, len), desc, usage, held);
    }
    let len = u32::try_from(len).map_err(|_| FiError::MSGSIZE)?;
    let needs = Some("FI_MR_COLLECTIVE");
    let both = LocalUse::Collective;
    let buffer = Buffer {
        addr,
        len,
        foreign: false,
    };
    described(domain, pd, &buffer, desc, both, needs)?;
    match described(domain, pd, &buffer, desc, usage, needs)? {
        Some(sge) => Ok(sge),
        None => undescribed(domain, pd, &buffer, usage, held),
    }
}

#[cold]
fn refuse(why: &str, usage: LocalUse, addr: u64, len: u32) -> FiError {
    let what = Attempt::Local(usage);
    refused(&format!("{what} of {len} B at {addr:#x} refused: {why}"));
    FiError::INVAL
}

/// The entry for a descriptor; `None` if the descriptor is ignored. `needs` is the mode bit that requires a descriptor, if any.
fn described(
    domain: &Domain,
    pd: &ProtectionDomain,
    buffer: &Buffer,
    desc: *mut c_void,
    usage: LocalUse,
    needs: Option<&str>,
) -> Result<Option<Sge>> {
    let &Buffer { addr, len, .. } = buffer;
    let refuse = |why: &str| Err(refuse(why, usage, addr, len));
    if desc.is_null() {
        let bit = needs.unwrap_or_default();
        return refuse(&format!(
            "the domain has {bit}: pass a descriptor (fi_mr_desc) with the buffer"
        ));
    }
    // SAFETY: `find` validates the handle.
    let object = unsafe { find::<MrObject, _>(desc) };
    let mr = match object {
        Ok(object) if std::ptr::eq(&raw const *object.inner.domain, domain) => &object.inner,
        _ if needs.is_none() && domain.version < version(1, 22) => return Ok(None),
        _ => return refuse("the descriptor belongs to no region of this domain"),
    };
    if mr.pd != pd.id && !domain.av_keys {
        return refuse("the region and the endpoint have different authorization keys");
    }
    // A region's addresses may be meaningful only to the runtime that owns its memory.
    let foreign = mr.foreign.as_ref().is_some_and(|it| it.has_copiers());
    let optional = needs.is_none() && !foreign;
    let Some(inside) = place_in(mr, addr, len) else {
        if optional {
            // No mode required the descriptor.
            return Ok(None);
        }
        return refuse("the descriptor's region does not cover the buffer");
    };
    // SAFETY: registers and deregisters nothing.
    let table = unsafe { domain.device.protection() };
    match table.allows(mr.pd, mr.region.id, inside, u64::from(len), usage) {
        // The region's own entry in the table is not in the endpoint's protection domain.
        Ok(_) if domain.av_keys && foreign && !buffer.foreign => {
            refuse("FI_AV_AUTH_KEY domains do not support accelerator memory or DMA-bufs")
        }
        Ok(_) if domain.av_keys => Ok(None),
        Ok(_) => Ok(Some(Sge {
            addr: inside,
            len,
            key: mr.region.local_key,
        })),
        Err(_) if optional => Ok(None),
        Err(denial) => {
            refused(&denial.in_one_line());
            Err(FiError::ACCES)
        }
    }
}

/// The address by which a request accesses a buffer in a region, or `None` if no segment contains the buffer.
fn place_in(mr: &Mr, addr: u64, len: u32) -> Option<u64> {
    let asked = VaRange::new(addr, u64::from(len))?;
    if mr.domain.has(FI_MR_VIRT_ADDR) && mr.ranges.len() > 1 {
        return mr
            .ranges
            .iter()
            .any(|range| range.contains(&asked))
            .then_some(addr);
    }
    let mut before = 0;
    for range in &mr.ranges {
        if range.contains(&asked) {
            return Some(mr.base + before + (addr - range.start()));
        }
        before += range.len();
    }
    None
}

//! Raw keys: `fi_mr_raw_attr`, `fi_mr_map_raw`, `fi_mr_unmap_key`.
//!
//! With `FI_MR_RAW`, a raw key is 40 bytes that describe the whole region, and a mapped key is a number that
//! refers to it. Without `FI_MR_RAW`, a raw key is the 8 bytes of the key, and mapping returns the key itself (FI-172,
//! FI-173, FI-216).

#![allow(unsafe_code)]
// UNSAFETY: reads and writes memory of the program.

use super::region::Mr;
use crate::domain::Domain;
use crate::errno::{FiError, Result};
use crate::info::filter::build_key_size;
use crate::object::{input, list, store};
use crate::sys::*;
use rkey_device::base::VaRange;
use rkey_device::core::{Key, RKey, RawKey};

/// `fi_mr_raw_attr` (FI-168 to FI-171).
///
/// # Safety
/// `arg` is the argument of the control command.
pub(super) unsafe fn get(mr: &Mr, arg: *const MrRawAttr) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let attr = unsafe { input(arg)? };
    if attr.flags != 0 {
        return Err(FiError::BADFLAGS);
    }
    if !mr.access.is_remote() {
        // The region has no key (FI-106).
        return Err(FiError::NOKEY);
    }
    if mr.state.lock().unconfigured {
        return Err(FiError::OPBADSTATE);
    }
    let region = mr.for_peers();
    let key = match region.requested {
        Some(requested) => RKey::Requested(requested),
        None => RKey::Device(region.key),
    };
    let bytes = if mr.domain.has(FI_MR_RAW) {
        let raw = RawKey {
            key,
            base: mr.base,
            len: mr.ranges.iter().map(VaRange::len).sum(),
            node: mr.domain.device.node().nonce,
        };
        raw.to_bytes().to_vec()
    } else {
        mr.key().to_le_bytes().to_vec()
    };
    if attr.key_size.is_null() {
        return Err(FiError::INVAL);
    }
    // SAFETY: not null, so it is a number.
    let room = unsafe { *attr.key_size };
    // SAFETY: as above.
    unsafe { store(attr.key_size, bytes.len())? };
    if room < bytes.len() || attr.raw_key.is_null() {
        return Err(FiError::TOOSMALL);
    }
    // SAFETY: the program promises this length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), attr.raw_key, bytes.len()) };
    if !attr.base_addr.is_null() {
        // SAFETY: not null, so it is writable.
        unsafe { store(attr.base_addr, mr.base)? };
    }
    Ok(())
}

/// `fi_mr_map_raw`.
///
/// # Safety
/// `arg` is the argument of the control command.
pub(crate) unsafe fn map(domain: &Domain, arg: *const MrMapRaw) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let asked = unsafe { input(arg)? };
    if asked.flags != 0 {
        return Err(FiError::BADFLAGS);
    }
    if asked.key_size != build_key_size(domain.mr_mode) {
        return Err(FiError::INVAL);
    }
    // SAFETY: the program promises this length.
    let bytes = unsafe { list(asked.raw_key.cast_const(), asked.key_size)? };
    let number = if domain.has(FI_MR_RAW) {
        let raw = RawKey::from_bytes(bytes).ok_or(FiError::INVAL)?;
        domain.raw_keys.map(raw)
    } else {
        let key = bytes
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| FiError::INVAL)?;
        if key == FI_KEY_NOTAVAIL {
            return Err(FiError::INVAL);
        }
        *domain.plain_keys.lock().entry(key).or_default() += 1;
        key
    };
    // SAFETY: the program promises that it is writable.
    unsafe { store(asked.key, number) }.inspect_err(|_| {
        let _ = forget(domain, number);
    })
}

/// `fi_mr_unmap_key` (FI-174).
///
/// # Safety
/// `key` is the argument of the control command.
pub(crate) unsafe fn unmap(domain: &Domain, key: *const u64) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    forget(domain, *unsafe { input(key)? })
}

fn forget(domain: &Domain, number: u64) -> Result<()> {
    if domain.has(FI_MR_RAW) {
        return domain
            .raw_keys
            .unmap(number)
            .map(drop)
            .ok_or(FiError::INVAL);
    }
    let mut keys = domain.plain_keys.lock();
    let count = keys.get_mut(&number).ok_or(FiError::INVAL)?;
    *count -= 1;
    if *count == 0 {
        keys.remove(&number);
    }
    Ok(())
}

/// The remote key for the key of a data transfer. `provider_keys`: the peer's device has chosen its keys.
#[inline]
pub(crate) fn resolve(domain: &Domain, key: u64, provider_keys: bool) -> Option<RKey> {
    if domain.has(FI_MR_RAW) {
        return domain.raw_keys.get(key).map(|raw| raw.key);
    }
    if provider_keys {
        // The device never issues such a number. It is sent as a requested key, which the peer refuses with an explanation.
        return Some(match u32::try_from(key) {
            Ok(key) => RKey::Device(Key(key)),
            Err(_) => RKey::Requested(key),
        });
    }
    Some(RKey::Requested(key))
}

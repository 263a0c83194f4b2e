//! Copies to and from the program's buffers.

#![allow(unsafe_code)]
// UNSAFETY: reads and writes memory that the program passed.

use super::send::Descriptors;
use super::*;
use crate::info::offer::IOV_LIMIT;
use crate::mr::buffers::Held;
use crate::mr::{hmem, local};
use libc::iovec;
use rkey_device::base::Memory;
use rkey_device::core::{Denial, LocalUse};
use rkey_device::engine::Sge;
use smallvec::smallvec;

/// The scatter/gather entries for a list of local buffers. `held` keeps what the provider registers for them.
#[inline]
pub(super) fn sges(
    domain: &Domain,
    pd: &ProtectionDomain,
    iov: &[iovec],
    desc: Descriptors<'_>,
    usage: LocalUse,
    held: &mut Held,
) -> Result<Sges> {
    let mut one = |index: usize, buffer: &iovec| {
        let place = (buffer.iov_base as u64, buffer.iov_len);
        local::sge(domain, pd, place, desc.get(index), usage, held)
    };
    if let [buffer] = iov {
        return Ok(smallvec![one(0, buffer)?]);
    }
    if iov.len() > IOV_LIMIT {
        return Err(FiError::INVAL);
    }
    let each = iov.iter().enumerate();
    each.map(|(index, buffer)| one(index, buffer)).collect()
}

/// Copies the bytes of buffers one after the other; fails with `FI_EFAULT` if they are not mapped.
///
/// For bytes that the program injects, and for system memory.
#[inline]
pub(super) fn gather(domain: &Domain, iov: &[iovec], mut into: &mut [u8]) -> Result<()> {
    // SAFETY: buffers that the program passed to send from: its own memory, which is readable, or a fault.
    let memory = unsafe { domain.device.memory() };
    for buffer in iov {
        let Some((place, rest)) = into.split_at_mut_checked(buffer.iov_len) else {
            return Err(FiError::MSGSIZE);
        };
        let at = buffer.iov_base as u64;
        match domain.hmem {
            false => memory.load_bytes(place, at).map_err(|_| FiError::FAULT)?,
            true => hmem::load_injected(domain, place, at)?,
        }
        into = rest;
    }
    Ok(())
}

/// Logs that the program's own memory does not allow this use, for example because its region was closed after the operation was
/// posted. Returns the error.
#[cold]
pub(super) fn not_allowed(denial: &Denial) -> FiError {
    rkey_device::denials::refused(&denial.in_one_line());
    FiError::ACCES
}

/// Copies the bytes of scatter/gather entries one after the other, from memory that has the right for this use.
pub(super) fn load(
    domain: &Domain,
    pd: &ProtectionDomain,
    sges: &[Sge],
    mut into: &mut [u8],
    usage: LocalUse,
) -> Result<()> {
    // SAFETY: buffers that the program passed to send from: its own memory, which is readable, or a fault.
    let memory = unsafe { domain.device.memory() };
    // SAFETY: nothing is registered or closed through the table here.
    let table = unsafe { domain.device.protection() };
    for sge in sges {
        let (all, rest) = into
            .split_at_mut_checked(sge.len as usize)
            .ok_or(FiError::MSGSIZE)?;
        into = rest;
        let grant = table
            .check_local(pd.id, sge.key, sge.addr, sge.len.into(), usage)
            .map_err(|denial| not_allowed(&denial))?;
        let mut left = all;
        for span in grant.spans() {
            let (now, rest) = left.split_at_mut(span.len() as usize);
            span.load_bytes(&memory, now).map_err(|_| FiError::FAULT)?;
            left = rest;
        }
    }
    Ok(())
}

/// Copies bytes to scatter/gather entries, to memory that has the right for this use.
pub(super) fn scatter(
    domain: &Domain,
    pd: &ProtectionDomain,
    sges: &[Sge],
    mut bytes: &[u8],
    usage: LocalUse,
) -> Result<()> {
    // SAFETY: the program passed the memory to receive into; it is writable, or a fault.
    let memory = unsafe { domain.device.memory() };
    for sge in sges {
        let (now, rest) = bytes.split_at(bytes.len().min(sge.len as usize));
        bytes = rest;
        if now.is_empty() {
            continue;
        }
        if sge.key == pd.everything() {
            memory
                .store_bytes(sge.addr, now)
                .map_err(|_| FiError::FAULT)?;
            continue;
        }
        // SAFETY: nothing is registered or closed through the table here.
        let table = unsafe { domain.device.protection() };
        let len = now.len() as u64;
        let grant = table
            .check_local(pd.id, sge.key, sge.addr, len, usage)
            .map_err(|denial| not_allowed(&denial))?;
        let mut left = now;
        for span in grant.spans() {
            let (now, rest) = left.split_at(left.len().min(span.len() as usize));
            span.store_bytes(&memory, now).map_err(|_| FiError::FAULT)?;
            left = rest;
        }
    }
    Ok(())
}

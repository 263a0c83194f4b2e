//! Checks whether memory is backed by pages; `fi_mr_refresh`.
//!
//! The device accesses memory by virtual address, so a region follows every change of its pages. This module only
//! enforces what the mode in force requires of the program.

#![allow(unsafe_code)]
// UNSAFETY: changes a region for which the program is responsible.

use super::attr::ranges;
use super::mappings;
use super::region::{Mr, MrObject};
use crate::domain::Domain;
use crate::errno::{FiError, Result};
use crate::object::{input, list};
use crate::sys::*;
use rkey_device::base::VaRange;
use rkey_device::core::Change;

/// Whether a region is usable at once. With `FI_MR_ALLOCATED`, unmapped memory is refused (FI-061). With
/// `FI_MR_MMU_NOTIFY` alone, the region waits for a refresh (FI-069, FI-260).
pub(super) fn check_backed(domain: &Domain, ranges: &[VaRange]) -> Result<bool> {
    let (allocated, notify) = (domain.has(FI_MR_ALLOCATED), domain.has(FI_MR_MMU_NOTIFY));
    if !allocated && !notify || mappings::back(ranges)? {
        return Ok(true);
    }
    if allocated {
        rkey_device::denials::refused(
            "the memory of the region is not fully mapped, or only reserved: an FI_MR_ALLOCATED domain requires it to be mapped at registration",
        );
        return Err(FiError::FAULT);
    }
    Ok(false)
}

/// `fi_mr_refresh` (FI-184 to FI-196). With `FI_MR_ALLOCATED` and without `FI_MR_MMU_NOTIFY`, pages may not
/// change, and the call is not supported (FI-257).
///
/// # Safety
/// `arg` is the argument of the control command.
pub(super) unsafe fn refresh(object: &MrObject, arg: *const MrModify) -> Result<()> {
    let mr = &object.inner;
    // SAFETY: guaranteed by the caller.
    let modify = unsafe { input(arg)? };
    if modify.flags != 0 {
        return Err(FiError::BADFLAGS);
    }
    let notify = mr.domain.has(FI_MR_MMU_NOTIFY);
    if mr.domain.has(FI_MR_ALLOCATED) && !notify {
        return Err(FiError::NOSYS);
    }
    // SAFETY: the caller guarantees a list of this length.
    let iov = unsafe { list(modify.attr.mr_iov, modify.attr.iov_count)? };
    let mut asked = if iov.is_empty() {
        mr.ranges.clone()
    } else {
        ranges(iov)?
    };
    for range in &asked {
        // FI-190: a range that cannot be updated is an error.
        if !mr.ranges.iter().any(|own| own.contains(range)) {
            return Err(FiError::INVAL);
        }
    }
    if let Some(foreign) = &mr.foreign {
        // A runtime that copies memory notices by itself when the memory is freed.
        let own = foreign.of_processor(&mr.ranges);
        asked.retain(|range| own.iter().any(|own| own.contains(range)));
    }
    if !mappings::back(&asked)? {
        return Err(FiError::FAULT);
    }
    if notify {
        renew(mr)?;
    }
    Ok(())
}

/// The refresh of `FI_MR_MMU_NOTIFY`: access ends and begins again (FI-191, FI-195). The region stays bound to its
/// counters and endpoint: the lock of its state prevents changes during the refresh.
fn renew(mr: &Mr) -> Result<()> {
    let mut state = mr.state.lock();
    if state.unbacked {
        // The refreshed part has pages, and the region serves it from now on (FI-186). Access to the rest fails until
        // it also has pages.
        if !state.unconfigured {
            for region in mr.everywhere() {
                mr.domain.device.enable_region(region.id)?;
            }
        }
        state.unbacked = false;
        return Ok(());
    }
    if state.unconfigured {
        // The region is disabled until `fi_mr_enable`, so there is no access to end.
        return Ok(());
    }
    for region in mr.everywhere() {
        // SAFETY: the same memory with the same rights, which the program keeps valid until it closes the
        // region.
        unsafe { mr.domain.device.change_region(region, &Change::default()) }?;
    }
    Ok(())
}

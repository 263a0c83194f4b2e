//! Re-registration: new memory, another protection domain or other rights for a region, under its existing
//! keys.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::context::ContextObject;
use crate::memory::mr::{MrObject, registered_bytes};
use crate::memory::pd::PdObject;
use crate::object::find;
use crate::sys::consts::*;
use crate::sys::{Mr, Pd};
use crate::translate::{errno, flags};
use rkey_device::base::VaRange;
use rkey_device::core::{Addressing, Change, DomainId, Rules};
use rkey_kit::{Errno, c_call};
use std::ffi::{c_int, c_void};

/// Which properties of the region the program changes.
struct What {
    translation: bool,
    pd: bool,
    access: bool,
}

impl What {
    fn new(what: u32) -> Result<Self, Errno> {
        const KNOWN: u32 =
            REREG_MR_CHANGE_TRANSLATION | REREG_MR_CHANGE_PD | REREG_MR_CHANGE_ACCESS;
        if what & !KNOWN != 0 || what == 0 {
            return Err(Errno::INVAL);
        }
        Ok(Self {
            translation: what & REREG_MR_CHANGE_TRANSLATION != 0,
            pd: what & REREG_MR_CHANGE_PD != 0,
            access: what & REREG_MR_CHANGE_ACCESS != 0,
        })
    }
}

/// The new registration. Fields that the program does not change have their current values.
struct NewRegistration {
    addr: *mut c_void,
    length: usize,
    flags: u32,
    zero_based: bool,
    /// Whether the address, length or addressing changes.
    moves: bool,
}

impl NewRegistration {
    /// The new memory, and how peers address it.
    fn memory(&self) -> Result<(VaRange, Addressing), Errno> {
        let len = registered_bytes(self.addr, self.length, self.flags);
        let range = VaRange::new(self.addr as u64, len).ok_or(Errno::INVAL)?;
        let addressing = match self.zero_based {
            true => Addressing::Zero,
            false => Addressing::Virtual,
        };
        Ok((range, addressing))
    }

    /// Stores the new values in the program's `ibv_mr`, and in the region's first address and flags.
    fn record(&self, now: &mut Mr, base: &mut (u64, u32)) {
        base.1 = self.flags;
        if self.moves {
            base.0 = if self.zero_based { 0 } else { self.addr as u64 };
        }
        (now.addr, now.length) = (self.addr, self.length);
    }
}

/// `ibv_rereg_mr`: 0, or `IBV_REREG_MR_ERR_INPUT`. A call that fails leaves the region unchanged, so the codes for a
/// lost region never occur. Nor do the codes for `fork`, which needs no special treatment here.
///
/// During the call, the device refuses every access. When the call returns, no access to the old memory is in progress. Both keys
/// remain valid.
///
/// # Safety
/// Same as for [`crate::memory::mr::reg_mr`]; no other thread uses the region.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut Mr,
    what: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    if c_call(|| unsafe { change(mr, what as u32, pd, addr, length, access as u32) }) == 0 {
        0
    } else {
        REREG_MR_ERR_INPUT
    }
}

/// # Safety
/// Same as for [`rereg_mr`].
unsafe fn change(
    mr: *mut Mr,
    what: u32,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> Result<c_int, Errno> {
    // SAFETY: `find` validates the handle.
    let object = unsafe { find::<MrObject>(mr)? };
    let what = What::new(what)?;
    if object.imported {
        return Err(Errno::INVAL);
    }
    if what.translation && !object.is_of_program() {
        return Err(Errno::OPNOTSUPP);
    }
    let context = object.context()?;
    let mut change = Change {
        rules: Rules::VERBS,
        ..Change::default()
    };
    if what.pd {
        // SAFETY: guaranteed by the caller.
        change.domain = Some(unsafe { domain_of(pd, context)? });
    }
    // SAFETY: nothing else uses the region.
    let (now, base) = unsafe { (&mut *object.c(), &mut *object.base.get()) };
    let flags = if what.access { access } else { base.1 };
    let rights = flags::region_flags(flags)?;
    if what.access {
        change.access = Some(rights.access);
        object.make_writable(flags)?;
    }
    let zero_based_before = base.1 & ACCESS_ZERO_BASED != 0;
    let new = NewRegistration {
        addr: if what.translation { addr } else { now.addr },
        length: if what.translation { length } else { now.length },
        flags,
        zero_based: rights.zero_based,
        moves: what.translation || zero_based_before != rights.zero_based,
    };
    if new.moves && !object.is_of_program() {
        return Err(Errno::OPNOTSUPP);
    }
    let ranges;
    if new.moves {
        let (range, addressing) = new.memory()?;
        ranges = [range];
        change.ranges = Some((&ranges, addressing));
    }
    // SAFETY: the program promises what `change_region` requires.
    unsafe { context.device().change_region(object.region(), &change) }
        .map_err(|error| errno::of_registration("ibv_rereg_mr", &error))?;
    new.record(now, base);
    if what.pd {
        now.pd = pd;
    }
    Ok(0)
}

/// The number of a protection domain, which must belong to the region's device.
///
/// # Safety
/// Same as for [`rereg_mr`].
unsafe fn domain_of(pd: *mut Pd, context: &ContextObject) -> Result<DomainId, Errno> {
    // SAFETY: `find` validates the handle.
    let pd = unsafe { find::<PdObject>(pd)? };
    if !pd.context()?.device().is(context.device()) {
        return Err(Errno::INVAL);
    }
    Ok(pd.domain)
}

//! Re-registration: new memory, another protection domain or other rights for a region, under its existing
//! keys.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::mr::{MrObject, registered_bytes};
use crate::object::find;
use crate::pd::PdObject;
use crate::sys::consts::*;
use crate::sys::{Mr, Pd};
use crate::{errno, flags};
use rkey_device::base::VaRange;
use rkey_device::core::{Addressing, Change, Rules};
use rkey_kit::{Errno, c_call};
use std::ffi::{c_int, c_void};

/// The new registration. Fields that the program does not change have their current values.
struct NewRegistration {
    addr: *mut c_void,
    length: usize,
    flags: u32,
    /// Whether the address, length or addressing changes.
    moves: bool,
}

/// `ibv_rereg_mr`: 0, or `IBV_REREG_MR_ERR_INPUT`. A call that fails leaves the region unchanged, so the codes for a
/// lost region never occur. Nor do the codes for `fork`, which needs no special treatment here.
///
/// During the call, the device refuses every access. When the call returns, no access to the old memory is in progress. Both keys
/// remain valid.
///
/// # Safety
/// Same as for [`crate::mr::reg_mr`]; no other thread uses the region.
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
    const KNOWN: u32 = REREG_MR_CHANGE_TRANSLATION | REREG_MR_CHANGE_PD | REREG_MR_CHANGE_ACCESS;
    // SAFETY: `find` validates the handle.
    let object = unsafe { find::<MrObject>(mr)? };
    let (new_translation, new_pd, new_access) = (
        what & REREG_MR_CHANGE_TRANSLATION != 0,
        what & REREG_MR_CHANGE_PD != 0,
        what & REREG_MR_CHANGE_ACCESS != 0,
    );
    if what & !KNOWN != 0 || what == 0 || object.imported {
        return Err(Errno::INVAL);
    }
    if new_translation && !object.is_of_program() {
        return Err(Errno::OPNOTSUPP);
    }
    let context = object.context()?;
    let mut change = Change {
        rules: Rules::VERBS,
        ..Change::default()
    };
    if new_pd {
        // SAFETY: `find` validates the handle.
        let pd = unsafe { find::<PdObject>(pd)? };
        if !pd.context()?.device().is(context.device()) {
            return Err(Errno::INVAL);
        }
        change.domain = Some(pd.domain);
    }
    // SAFETY: nothing else uses the region.
    let (now, base) = unsafe { (&mut *object.c(), &mut *object.base.get()) };
    let flags = if new_access { access } else { base.1 };
    let rights = flags::region_flags(flags)?;
    if new_access {
        change.access = Some(rights.access);
        object.make_writable(flags)?;
    }
    let zero_based_before = base.1 & ACCESS_ZERO_BASED != 0;
    let new = NewRegistration {
        addr: if new_translation { addr } else { now.addr },
        length: if new_translation { length } else { now.length },
        flags,
        moves: new_translation || zero_based_before != rights.zero_based,
    };
    if new.moves && !object.is_of_program() {
        return Err(Errno::OPNOTSUPP);
    }
    let ranges;
    if new.moves {
        let len = registered_bytes(new.addr, new.length, new.flags);
        ranges = [VaRange::new(new.addr as u64, len).ok_or(Errno::INVAL)?];
        let addressing = if rights.zero_based {
            Addressing::Zero
        } else {
            Addressing::Virtual
        };
        change.ranges = Some((&ranges, addressing));
    }
    // SAFETY: the program promises what `change_region` requires.
    unsafe { context.device().change_region(object.region(), &change) }
        .map_err(|error| errno::of_registration("ibv_rereg_mr", &error))?;
    base.1 = flags;
    if new.moves {
        base.0 = if rights.zero_based {
            0
        } else {
            new.addr as u64
        };
    }
    (now.addr, now.length) = (new.addr, new.length);
    if new_pd {
        now.pd = pd;
    }
    Ok(0)
}

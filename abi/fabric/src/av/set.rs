//! `fi_av_set`: ordered subsets of an address vector's numbers, for collective groups.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::{Av, AvObject};
use crate::errno::{FiError, Result};
use crate::nosys;
use crate::object::{find, input, object, publish, remove, status, store};
use crate::sys::*;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct AvSetObject {
    fid: UnsafeCell<FidAvSet>,
    pub(crate) inner: Arc<AvSet>,
}
object!(AvSetObject, FidAvSet, 65536);

/// A set.
pub(crate) struct AvSet {
    pub(crate) av: Arc<Av>,
    /// The collective address of the set.
    pub(crate) address: u64,
    members: Mutex<Vec<u64>>,
}

/// A new collective address, far above the numbers of address vectors.
pub(crate) fn new_address() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 62);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl AvSet {
    /// The `fi_addr_t`s of the members, in order.
    pub(crate) fn members(&self) -> Vec<u64> {
        self.members.lock().clone()
    }
}

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

static OPS: OpsAvSet = OpsAvSet {
    size: size_of::<OpsAvSet>(),
    set_union,
    intersect,
    diff,
    insert,
    remove: remove_number,
    addr,
};

/// `fi_av_set`.
///
/// # Safety
/// The arguments must be valid as described in fi_av_set(3).
pub(super) unsafe extern "C" fn av_set(
    av: *mut FidAv,
    attr: *mut AvSetAttr,
    set: *mut *mut FidAvSet,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees valid attributes.
        let (av, attr) = unsafe {
            let av = &find::<AvObject, _>(av)?.inner;
            (av, input(attr.cast_const())?)
        };
        let inner = AvSet {
            av: Arc::clone(av),
            address: new_address(),
            members: Mutex::new(first_members(av, attr)?),
        };
        let object = AvSetObject {
            fid: UnsafeCell::new(FidAvSet {
                fid: Fid::new(FI_CLASS_AV_SET, context, &FID_OPS),
                ops: &OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, set)? };
        av.users.add();
        Ok(())
    })
}

/// The initial numbers of a set.
fn first_members(av: &Av, attr: &AvSetAttr) -> Result<Vec<u64>> {
    if attr.flags & !(FI_UNIVERSE | FI_COLLECTIVE_SETS) != 0 {
        return Err(FiError::BADFLAGS);
    }
    if attr.comm_key_size != 0 {
        tracing::warn!(
            "fi_av_set cannot provide comm_key: no fabric manager assigns communication keys here"
        );
        return Err(FiError::NOSYS);
    }
    if attr.flags & FI_UNIVERSE != 0 {
        return Ok(av.numbers());
    }
    if attr.start_addr == FI_ADDR_NOTAVAIL && attr.end_addr == FI_ADDR_NOTAVAIL {
        return Ok(Vec::new());
    }
    if attr.end_addr == FI_ADDR_NOTAVAIL || attr.start_addr > attr.end_addr || attr.stride == 0 {
        tracing::warn!(
            "fi_av_set: give start_addr, end_addr and a stride that is not 0, or neither start_addr nor end_addr"
        );
        return Err(FiError::INVAL);
    }
    let mut numbers = av.numbers();
    numbers.retain(|&number| {
        (attr.start_addr..=attr.end_addr).contains(&number)
            && (number - attr.start_addr).is_multiple_of(attr.stride)
    });
    Ok(numbers)
}

/// `fi_close`.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `remove` validates the handle; the program no longer uses the set.
        let object = unsafe { remove::<AvSetObject, _>(fid)? };
        object.inner.av.users.remove();
        Ok(())
    })
}

/// Applies `change` to a set, with the members of another set of the same address vector.
///
/// # Safety
/// Handles may be invalid; live objects stay alive during the call.
unsafe fn combine(
    dst: *mut FidAvSet,
    src: *const FidAvSet,
    change: impl FnOnce(&mut Vec<u64>, &[u64]),
) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (dst, src) = unsafe {
            let dst = &find::<AvSetObject, _>(dst)?.inner;
            (dst, &find::<AvSetObject, _>(src)?.inner)
        };
        if !Arc::ptr_eq(&dst.av, &src.av) {
            return Err(FiError::INVAL);
        }
        // The two may be the same: never lock both.
        let others = src.members();
        change(&mut dst.members.lock(), &others);
        Ok(())
    })
}

/// `fi_av_set_union`.
unsafe extern "C" fn set_union(dst: *mut FidAvSet, src: *const FidAvSet) -> c_int {
    let change = |members: &mut Vec<u64>, others: &[u64]| {
        for number in others {
            if !members.contains(number) {
                members.push(*number);
            }
        }
    };
    // SAFETY: the caller guarantees valid arguments.
    unsafe { combine(dst, src, change) }
}

/// `fi_av_set_intersect`.
unsafe extern "C" fn intersect(dst: *mut FidAvSet, src: *const FidAvSet) -> c_int {
    let change = |members: &mut Vec<u64>, others: &[u64]| {
        members.retain(|number| others.contains(number));
    };
    // SAFETY: the caller guarantees valid arguments.
    unsafe { combine(dst, src, change) }
}

/// `fi_av_set_diff`.
unsafe extern "C" fn diff(dst: *mut FidAvSet, src: *const FidAvSet) -> c_int {
    let change = |members: &mut Vec<u64>, others: &[u64]| {
        members.retain(|number| !others.contains(number));
    };
    // SAFETY: the caller guarantees valid arguments.
    unsafe { combine(dst, src, change) }
}

/// `fi_av_set_insert`.
unsafe extern "C" fn insert(set: *mut FidAvSet, number: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let set = &unsafe { find::<AvSetObject, _>(set)? }.inner;
        let mut members = set.members.lock();
        if set.av.get(number).is_none() || members.contains(&number) {
            return Err(FiError::INVAL);
        }
        members.push(number);
        Ok(())
    })
}

/// `fi_av_set_remove`.
unsafe extern "C" fn remove_number(set: *mut FidAvSet, number: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let set = &unsafe { find::<AvSetObject, _>(set)? }.inner;
        let mut members = set.members.lock();
        let place = members.iter().position(|&member| member == number);
        members.remove(place.ok_or(FiError::INVAL)?);
        Ok(())
    })
}

/// `fi_av_set_addr`.
unsafe extern "C" fn addr(set: *mut FidAvSet, address: *mut u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; `store` refuses null; the caller guarantees room for a number.
        unsafe { store(address, find::<AvSetObject, _>(set)?.inner.address) }
    })
}

//! `rdma_get_devices` and `rdma_free_devices`.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and lists that C code frees.

use crate::sys::Context;
use crate::verbs;
use parking_lot::Mutex;
use rkey_kit::fence;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ptr::null_mut;

/// The device, and the null that ends the list.
type List = [*mut Context; 2];

/// Lists that programs have not freed yet.
static LISTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// `rdma_get_devices`.
///
/// # Safety
/// `count` is null or room for a number.
pub unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut Context {
    fence(|| {
        let (context, _) = verbs::device()?;
        let list = Box::into_raw(Box::new([context, null_mut()])).cast::<*mut Context>();
        LISTS.lock().insert(list.expose_provenance());
        if !count.is_null() {
            // SAFETY: not null, so it is room for a number.
            unsafe { *count = 1 };
        }
        Ok(list)
    })
}

/// `rdma_free_devices`.
///
/// # Safety
/// Nothing uses the list afterwards.
pub unsafe extern "C" fn free_devices(list: *mut *mut Context) {
    fence(|| {
        if LISTS.lock().remove(&list.addr()) {
            // SAFETY: `get_devices` made it from a box, and it has left the registry.
            drop(unsafe { Box::from_raw(list.cast::<List>()) });
        }
        Ok(())
    });
}

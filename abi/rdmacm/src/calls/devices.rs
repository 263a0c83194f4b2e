//! `rdma_get_devices` and `rdma_free_devices`.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and arrays that C code frees.

use crate::queues::verbs;
use crate::sys::Context;
use parking_lot::Mutex;
use rkey_kit::c_call;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ptr::null_mut;

/// The device, and the terminating null.
type List = [*mut Context; 2];

/// The addresses of lists that programs have not freed yet.
static LISTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// `rdma_get_devices`.
///
/// # Safety
/// `count` is null or valid for writes.
pub unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut Context {
    c_call(|| {
        let (context, _) = verbs::device()?;
        let list = Box::into_raw(Box::new([context, null_mut()])).cast::<*mut Context>();
        LISTS.lock().insert(list.expose_provenance());
        if !count.is_null() {
            // SAFETY: not null, so the caller guarantees that it is valid for writes.
            unsafe { *count = 1 };
        }
        Ok(list)
    })
}

/// `rdma_free_devices`.
///
/// # Safety
/// The list must not be used afterwards.
pub unsafe extern "C" fn free_devices(list: *mut *mut Context) {
    c_call(|| {
        if LISTS.lock().remove(&list.addr()) {
            // SAFETY: `get_devices` made it from a box, and it was in the set, so it is freed only once.
            drop(unsafe { Box::from_raw(list.cast::<List>()) });
        }
        Ok(())
    });
}

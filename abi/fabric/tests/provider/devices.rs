//! Accelerator memory: what can be tested without an accelerator.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// Proves: FI-I29
#[test]
fn the_copy_functions_for_device_memory_cannot_be_overridden() {
    let wish = Wish {
        caps: FI_MSG | FI_RMA | FI_HMEM,
        ..Wish::default()
    };
    let (_, domain) = open_domain(wish.version, wish.info());
    let fid = domain.cast::<Fid>();
    let mut ops = [0usize; 8];
    // SAFETY: a live handle, a C string, and a table that is never read.
    let code = unsafe {
        let set = (*(*fid).ops).ops_set;
        let (name, ops) = (c"hmem_override_ops".as_ptr(), ops.as_mut_ptr().cast());
        set(fid, name, 0, ops, null_mut())
    };
    assert_eq!(code, -libc::ENOSYS);
}

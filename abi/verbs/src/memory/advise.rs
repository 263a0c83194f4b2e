//! `ibv_advise_mr`: prefetching the pages of regions.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::memory::mr::{PAGE, find_by_key};
use crate::memory::pd::PdObject;
use crate::object::{find, input};
use crate::sys::{Pd, Sge};
use rkey_device::base::VaRange;
use rkey_kit::{Errno, c_call};
use std::ffi::{c_int, c_void};

/// `ibv_advise_mr`: prefetches pages. `IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE` needs a region with local write.
///
/// # Safety
/// `list` is null or has `count` entries; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn advise_mr(
    pd: *mut Pd,
    advice: c_int,
    advise_flags: u32,
    list: *mut Sge,
    count: u32,
) -> c_int {
    const PREFETCH: c_int = 0;
    const PREFETCH_WRITE: c_int = 1;
    const PREFETCH_NO_FAULT: c_int = 2;
    const FLUSH: u32 = 1;
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let pd = unsafe { find::<PdObject>(pd)? };
        if !(PREFETCH..=PREFETCH_NO_FAULT).contains(&advice) {
            return Err(Errno::OPNOTSUPP);
        }
        if advise_flags & !FLUSH != 0 || count == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null, and the caller guarantees the length.
        let list = unsafe { std::slice::from_raw_parts(input(list)?, count as usize) };
        for sge in list {
            let region = find_by_key(pd, sge.lkey)?;
            let inside = VaRange::new(sge.addr, sge.length.into())
                .is_some_and(|asked| region.base <= asked.start() && asked.end() <= region.end);
            if !inside {
                return Err(Errno::FAULT);
            }
            if advice == PREFETCH_WRITE && !region.writable {
                return Err(Errno::PERM);
            }
            if let Some(memory) = region.memory {
                populate(memory + (sge.addr - region.base), sge.length, advice);
            }
        }
        Ok(0)
    })
}

/// Asks the kernel to populate the pages. Ignores failures, because the call is only advice.
fn populate(memory: u64, length: u32, advice: c_int) {
    const POPULATE_READ: c_int = 22;
    const POPULATE_WRITE: c_int = 23;
    let start = memory & !(PAGE - 1);
    let len = memory + u64::from(length) - start;
    let how = match advice {
        0 => POPULATE_READ,
        1 => POPULATE_WRITE,
        _ => libc::MADV_WILLNEED,
    };
    // SAFETY: these calls do not change the contents of the pages.
    unsafe { libc::madvise(start as *mut c_void, len as usize, how) };
}

//! Calls that this library does not support yet: `repoll_create`, `repoll_ctl` and `repoll_wait`. They fail with
//! `ENOSYS`, and the first failure is logged.

use rkey_kit::{Errno, c_call_or_minus_one};
use std::sync::Once;

/// Stands in for calls that return an integer of any size: returns -1 and sets `errno` to `ENOSYS`.
pub extern "C" fn call() -> isize {
    static SAID: Once = Once::new();
    let failed = c_call_or_minus_one(|| {
        SAID.call_once(|| {
            rkey_kit::log::start();
            tracing::warn!(
                "this librdmacm.so.1 does not support repoll_* yet: \
                                 the calls fail with ENOSYS"
            );
        });
        Err(Errno::NOSYS)
    });
    failed as isize
}

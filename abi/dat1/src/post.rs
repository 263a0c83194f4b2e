//! Posting DTOs: the segments are larger structures in DAT 1.2.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::code::{bad_argument, to_dat1_code};
use crate::layouts::{LmrTriplet, RmrTriplet};
use crate::memory::to_dat2_triplet;
use crate::table::call_provider;
use daplrkey::sys::{self, Context, Count, EpHandle, Return, SrqHandle, dat_completion_flags};
use rkey_kit::argument;
use smallvec::SmallVec;

/// The maximum number of segments that are converted. The provider's limit is lower.
const MOST: u64 = 1024;

/// Converts local segments to those of DAT 2.0. `None`: a null pointer, a length of more than 32 bits, or too many
/// segments.
///
/// # Safety
/// If the pointer is not null, it points to `count` segments.
pub(crate) unsafe fn segments(
    list: *const LmrTriplet,
    count: u64,
) -> Option<SmallVec<[sys::LmrTriplet; 4]>> {
    if count > MOST {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    let list = unsafe { argument::list(list, count as usize) }.ok()?;
    list.iter().map(to_dat2_triplet).collect()
}

/// Like [`segments`], for a count that may be negative.
///
/// # Safety
/// Same as for [`segments`].
unsafe fn iov(
    list: *const LmrTriplet,
    count: Count,
) -> Result<SmallVec<[sys::LmrTriplet; 4]>, Return> {
    let count = u64::try_from(count).map_err(|_| bad_argument(2))?;
    if count > MOST {
        return Err(bad_argument(2));
    }
    // SAFETY: guaranteed by the caller.
    unsafe { segments(list, count) }.ok_or_else(|| bad_argument(3))
}

/// Converts a segment of remote memory to that of DAT 2.0.
///
/// # Safety
/// If the pointer is not null, it points to a segment.
unsafe fn remote(triplet: *const RmrTriplet) -> Result<sys::RmrTriplet, Return> {
    // SAFETY: guaranteed by the caller.
    let triplet = unsafe { argument::input(triplet) }.map_err(|_| bad_argument(5))?;
    Ok(sys::RmrTriplet {
        virtual_address: triplet.target_address,
        segment_length: u32::try_from(triplet.segment_length).map_err(|_| bad_argument(5))?,
        rmr_context: triplet.rmr_context,
    })
}

/// Sends and receives.
macro_rules! message {
    ($name:ident, $slot:ident) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments must be valid as described in the manual page.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            ep: EpHandle,
            count: Count,
            list: *mut LmrTriplet,
            cookie: Context,
            flags: dat_completion_flags,
        ) -> Return {
            // SAFETY: guaranteed by the caller.
            match unsafe { iov(list, count) } {
                Ok(mut iov) => to_dat1_code(call_provider!(
                    $slot,
                    INVALID_HANDLE_EP,
                    ep,
                    count,
                    iov.as_mut_ptr(),
                    cookie,
                    flags
                )),
                Err(code) => code,
            }
        }
    };
}
message!(dat_ep_post_send, ep_post_send_func);
message!(dat_ep_post_recv, ep_post_recv_func);

/// RDMA.
macro_rules! rdma {
    ($name:ident, $slot:ident) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments must be valid as described in the manual page.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            ep: EpHandle,
            count: Count,
            list: *mut LmrTriplet,
            cookie: Context,
            to: *const RmrTriplet,
            flags: dat_completion_flags,
        ) -> Return {
            // SAFETY: guaranteed by the caller.
            let both = unsafe { iov(list, count).and_then(|iov| Ok((iov, remote(to)?))) };
            match both {
                Ok((mut iov, to)) => to_dat1_code(call_provider!(
                    $slot,
                    INVALID_HANDLE_EP,
                    ep,
                    count,
                    iov.as_mut_ptr(),
                    cookie,
                    &raw const to,
                    flags
                )),
                Err(code) => code,
            }
        }
    };
}
rdma!(dat_ep_post_rdma_read, ep_post_rdma_read_func);
rdma!(dat_ep_post_rdma_write, ep_post_rdma_write_func);

/// `dat_srq_post_recv`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_srq_post_recv(
    srq: SrqHandle,
    count: Count,
    list: *mut LmrTriplet,
    cookie: Context,
) -> Return {
    // SAFETY: guaranteed by the caller.
    match unsafe { iov(list, count) } {
        Ok(mut iov) => to_dat1_code(call_provider!(
            srq_post_recv_func,
            INVALID_HANDLE_SRQ,
            srq,
            count,
            iov.as_mut_ptr(),
            cookie
        )),
        Err(code) => code,
    }
}

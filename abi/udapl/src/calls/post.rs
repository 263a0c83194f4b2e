//! Posting DTOs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::find;
use crate::objects::ep::Ep;
use crate::objects::requests::{Options, RequestKind};
use crate::sys::consts::*;
use crate::sys::{DtoCookie, EpHandle, LmrTriplet, Return, RmrTriplet};
use crate::values::event::bits;
use crate::values::limits::MAX_IOV;
use rkey_device::core::{Key, LKey, RKey};
use rkey_device::engine::{SendFlags, Sge, Target, Work};
use smallvec::SmallVec;

/// The segments of a DTO, as the device takes them.
pub type Segments = SmallVec<[Sge; 8]>;

/// The flags that a request may have.
const FLAGS: dat_completion_flags = COMPLETION_SUPPRESS_FLAG
    | COMPLETION_SOLICITED_WAIT_FLAG
    | COMPLETION_UNSIGNALLED_FLAG
    | COMPLETION_BARRIER_FENCE_FLAG
    | COMPLETION_EVD_THRESHOLD_FLAG;

impl Options {
    /// Converts the completion flags of a request; `number` is the argument's number.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER`: unknown flags, or `DAT_COMPLETION_UNSIGNALLED_FLAG` on an EP without it (DA-042).
    #[inline]
    pub fn of_request(ep: &Ep, number: u32, flags: dat_completion_flags) -> Result<Self> {
        let unsignalled = flags & COMPLETION_UNSIGNALLED_FLAG != 0;
        if flags & !FLAGS != 0 || (unsignalled && !ep.quiet_requests()) {
            return Err(Fail::argument(number));
        }
        let mut wanted = SendFlags::empty();
        wanted.set(SendFlags::SIGNALED, flags & COMPLETION_SUPPRESS_FLAG == 0);
        wanted.set(
            SendFlags::SOLICITED,
            flags & COMPLETION_SOLICITED_WAIT_FLAG != 0,
        );
        wanted.set(SendFlags::FENCE, flags & COMPLETION_BARRIER_FENCE_FLAG != 0);
        Ok(Self {
            flags: wanted,
            notify: !unsignalled,
        })
    }
}

/// The segments that a program passes as arguments 2 and 3, and their total length.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`.
///
/// # Safety
/// `iov` is null or has `count` triplets.
#[inline]
pub unsafe fn segments(count: Count, iov: *const LmrTriplet) -> Result<(Segments, u64)> {
    if count > MAX_IOV as Count {
        return Err(Fail::argument(2));
    }
    // SAFETY: guaranteed by the caller.
    let list = unsafe { argument::list((2, count), (3, iov))? };
    let mut total = 0;
    let segments = list.iter().map(|triplet| {
        total += u64::from(triplet.segment_length);
        Sge {
            addr: triplet.virtual_address,
            len: triplet.segment_length,
            key: LKey(triplet.lmr_context),
        }
    });
    let segments = segments.collect();
    Ok((segments, total))
}

/// The memory that an RMR triplet names.
#[must_use]
pub fn target(remote: &RmrTriplet) -> Target {
    Target {
        addr: remote.virtual_address,
        key: RKey::Device(Key(remote.rmr_context)),
    }
}

/// Truncates segments to a total length.
fn shorten(segments: &mut Segments, length: u64) {
    let mut left = length;
    for segment in segments.iter_mut() {
        segment.len = u64::from(segment.len).min(left) as u32;
        left -= u64::from(segment.len);
    }
}

fn check_state(ep: &Ep) -> Result {
    match ep.takes_requests() {
        true => Ok(()),
        false => Err(ep.not_now()),
    }
}

/// `dat_ep_post_send`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn send(
    ep: EpHandle,
    count: Count,
    iov: *mut LmrTriplet,
    cookie: DtoCookie,
    flags: dat_completion_flags,
) -> Return {
    call("dat_ep_post_send", || {
        // SAFETY: `find` validates the handle; the caller promises the list.
        let (ep, (segments, _)) = unsafe { (find::<Ep>(ep)?, segments(count, iov)?) };
        let options = Options::of_request(ep, 5, flags)?;
        if ep.is_datagram() {
            return Err(Fail::NO_MODEL);
        }
        check_state(ep)?;
        let work = Work::Send {
            imm: None,
            invalidate: None,
        };
        ep.post(work, &segments, bits(cookie), options, RequestKind::Send)
    })
}

/// `dat_ep_post_recv`, which is allowed in every state of an EP that has its PZ. (If the EP is disconnected, the receive is
/// flushed at once.)
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn recv(
    ep: EpHandle,
    count: Count,
    iov: *mut LmrTriplet,
    cookie: DtoCookie,
    flags: dat_completion_flags,
) -> Return {
    call("dat_ep_post_recv", || {
        // SAFETY: `find` validates the handle; the caller promises the list.
        let (ep, (segments, _)) = unsafe { (find::<Ep>(ep)?, segments(count, iov)?) };
        let unsignalled = flags & COMPLETION_UNSIGNALLED_FLAG != 0;
        if flags & !FLAGS != 0 || (unsignalled && !ep.quiet_receives()) {
            return Err(Fail::argument(5));
        }
        ep.post_recv(&segments, bits(cookie), !unsignalled)
    })
}

/// `dat_ep_post_rdma_read`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn rdma_read(
    ep: EpHandle,
    count: Count,
    iov: *mut LmrTriplet,
    cookie: DtoCookie,
    remote: *const RmrTriplet,
    flags: dat_completion_flags,
) -> Return {
    call("dat_ep_post_rdma_read", || {
        // SAFETY: `find` validates the handle; the caller promises the rest.
        let (ep, (mut segments, total), remote) = unsafe {
            let ep = find::<Ep>(ep)?;
            (ep, segments(count, iov)?, argument::input(5, remote)?)
        };
        let options = Options::of_request(ep, 6, flags)?;
        check_state(ep)?;
        let length = u64::from(remote.segment_length);
        if total < length {
            return Err(Fail::LENGTH);
        }
        shorten(&mut segments, length);
        let remote = target(remote);
        let work = Work::Read { remote };
        ep.post(work, &segments, bits(cookie), options, RequestKind::Read)
    })
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn rdma_write(
    ep: EpHandle,
    count: Count,
    iov: *mut LmrTriplet,
    cookie: DtoCookie,
    remote: *const RmrTriplet,
    flags: dat_completion_flags,
) -> Return {
    call("dat_ep_post_rdma_write", || {
        // SAFETY: `find` validates the handle; the caller promises the rest.
        let (ep, (segments, total), remote) = unsafe {
            let ep = find::<Ep>(ep)?;
            (ep, segments(count, iov)?, argument::input(5, remote)?)
        };
        let options = Options::of_request(ep, 6, flags)?;
        check_state(ep)?;
        if total > u64::from(remote.segment_length) {
            return Err(Fail::LENGTH);
        }
        let remote = target(remote);
        let work = Work::Write { remote, imm: None };
        ep.post(work, &segments, bits(cookie), options, RequestKind::Write)
    })
}

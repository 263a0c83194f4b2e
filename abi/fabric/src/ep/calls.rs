//! What the calls of `fi_msg` and `fi_tagged` have in common: they differ in the tag, and in how much of
//! a message the program says.

#![allow(unsafe_code)]
// UNSAFETY: reads lists of the program.

use super::object::EpObject;
use super::receive::Wanted;
use super::send::{Descriptors, Message, QUIET};
use super::shared::SrxObject;
use crate::errno::{FiError, Result};
use crate::object::{find, list};
use crate::sys::*;
use libc::iovec;
use std::ffi::c_void;

const SEND_FLAGS: u64 = FI_REMOTE_CQ_DATA
    | FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_FENCE;

/// A list of descriptors: as many as there are buffers, or null.
///
/// # Safety
/// Null, or so many descriptors.
pub(super) unsafe fn descriptors<'a>(
    desc: *mut *mut c_void,
    count: usize,
) -> Result<Descriptors<'a>> {
    if desc.is_null() || count == 0 {
        return Ok(Descriptors::None);
    }
    // SAFETY: not null, and so many descriptors as the caller promises.
    Ok(Descriptors::Many(unsafe {
        list(desc.cast_const(), count)?
    }))
}

/// One buffer as a list.
pub(super) fn single(buf: *const c_void, len: usize) -> [iovec; 1] {
    [iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    }]
}

/// What goes with the bytes of a message.
#[derive(Clone, Copy)]
pub(super) struct Envelope {
    to: u64,
    tag: Option<u64>,
    data: Option<u64>,
    context: *mut c_void,
    /// Without flags those of the endpoint hold.
    flags: Option<u64>,
}

impl Envelope {
    pub(super) fn new(to: u64, tag: Option<u64>, context: *mut c_void) -> Self {
        Self {
            to,
            tag,
            data: None,
            context,
            flags: None,
        }
    }

    /// Of a message whose call returns when its bytes are copied.
    pub(super) fn inject(to: u64, tag: Option<u64>) -> Self {
        Self {
            flags: Some(FI_INJECT | QUIET),
            ..Self::new(to, tag, std::ptr::null_mut())
        }
    }

    pub(super) fn with_data(self, data: u64) -> Self {
        Self {
            data: Some(data),
            ..self
        }
    }

    /// Of a message whose call has flags; `data` counts if they say so.
    pub(super) fn with_flags(self, flags: u64, data: u64) -> Result<Self> {
        if flags & !SEND_FLAGS != 0 {
            return Err(FiError::BADFLAGS);
        }
        Ok(Self {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(data),
            flags: Some(flags),
            ..self
        })
    }
}

/// Sends one buffer.
///
/// # Safety
/// A handle, or something that is refused.
pub(super) unsafe fn send_one(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    it: Envelope,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { send(ep, &single(buf, len), Descriptors::One(desc), it) }
}

/// Sends a list of buffers.
///
/// # Safety
/// A handle, or something that is refused; so many buffers, and null or so many descriptors.
pub(super) unsafe fn send_list(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    it: Envelope,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { send(ep, list(iov, count)?, descriptors(desc, count)?, it) }
}

/// # Safety
/// A handle, or something that is refused.
unsafe fn send(ep: *mut FidEp, iov: &[iovec], desc: Descriptors<'_>, it: Envelope) -> Result<()> {
    // SAFETY: as the caller promises.
    let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
    ep.send(&Message {
        iov,
        desc,
        to: it.to,
        tag: it.tag,
        data: it.data,
        context: it.context,
        flags: it.flags.unwrap_or(ep.tx_flags),
    })
}

/// Which messages a receive is for.
#[derive(Clone, Copy)]
pub(super) struct Filter {
    from: u64,
    /// Tag and the bits of it that may differ.
    tag: Option<(u64, u64)>,
    context: *mut c_void,
    /// Without flags those of the endpoint hold.
    flags: Option<u64>,
}

impl Filter {
    pub(super) fn new(from: u64, tag: Option<(u64, u64)>, context: *mut c_void) -> Self {
        Self {
            from,
            tag,
            context,
            flags: None,
        }
    }

    /// Of a receive whose call has flags, of which these are known.
    pub(super) fn with_flags(self, flags: u64, known: u64) -> Result<Self> {
        if flags & !known != 0 {
            return Err(FiError::BADFLAGS);
        }
        Ok(Self {
            flags: Some(flags),
            ..self
        })
    }
}

/// Posts one buffer.
///
/// # Safety
/// A handle, or something that is refused.
pub(super) unsafe fn receive_one(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    it: Filter,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { receive(ep, &single(buf, len), Descriptors::One(desc), it) }
}

/// Posts a list of buffers.
///
/// # Safety
/// A handle, or something that is refused; so many buffers, and null or so many descriptors.
pub(super) unsafe fn receive_list(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    it: Filter,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { receive(ep, list(iov, count)?, descriptors(desc, count)?, it) }
}

/// # Safety
/// A handle, or something that is refused.
unsafe fn receive(ep: *mut FidEp, iov: &[iovec], desc: Descriptors<'_>, it: Filter) -> Result<()> {
    let wanted = |usual: u64| Wanted {
        iov,
        desc,
        from: it.from,
        tag: it.tag,
        context: it.context,
        // One buffer for several messages: only without tags.
        flags: it.flags.unwrap_or(match it.tag {
            None => usual,
            Some(_) => usual & !FI_MULTI_RECV,
        }),
    };
    // SAFETY: as the caller promises.
    if let Ok(ep) = unsafe { find::<EpObject, _>(ep) } {
        return ep.inner.receive(&wanted(ep.inner.rx_flags));
    }
    // SAFETY: as the caller promises.
    let srx = &unsafe { find::<SrxObject, _>(ep)? }.inner;
    srx.receive(&wanted(srx.flags))
}

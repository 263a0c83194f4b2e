//! The common part of the calls of `fi_msg` and `fi_tagged`, which differ only in the tag, and in how many fields of a message the
//! program sets.

#![allow(unsafe_code)]
// UNSAFETY: reads the program's lists.

use super::deferred::{Buffers, DeferredCall, Job};
use super::work;
use crate::ep::object::EpObject;
use crate::ep::receive::Wanted;
use crate::ep::send::{Descriptors, Message, QUIET};
use crate::ep::shared::SrxObject;
use crate::ep::short::{OneBuffer, ShortReceive, ShortSend};
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
    | FI_FENCE
    | FI_TRIGGER;

/// A list of descriptors: as many as there are buffers, or null.
///
/// # Safety
/// `desc` is null or has `count` descriptors.
pub(super) unsafe fn descriptors<'a>(
    desc: *mut *mut c_void,
    count: usize,
) -> Result<Descriptors<'a>> {
    if desc.is_null() || count == 0 {
        return Ok(Descriptors::None);
    }
    // SAFETY: not null, and `count` descriptors as the caller guarantees.
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

/// The arguments of a send besides its buffers.
#[derive(Clone, Copy)]
pub(super) struct SendArgs {
    to: u64,
    tag: Option<u64>,
    data: Option<u64>,
    context: *mut c_void,
    /// `None`: the endpoint's default flags.
    flags: Option<u64>,
}

impl SendArgs {
    pub(super) fn new(to: u64, tag: Option<u64>, context: *mut c_void) -> Self {
        Self {
            to,
            tag,
            data: None,
            context,
            flags: None,
        }
    }

    /// The arguments of an inject call, which returns when the bytes are copied.
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

    /// The arguments of a call with flags, which decide whether `data` is used.
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

impl SendArgs {
    /// The message to send; `usual` are the flags if the call passed none.
    pub(super) fn message<'a>(
        &self,
        iov: &'a [iovec],
        desc: Descriptors<'a>,
        usual: u64,
    ) -> Message<'a> {
        Message {
            iov,
            desc,
            to: self.to,
            tag: self.tag,
            data: self.data,
            context: self.context,
            flags: self.flags.unwrap_or(usual),
            deferred: None,
        }
    }

    pub(super) fn kind(&self) -> u64 {
        self.tag.map_or(FI_MSG, |_| FI_TAGGED)
    }

    pub(super) fn context(&self) -> *mut c_void {
        self.context
    }

    pub(super) fn flags(&self) -> u64 {
        self.flags.unwrap_or(0)
    }

    pub(super) fn flags_mut(&mut self) -> &mut u64 {
        self.flags.get_or_insert(0)
    }
}

/// Sends one buffer.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub(super) unsafe fn send_one(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    it: SendArgs,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { find::<EpObject, _>(ep)? };
    let short = ShortSend {
        buffer: OneBuffer {
            addr: buf as u64,
            len,
            desc,
        },
        to: it.to,
        tag: it.tag,
        data: it.data,
        context: it.context,
        flags: it.flags.unwrap_or(object.flags.transmit()),
    };
    if object.inner.send_short(&short) {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { send(ep, &single(buf, len), Descriptors::One(desc), it) }
}

/// Sends a list of buffers.
///
/// # Safety
/// See [`crate::object`] for the rules of handles; `iov` has `count` buffers, and `desc` is null or has `count` descriptors.
pub(super) unsafe fn send_list(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    it: SendArgs,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { send(ep, list(iov, count)?, descriptors(desc, count)?, it) }
}

/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn send(ep: *mut FidEp, iov: &[iovec], desc: Descriptors<'_>, it: SendArgs) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { find::<EpObject, _>(ep)? };
    let ep = &object.inner;
    if it.flags() & FI_TRIGGER != 0 {
        let flags = Some(it.flags() & !FI_TRIGGER);
        let what = DeferredCall::Send(Buffers::copy(iov, desc), SendArgs { flags, ..it });
        // SAFETY: with this flag the context is a trigger, as the program promises.
        return unsafe { work::trigger(&ep.domain, it.context, Job::triggered(ep, what)?) };
    }
    ep.send(&it.message(iov, desc, object.flags.transmit()))
}

/// The arguments of a receive besides its buffers.
#[derive(Clone, Copy)]
pub(super) struct ReceiveArgs {
    from: u64,
    /// The tag and its ignore mask.
    tag: Option<(u64, u64)>,
    context: *mut c_void,
    /// `None`: the default flags of the endpoint or shared receive context.
    flags: Option<u64>,
}

impl ReceiveArgs {
    pub(super) fn new(from: u64, tag: Option<(u64, u64)>, context: *mut c_void) -> Self {
        Self {
            from,
            tag,
            context,
            flags: None,
        }
    }

    /// The arguments of a call with flags. Fails with `FI_EBADFLAGS` if a flag other than `known` and `FI_TRIGGER` is set.
    pub(super) fn with_flags(self, flags: u64, known: u64) -> Result<Self> {
        if flags & !(known | FI_TRIGGER) != 0 {
            return Err(FiError::BADFLAGS);
        }
        Ok(Self {
            flags: Some(flags),
            ..self
        })
    }

    /// The receive to post; `usual` are the flags if the call passed none.
    pub(super) fn wanted<'a>(
        &self,
        iov: &'a [iovec],
        desc: Descriptors<'a>,
        usual: u64,
    ) -> Wanted<'a> {
        Wanted {
            iov,
            desc,
            from: self.from,
            tag: self.tag,
            context: self.context,
            flags: self.flags_or(usual),
            deferred: None,
        }
    }

    /// The flags of the receive; `usual` are the flags if the call passed none.
    #[inline]
    fn flags_or(&self, usual: u64) -> u64 {
        // Only receives without tags may put several messages into one buffer.
        self.flags.unwrap_or(match self.tag {
            None => usual,
            Some(_) => usual & !FI_MULTI_RECV,
        })
    }

    pub(super) fn kind(&self) -> u64 {
        self.tag.map_or(FI_MSG, |_| FI_TAGGED)
    }

    pub(super) fn context(&self) -> *mut c_void {
        self.context
    }

    pub(super) fn flags(&self) -> u64 {
        self.flags.unwrap_or(0)
    }

    pub(super) fn flags_mut(&mut self) -> &mut u64 {
        self.flags.get_or_insert(0)
    }
}

/// Posts one buffer.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub(super) unsafe fn receive_one(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    it: ReceiveArgs,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    if let Ok(object) = unsafe { find::<EpObject, _>(ep) } {
        let short = ShortReceive {
            buffer: OneBuffer {
                addr: buf as u64,
                len,
                desc,
            },
            from: it.from,
            tag: it.tag,
            context: it.context,
            flags: it.flags_or(object.flags.receive()),
        };
        if object.inner.receive_short(&short) {
            return Ok(());
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { receive(ep, &single(buf, len), Descriptors::One(desc), it) }
}

/// Posts a list of buffers.
///
/// # Safety
/// See [`crate::object`] for the rules of handles; `iov` has `count` buffers, and `desc` is null or has `count` descriptors.
pub(super) unsafe fn receive_list(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    it: ReceiveArgs,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { receive(ep, list(iov, count)?, descriptors(desc, count)?, it) }
}

/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn receive(
    ep: *mut FidEp,
    iov: &[iovec],
    desc: Descriptors<'_>,
    it: ReceiveArgs,
) -> Result<()> {
    let triggered = it.flags() & FI_TRIGGER != 0;
    // SAFETY: guaranteed by the caller.
    if let Ok(object) = unsafe { find::<EpObject, _>(ep) } {
        let ep = &object.inner;
        if triggered {
            let flags = Some(it.flags() & !FI_TRIGGER);
            let what = DeferredCall::Receive(Buffers::copy(iov, desc), ReceiveArgs { flags, ..it });
            // SAFETY: with this flag the context is a trigger, as the program promises.
            return unsafe { work::trigger(&ep.domain, it.context, Job::triggered(ep, what)?) };
        }
        return ep.receive(&it.wanted(iov, desc, object.flags.receive()));
    }
    // SAFETY: guaranteed by the caller.
    let srx = &unsafe { find::<SrxObject, _>(ep)? }.inner;
    if triggered {
        return Err(FiError::BADFLAGS);
    }
    srx.receive(&it.wanted(iov, desc, srx.flags))
}

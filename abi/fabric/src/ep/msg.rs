//! `fi_msg`: messages without tags.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read lists of the program.

use super::object::EpObject;
use super::receive::Wanted;
use super::send::{Descriptors, Message, QUIET};
use crate::errno::{FiError, Result};
use crate::object::{find, input, list, transfer};
use crate::sys::*;
use libc::iovec;
use std::ffi::c_void;

pub(super) static OPS: OpsMsg = OpsMsg {
    size: size_of::<OpsMsg>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

const SEND_FLAGS: u64 = FI_REMOTE_CQ_DATA
    | FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_FENCE;
const RECV_FLAGS: u64 = FI_COMPLETION | FI_MORE | FI_MULTI_RECV;

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

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        let iov = &single(buf, len);
        let desc = Descriptors::One(desc);
        ep.send(&Message {
            iov,
            desc,
            to,
            tag: None,
            data: None,
            context,
            flags: ep.tx_flags,
        })
    })
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; lists as the caller promises.
        let (ep, iov, desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                list(iov, count)?,
                descriptors(desc, count)?,
            )
        };
        ep.send(&Message {
            iov,
            desc,
            to,
            tag: None,
            data: None,
            context,
            flags: ep.tx_flags,
        })
    })
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; a message and its lists as the caller promises.
        let (ep, msg) = unsafe { (&find::<EpObject, _>(ep)?.inner, input(msg)?) };
        if flags & !SEND_FLAGS != 0 {
            return Err(FiError::BADFLAGS);
        }
        // SAFETY: as above.
        let (iov, desc) = unsafe {
            (
                list(msg.msg_iov, msg.iov_count)?,
                descriptors(msg.desc, msg.iov_count)?,
            )
        };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let (to, context) = (msg.addr, msg.context);
        ep.send(&Message {
            iov,
            desc,
            to,
            tag: None,
            data,
            context,
            flags,
        })
    })
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        let (iov, desc) = (&single(buf, len), Descriptors::None);
        let (context, flags) = (std::ptr::null_mut(), FI_INJECT | QUIET);
        ep.send(&Message {
            iov,
            desc,
            to,
            tag: None,
            data: None,
            context,
            flags,
        })
    })
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        let (iov, desc, data) = (&single(buf, len), Descriptors::One(desc), Some(data));
        ep.send(&Message {
            iov,
            desc,
            to,
            tag: None,
            data,
            context,
            flags: ep.tx_flags,
        })
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        let (iov, desc, data) = (&single(buf, len), Descriptors::None, Some(data));
        let (context, flags) = (std::ptr::null_mut(), FI_INJECT | QUIET);
        ep.send(&Message {
            iov,
            desc,
            to,
            tag: None,
            data,
            context,
            flags,
        })
    })
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        let (iov, desc) = (&single(buf, len), Descriptors::One(desc));
        ep.receive(&Wanted {
            iov,
            desc,
            from,
            tag: None,
            context,
            flags: ep.rx_flags,
        })
    })
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; lists as the caller promises.
        let (ep, iov, desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                list(iov, count)?,
                descriptors(desc, count)?,
            )
        };
        ep.receive(&Wanted {
            iov,
            desc,
            from,
            tag: None,
            context,
            flags: ep.rx_flags,
        })
    })
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; a message and its lists as the caller promises.
        let (ep, msg) = unsafe { (&find::<EpObject, _>(ep)?.inner, input(msg)?) };
        if flags & !RECV_FLAGS != 0 {
            return Err(FiError::BADFLAGS);
        }
        // SAFETY: as above.
        let (iov, desc) = unsafe {
            (
                list(msg.msg_iov, msg.iov_count)?,
                descriptors(msg.desc, msg.iov_count)?,
            )
        };
        let (from, context) = (msg.addr, msg.context);
        ep.receive(&Wanted {
            iov,
            desc,
            from,
            tag: None,
            context,
            flags,
        })
    })
}

//! `fi_msg`: messages without tags.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read lists of the program.

use super::calls::{ReceiveArgs, SendArgs, receive_list, receive_one, send_list, send_one};
use crate::object::{input, transfer_status};
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

pub(super) const RECV_FLAGS: u64 = FI_COMPLETION | FI_MORE | FI_MULTI_RECV | FI_AUTH_KEY;

/// `fi_send`.
unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    let it = SendArgs::new(to, None, context);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { send_one(ep, buf, len, desc, it) })
}

/// `fi_sendv`.
unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    let it = SendArgs::new(to, None, context);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { send_list(ep, iov, desc, count, it) })
}

/// `fi_sendmsg`.
unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    transfer_status(|| {
        // SAFETY: the caller guarantees that the message is null or valid.
        let msg = unsafe { input(msg)? };
        let it = SendArgs::new(msg.addr, None, msg.context).with_flags(flags, msg.data)?;
        // SAFETY: the caller guarantees that the handle and the lists are valid.
        unsafe { send_list(ep, msg.msg_iov, msg.desc, msg.iov_count, it) }
    })
}

/// `fi_inject`.
unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64) -> isize {
    let it = SendArgs::inject(to, None);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { send_one(ep, buf, len, std::ptr::null_mut(), it) })
}

/// `fi_senddata`.
unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    let it = SendArgs::new(to, None, context).with_data(data);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { send_one(ep, buf, len, desc, it) })
}

/// `fi_injectdata`.
unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
) -> isize {
    let it = SendArgs::inject(to, None).with_data(data);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { send_one(ep, buf, len, std::ptr::null_mut(), it) })
}

/// `fi_recv`.
unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    let it = ReceiveArgs::new(from, None, context);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { receive_one(ep, buf, len, desc, it) })
}

/// `fi_recvv`.
unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    let it = ReceiveArgs::new(from, None, context);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { receive_list(ep, iov, desc, count, it) })
}

/// `fi_recvmsg`.
unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    transfer_status(|| {
        // SAFETY: the caller guarantees that the message is null or valid.
        let msg = unsafe { input(msg)? };
        let it = ReceiveArgs::new(msg.addr, None, msg.context).with_flags(flags, RECV_FLAGS)?;
        // SAFETY: the caller guarantees that the handle and the lists are valid.
        unsafe { receive_list(ep, msg.msg_iov, msg.desc, msg.iov_count, it) }
    })
}

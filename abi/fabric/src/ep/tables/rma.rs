//! The calls of `fi_rma`.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read lists of the program.

use super::calls::{descriptors, single};
use super::deferred::{Buffers, DeferredCall, Job};
use super::work;
use crate::ep::object::EpObject;
use crate::ep::rma::Transfer;
use crate::ep::send::{Descriptors, QUIET};
use crate::errno::{FiError, Result};
use crate::object::{find, input, list, transfer_status};
use crate::sys::*;
use libc::iovec;
use std::ffi::c_void;

/// The RMA calls of an endpoint.
pub(super) static OPS: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

const READ_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_FENCE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_INJECT_COMPLETE;
const WRITE_FLAGS: u64 = READ_FLAGS | FI_INJECT | FI_REMOTE_CQ_DATA | FI_COMMIT_COMPLETE;

/// The remote side of a transfer, and its other arguments.
struct RmaTarget {
    peer: u64,
    addr: u64,
    key: u64,
    data: Option<u64>,
    context: *mut c_void,
    /// `None`: the endpoint's default flags.
    flags: Option<u64>,
}

impl RmaTarget {
    fn new(peer: u64, addr: u64, key: u64, context: *mut c_void) -> Self {
        Self {
            peer,
            addr,
            key,
            data: None,
            context,
            flags: None,
        }
    }

    /// The arguments of an inject call, which returns when the bytes are copied.
    fn inject(peer: u64, addr: u64, key: u64) -> Self {
        Self {
            flags: Some(FI_INJECT | QUIET),
            ..Self::new(peer, addr, key, std::ptr::null_mut())
        }
    }

    fn with_data(self, data: u64) -> Self {
        Self {
            data: Some(data),
            ..self
        }
    }
}

/// Whether the peer's memory is read or written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn start(
    ep: *mut FidEp,
    direction: Direction,
    iov: &[iovec],
    desc: Descriptors<'_>,
    it: &RmaTarget,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { find::<EpObject, _>(ep)? };
    let ep = &object.inner;
    let len = iov
        .iter()
        .fold(0, |sum: usize, buffer| sum.saturating_add(buffer.iov_len));
    let remote = &[RmaIov {
        addr: it.addr,
        len,
        key: it.key,
    }];
    ep.transfer(
        &Transfer {
            iov,
            desc,
            peer: it.peer,
            remote,
            data: it.data,
            context: it.context,
            flags: it.flags.unwrap_or_else(|| object.flags.transmit()),
            deferred: None,
        },
        direction == Direction::Read,
    )
}

/// A transfer of one buffer.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn one(
    ep: *mut FidEp,
    direction: Direction,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    it: &RmaTarget,
) -> isize {
    // SAFETY: guaranteed by the caller.
    transfer_status(|| unsafe {
        start(ep, direction, &single(buf, len), Descriptors::One(desc), it)
    })
}

/// A transfer of a list of buffers.
///
/// # Safety
/// See [`crate::object`] for the rules of handles; `iov` has `count` buffers, and `desc` is null or has `count` descriptors.
unsafe fn several(
    ep: *mut FidEp,
    direction: Direction,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    it: &RmaTarget,
) -> isize {
    // SAFETY: guaranteed by the caller.
    transfer_status(|| unsafe {
        start(
            ep,
            direction,
            list(iov, count)?,
            descriptors(desc, count)?,
            it,
        )
    })
}

/// # Safety
/// The message and its lists must be valid as described in fi_rma(3).
unsafe fn message(
    ep: *mut FidEp,
    msg: *const MsgRma,
    flags: u64,
    direction: Direction,
) -> Result<()> {
    // SAFETY: `find` validates the handle; the caller guarantees the rest.
    let (ep, msg) = unsafe { (&find::<EpObject, _>(ep)?.inner, input(msg)?) };
    let reads = direction == Direction::Read;
    check_flags(flags & !FI_TRIGGER, reads)?;
    // SAFETY: as above.
    let (iov, desc, remote) = unsafe {
        (
            list(msg.msg_iov, msg.iov_count)?,
            descriptors(msg.desc, msg.iov_count)?,
            list(msg.rma_iov, msg.rma_iov_count)?,
        )
    };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    if flags & FI_TRIGGER != 0 {
        let what = DeferredCall::Rma {
            buffers: Buffers::copy(iov, desc),
            remote: remote.to_vec(),
            peer: msg.addr,
            data,
            context: msg.context,
            flags: flags & !FI_TRIGGER,
            reads,
        };
        // SAFETY: with this flag the context is a trigger, as the program promises.
        return unsafe { work::trigger(&ep.domain, msg.context, Job::triggered(ep, what)?) };
    }
    ep.transfer(
        &Transfer {
            iov,
            desc,
            peer: msg.addr,
            remote,
            data,
            context: msg.context,
            flags,
            deferred: None,
        },
        reads,
    )
}

/// Checks the flags of a transfer.
pub(super) fn check_flags(flags: u64, reads: bool) -> Result<u64> {
    let known = match reads {
        true => READ_FLAGS,
        false => WRITE_FLAGS,
    };
    match flags & !known {
        0 => Ok(flags),
        _ => Err(FiError::BADFLAGS),
    }
}

/// `fi_readmsg`.
unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { message(ep, msg, flags, Direction::Read) })
}

/// `fi_writemsg`.
unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { message(ep, msg, flags, Direction::Write) })
}

/// `fi_read`.
unsafe extern "C" fn read(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let it = RmaTarget::new(peer, addr, key, context);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { one(ep, Direction::Read, buf, len, desc, &it) }
}

/// `fi_readv`.
unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let it = RmaTarget::new(peer, addr, key, context);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { several(ep, Direction::Read, iov, desc, count, &it) }
}

/// `fi_write`.
unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let it = RmaTarget::new(peer, addr, key, context);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { one(ep, Direction::Write, buf, len, desc, &it) }
}

/// `fi_writev`.
unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let it = RmaTarget::new(peer, addr, key, context);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { several(ep, Direction::Write, iov, desc, count, &it) }
}

/// `fi_inject_write`.
unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    let it = RmaTarget::inject(peer, addr, key);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { one(ep, Direction::Write, buf, len, std::ptr::null_mut(), &it) }
}

/// `fi_writedata`.
unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let it = RmaTarget::new(peer, addr, key, context).with_data(data);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { one(ep, Direction::Write, buf, len, desc, &it) }
}

/// `fi_inject_writedata`.
unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    let it = RmaTarget::inject(peer, addr, key).with_data(data);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { one(ep, Direction::Write, buf, len, std::ptr::null_mut(), &it) }
}

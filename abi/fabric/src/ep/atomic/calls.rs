//! The calls of `fi_atomic`.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read lists of the program.

use super::super::msg::descriptors;
use super::super::object::EpObject;
use super::super::send::{Descriptors, QUIET};
use super::{Asked, Kind, elements_of, limits};
use crate::errno::{FiError, Result};
use crate::object::{find, input, list, output, status, transfer};
use crate::sys::*;
use std::ffi::{c_int, c_void};

/// The atomic calls of an endpoint.
pub(crate) static OPS: OpsAtomic = OpsAtomic {
    size: size_of::<OpsAtomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

const FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_FENCE
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE;

/// A request with nothing but its target.
fn ask(kind: Kind, peer: u64, addr: u64, key: u64, what: (c_int, c_int)) -> Asked<'static> {
    Asked {
        kind,
        operands: &[],
        desc: Descriptors::None,
        compare: &[],
        compare_desc: Descriptors::None,
        result: &[],
        result_desc: Descriptors::None,
        peer,
        addr,
        key,
        count: 0,
        datatype: what.0,
        op: what.1,
        context: std::ptr::null_mut(),
        flags: 0,
    }
}

fn one(addr: *const c_void, count: usize) -> [Ioc; 1] {
    [Ioc {
        addr: addr.cast_mut(),
        count,
    }]
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        ep.atomic(&Asked {
            operands: &one(buf, count),
            desc: Descriptors::One(desc),
            count,
            context,
            flags: ep.tx_flags,
            ..ask(Kind::Base, peer, addr, key, (datatype, op))
        })
    })
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const Ioc,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; lists as the caller promises.
        let (ep, operands, desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                list(iov, count)?,
                descriptors(desc, count)?,
            )
        };
        ep.atomic(&Asked {
            operands,
            desc,
            count: elements_of(operands),
            context,
            flags: ep.tx_flags,
            ..ask(Kind::Base, peer, addr, key, (datatype, op))
        })
    })
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        ep.atomic(&Asked {
            operands: &one(buf, count),
            count,
            flags: FI_INJECT | QUIET,
            ..ask(Kind::Base, peer, addr, key, (datatype, op))
        })
    })
}

unsafe extern "C" fn readwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        ep.atomic(&Asked {
            operands: &one(buf, count),
            desc: Descriptors::One(desc),
            result: &one(result, count),
            result_desc: Descriptors::One(result_desc),
            count,
            context,
            flags: ep.tx_flags,
            ..ask(Kind::Fetch, peer, addr, key, (datatype, op))
        })
    })
}

unsafe extern "C" fn readwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    desc: *mut *mut c_void,
    count: usize,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; lists as the caller promises.
        let (ep, operands, desc, result, result_desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                list(iov, count)?,
                descriptors(desc, count)?,
                list(resultv.cast_const(), result_count)?,
                descriptors(result_desc, result_count)?,
            )
        };
        ep.atomic(&Asked {
            operands,
            desc,
            result,
            result_desc,
            count: elements_of(result),
            context,
            flags: ep.tx_flags,
            ..ask(Kind::Fetch, peer, addr, key, (datatype, op))
        })
    })
}

unsafe extern "C" fn compwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    compare: *const c_void,
    compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        ep.atomic(&Asked {
            operands: &one(buf, count),
            desc: Descriptors::One(desc),
            compare: &one(compare, count),
            compare_desc: Descriptors::One(compare_desc),
            result: &one(result, count),
            result_desc: Descriptors::One(result_desc),
            count,
            context,
            flags: ep.tx_flags,
            ..ask(Kind::Compare, peer, addr, key, (datatype, op))
        })
    })
}

unsafe extern "C" fn compwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    desc: *mut *mut c_void,
    count: usize,
    comparev: *const Ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; lists as the caller promises.
        let (ep, operands, desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                list(iov, count)?,
                descriptors(desc, count)?,
            )
        };
        // SAFETY: as above.
        let (compare, compare_desc, result, result_desc) = unsafe {
            (
                list(comparev, compare_count)?,
                descriptors(compare_desc, compare_count)?,
                list(resultv.cast_const(), result_count)?,
                descriptors(result_desc, result_count)?,
            )
        };
        ep.atomic(&Asked {
            operands,
            desc,
            compare,
            compare_desc,
            result,
            result_desc,
            count: elements_of(result),
            context,
            flags: ep.tx_flags,
            ..ask(Kind::Compare, peer, addr, key, (datatype, op))
        })
    })
}

/// The part of a message call that all forms share.
///
/// # Safety
/// A message and its lists, as fi_atomic(3) asks for them.
unsafe fn of_message<'a>(kind: Kind, msg: *const MsgAtomic, flags: u64) -> Result<Asked<'a>> {
    if flags & !FLAGS != 0 {
        return Err(FiError::BADFLAGS);
    }
    // SAFETY: a message as the caller promises.
    let msg = unsafe { input::<MsgAtomic>(msg)? };
    // SAFETY: lists as the caller promises.
    let (operands, desc, remote) = unsafe {
        (
            list(msg.msg_iov, msg.iov_count)?,
            descriptors(msg.desc, msg.iov_count)?,
            list(msg.rma_iov, msg.rma_iov_count)?,
        )
    };
    // One place at the peer: more is not offered.
    let [place] = remote else {
        return Err(FiError::INVAL);
    };
    Ok(Asked {
        operands,
        desc,
        count: place.count,
        context: msg.context,
        flags,
        ..ask(
            kind,
            msg.addr,
            place.addr,
            place.key,
            (msg.datatype, msg.op),
        )
    })
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; a message as the caller promises.
        let (ep, asked) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                of_message(Kind::Base, msg, flags)?,
            )
        };
        ep.atomic(&asked)
    })
}

unsafe extern "C" fn readwritemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; a message and lists as the caller promises.
        let (ep, asked, result, result_desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                of_message(Kind::Fetch, msg, flags)?,
                list(resultv.cast_const(), result_count)?,
                descriptors(result_desc, result_count)?,
            )
        };
        ep.atomic(&Asked {
            result,
            result_desc,
            ..asked
        })
    })
}

unsafe extern "C" fn compwritemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    comparev: *const Ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; a message as the caller promises.
        let (ep, asked) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                of_message(Kind::Compare, msg, flags)?,
            )
        };
        // SAFETY: lists as the caller promises.
        let (compare, compare_desc, result, result_desc) = unsafe {
            (
                list(comparev, compare_count)?,
                descriptors(compare_desc, compare_count)?,
                list(resultv.cast_const(), result_count)?,
                descriptors(result_desc, result_count)?,
            )
        };
        ep.atomic(&Asked {
            compare,
            compare_desc,
            result,
            result_desc,
            ..asked
        })
    })
}

/// # Safety
/// A handle, or something that is refused; null or room for a number.
unsafe fn valid(
    ep: *mut FidEp,
    kind: Kind,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: as the caller promises.
        unsafe { find::<EpObject, _>(ep)? };
        let (most, _) = limits(kind, datatype, op)?;
        if count.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { output(count, most) }
    })
}

unsafe extern "C" fn writevalid(ep: *mut FidEp, ty: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: arguments as the caller promises.
    unsafe { valid(ep, Kind::Base, ty, op, count) }
}

unsafe extern "C" fn readwritevalid(
    ep: *mut FidEp,
    ty: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: arguments as the caller promises.
    unsafe { valid(ep, Kind::Fetch, ty, op, count) }
}

unsafe extern "C" fn compwritevalid(
    ep: *mut FidEp,
    ty: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: arguments as the caller promises.
    unsafe { valid(ep, Kind::Compare, ty, op, count) }
}

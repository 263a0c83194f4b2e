//! The calls of `fi_atomic`.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read lists of the program.

use super::calls::descriptors;
use super::deferred::{Buffers, DeferredCall, Job};
use super::work;
use crate::ep::atomic::{AtomicArgs, elements_of};
use crate::ep::datatype::limits;
use crate::ep::object::EpObject;
use crate::ep::send::{Descriptors, QUIET};
use crate::errno::{FiError, Result};
use crate::object::{find, input, list, status, store, transfer_status};
use crate::sys::*;
use rkey_rdm::atomic::Kind;
use std::ffi::{c_int, c_void};

/// The atomic calls of an endpoint.
pub(super) static OPS: OpsAtomic = OpsAtomic {
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

/// A list of elements, as the program passes it.
#[derive(Clone, Copy)]
struct List {
    buffers: *const Ioc,
    desc: *mut *mut c_void,
    count: usize,
}

impl List {
    const NONE: Self = Self {
        buffers: std::ptr::null(),
        desc: std::ptr::null_mut(),
        count: 0,
    };

    fn new(buffers: *const Ioc, desc: *mut *mut c_void, count: usize) -> Self {
        Self {
            buffers,
            desc,
            count,
        }
    }

    /// # Safety
    /// The list has `count` buffers, and its descriptors are null or as many.
    unsafe fn read<'a>(self) -> Result<(&'a [Ioc], Descriptors<'a>)> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            Ok((
                list(self.buffers, self.count)?,
                descriptors(self.desc, self.count)?,
            ))
        }
    }
}

impl List {
    /// # Safety
    /// The list has `count` buffers, and its descriptors are null or as many.
    unsafe fn copy(self) -> Result<Buffers<Ioc>> {
        // SAFETY: guaranteed by the caller.
        let (buffers, desc) = unsafe { self.read()? };
        Ok(Buffers::copy(buffers, desc))
    }
}

/// The lists of a call: the operands, and the other lists of its form.
#[derive(Clone, Copy)]
struct Lists {
    operands: List,
    compare: List,
    result: List,
}

/// The operation and its target.
struct AtomicTarget {
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
}

/// Starts an atomic. The default count is the length of the lists; the default flags are the endpoint's.
///
/// # Safety
/// See [`crate::object`] for the rules of handles; the lists have the lengths that they state.
unsafe fn start(
    ep: *mut FidEp,
    kind: Kind,
    lists: Lists,
    count: Option<usize>,
    it: &AtomicTarget,
    flags: Option<u64>,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let (object, operands, compare, result) = unsafe {
        (
            find::<EpObject, _>(ep)?,
            lists.operands.read()?,
            lists.compare.read()?,
            lists.result.read()?,
        )
    };
    let counted = match kind {
        Kind::Base => operands.0,
        Kind::Fetch | Kind::Compare => result.0,
    };
    object.inner.atomic(&AtomicArgs {
        kind,
        operands: operands.0,
        desc: operands.1,
        compare: compare.0,
        compare_desc: compare.1,
        result: result.0,
        result_desc: result.1,
        peer: it.peer,
        addr: it.addr,
        key: it.key,
        count: count.unwrap_or_else(|| elements_of(counted)),
        datatype: it.datatype,
        op: it.op,
        context: it.context,
        flags: flags.unwrap_or_else(|| object.flags.transmit()),
        deferred: None,
    })
}

fn one(addr: *const c_void, count: usize) -> Ioc {
    Ioc {
        addr: addr.cast_mut(),
        count,
    }
}

/// `fi_atomic`.
unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    mut desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (buf, desc) = (&one(buf, count), &raw mut desc);
    // SAFETY: one buffer is a list of one; the caller guarantees the rest.
    unsafe { writev(ep, buf, desc, 1, peer, addr, key, datatype, op, context) }
}

/// `fi_atomicv`.
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
    let lists = Lists {
        operands: List::new(iov, desc, count),
        compare: List::NONE,
        result: List::NONE,
    };
    let it = AtomicTarget {
        peer,
        addr,
        key,
        datatype,
        op,
        context,
    };
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { start(ep, Kind::Base, lists, None, &it, None) })
}

/// `fi_inject_atomic`.
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
    let buffer = one(buf, count);
    let lists = Lists {
        operands: List::new(&buffer, std::ptr::null_mut(), 1),
        compare: List::NONE,
        result: List::NONE,
    };
    let it = AtomicTarget {
        peer,
        addr,
        key,
        datatype,
        op,
        context: std::ptr::null_mut(),
    };
    let flags = Some(FI_INJECT | QUIET);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { start(ep, Kind::Base, lists, None, &it, flags) })
}

/// `fi_fetch_atomic`.
unsafe extern "C" fn readwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    mut desc: *mut c_void,
    result: *mut c_void,
    mut result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (buf, mut result) = (one(buf, count), one(result, count));
    let (desc, result_desc) = (&raw mut desc, &raw mut result_desc);
    // SAFETY: one buffer is a list of one; the caller guarantees the rest.
    unsafe {
        readwritev(
            ep,
            &buf,
            desc,
            1,
            &mut result,
            result_desc,
            1,
            peer,
            addr,
            key,
            datatype,
            op,
            context,
        )
    }
}

/// `fi_fetch_atomicv`.
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
    let lists = Lists {
        operands: List::new(iov, desc, count),
        compare: List::NONE,
        result: List::new(resultv, result_desc, result_count),
    };
    let it = AtomicTarget {
        peer,
        addr,
        key,
        datatype,
        op,
        context,
    };
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { start(ep, Kind::Fetch, lists, None, &it, None) })
}

/// `fi_compare_atomic`.
unsafe extern "C" fn compwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    mut desc: *mut c_void,
    compare: *const c_void,
    mut compare_desc: *mut c_void,
    result: *mut c_void,
    mut result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (buf, compare) = (one(buf, count), one(compare, count));
    let mut result = one(result, count);
    let (desc, compare_desc) = (&raw mut desc, &raw mut compare_desc);
    // SAFETY: one buffer is a list of one; the caller guarantees the rest.
    unsafe {
        compwritev(
            ep,
            &buf,
            desc,
            1,
            &compare,
            compare_desc,
            1,
            &mut result,
            &raw mut result_desc,
            1,
            peer,
            addr,
            key,
            datatype,
            op,
            context,
        )
    }
}

/// `fi_compare_atomicv`.
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
    let lists = Lists {
        operands: List::new(iov, desc, count),
        compare: List::new(comparev, compare_desc, compare_count),
        result: List::new(resultv, result_desc, result_count),
    };
    let it = AtomicTarget {
        peer,
        addr,
        key,
        datatype,
        op,
        context,
    };
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { start(ep, Kind::Compare, lists, None, &it, None) })
}

/// The calls with a message.
///
/// # Safety
/// See [`crate::object`] for the rules of handles; the message and the lists are valid as described in fi_atomic(3).
unsafe fn message(
    ep: *mut FidEp,
    kind: Kind,
    msg: *const MsgAtomic,
    compare: List,
    result: List,
    flags: u64,
) -> Result<()> {
    // SAFETY: the caller guarantees that the message is valid.
    let msg = unsafe { input::<MsgAtomic>(msg)? };
    // SAFETY: the caller guarantees its list.
    let args = unsafe { of_message(kind, msg, flags & !FI_TRIGGER)? };
    let lists = Lists {
        operands: List::new(msg.msg_iov, msg.desc, msg.iov_count),
        compare,
        result,
    };
    if flags & FI_TRIGGER != 0 {
        // SAFETY: `find` validates the handle; lists as they say; with this flag the context is a
        // trigger, as the program promises.
        return unsafe {
            let ep = &find::<EpObject, _>(ep)?.inner;
            let what = DeferredCall::Atomic {
                operands: lists.operands.copy()?,
                compare: lists.compare.copy()?,
                result: lists.result.copy()?,
                args: Box::new(args),
            };
            work::trigger(&ep.domain, msg.context, Job::triggered(ep, what)?)
        };
    }
    let it = AtomicTarget {
        peer: args.peer,
        addr: args.addr,
        key: args.key,
        datatype: args.datatype,
        op: args.op,
        context: args.context,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { start(ep, kind, lists, Some(args.count), &it, Some(flags)) }
}

/// The arguments in a message, without its lists.
///
/// # Safety
/// The remote list has the length that the message states.
pub(super) unsafe fn of_message(
    kind: Kind,
    msg: &MsgAtomic,
    flags: u64,
) -> Result<AtomicArgs<'static>> {
    if flags & !FLAGS != 0 {
        return Err(FiError::BADFLAGS);
    }
    // SAFETY: guaranteed by the caller.
    let remote = unsafe { list(msg.rma_iov, msg.rma_iov_count)? };
    // There is one remote range: the provider offers no more.
    let [place] = remote else {
        return Err(FiError::INVAL);
    };
    Ok(AtomicArgs {
        kind,
        operands: &[],
        desc: Descriptors::None,
        compare: &[],
        compare_desc: Descriptors::None,
        result: &[],
        result_desc: Descriptors::None,
        peer: msg.addr,
        addr: place.addr,
        key: place.key,
        count: place.count,
        datatype: msg.datatype,
        op: msg.op,
        context: msg.context,
        flags,
        deferred: None,
    })
}

/// `fi_atomicmsg`.
unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { message(ep, Kind::Base, msg, List::NONE, List::NONE, flags) })
}

/// `fi_fetch_atomicmsg`.
unsafe extern "C" fn readwritemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = List::new(resultv, result_desc, result_count);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { message(ep, Kind::Fetch, msg, List::NONE, result, flags) })
}

/// `fi_compare_atomicmsg`.
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
    let compare = List::new(comparev, compare_desc, compare_count);
    let result = List::new(resultv, result_desc, result_count);
    // SAFETY: the caller guarantees valid arguments.
    transfer_status(|| unsafe { message(ep, Kind::Compare, msg, compare, result, flags) })
}

/// # Safety
/// See [`crate::object`] for the rules of handles; `count` is null or has room for a number.
unsafe fn valid(
    ep: *mut FidEp,
    kind: Kind,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { find::<EpObject, _>(ep)? };
        let (most, _) = limits(kind, datatype, op)?;
        if count.is_null() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { store(count, most) }
    })
}

/// `fi_atomicvalid`.
unsafe extern "C" fn writevalid(ep: *mut FidEp, ty: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { valid(ep, Kind::Base, ty, op, count) }
}

/// `fi_fetch_atomicvalid`.
unsafe extern "C" fn readwritevalid(
    ep: *mut FidEp,
    ty: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { valid(ep, Kind::Fetch, ty, op, count) }
}

/// `fi_compare_atomicvalid`.
unsafe extern "C" fn compwritevalid(
    ep: *mut FidEp,
    ty: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { valid(ep, Kind::Compare, ty, op, count) }
}

//! The calls of `fi_collective`.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read lists of the program.

use super::calls::descriptors;
use crate::domain::DomainObject;
use crate::ep::collective::{CollectiveArgs, Memory, element_size};
use crate::ep::object::EpObject;
use crate::errno::FiError;
use crate::object::{find, input, list, status, transfer_status};
use crate::sys::*;
use rkey_rdm::collective::kind::Kind;
use rkey_rdm::collective::{BYTES_MAX, MEMBERS_MAX};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The collective calls of an endpoint.
pub(super) static OPS: OpsCollective = OpsCollective {
    size: size_of::<OpsCollective>(),
    barrier,
    broadcast,
    alltoall,
    allreduce,
    allgather,
    reduce_scatter,
    reduce,
    scatter,
    gather,
    msg,
    barrier2,
};

/// The arguments of a call besides its buffers.
struct Words {
    group: u64,
    root: u64,
    datatype: c_int,
    op: c_int,
    flags: Option<u64>,
    context: *mut c_void,
}

impl Words {
    fn new(group: u64, datatype: c_int, flags: u64, context: *mut c_void) -> Self {
        Self {
            group,
            root: FI_ADDR_NOTAVAIL,
            datatype,
            op: FI_NOOP,
            flags: Some(flags),
            context,
        }
    }

    fn with_root(self, root: u64) -> Self {
        Self { root, ..self }
    }

    fn with_op(self, op: c_int) -> Self {
        Self { op, ..self }
    }

    fn args<'a>(
        &self,
        kind: Kind,
        source: Memory<'a>,
        result: Memory<'a>,
        count: Option<usize>,
    ) -> CollectiveArgs<'a> {
        CollectiveArgs {
            kind,
            source,
            result,
            count,
            group: self.group,
            root: self.root,
            datatype: self.datatype,
            op: self.op,
            context: self.context,
            flags: self.flags,
        }
    }
}

/// A buffer and its descriptor.
type Buffer = (*mut c_void, *mut c_void);

/// Starts an operation with one buffer on each side.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn start(
    ep: *mut FidEp,
    kind: Kind,
    source: Buffer,
    result: Buffer,
    count: usize,
    words: &Words,
) -> isize {
    transfer_status(|| {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { find::<EpObject, _>(ep)? };
        let (source, result) = (
            Memory::One(source.0, source.1),
            Memory::One(result.0, result.1),
        );
        let args = words.args(kind, source, result, Some(count));
        let flags = args.flags.or_else(|| Some(object.flags.transmit()));
        object.inner.collective(&CollectiveArgs { flags, ..args })
    })
}

/// `fi_barrier`.
unsafe extern "C" fn barrier(ep: *mut FidEp, group: u64, context: *mut c_void) -> isize {
    let words = Words {
        flags: None,
        ..Words::new(group, FI_VOID, 0, context)
    };
    let none = (null_mut(), null_mut());
    // SAFETY: the caller guarantees valid arguments.
    unsafe { start(ep, Kind::Barrier, none, none, 0, &words) }
}

/// `fi_barrier2`.
unsafe extern "C" fn barrier2(
    ep: *mut FidEp,
    group: u64,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let words = Words::new(group, FI_VOID, flags, context);
    let none = (null_mut(), null_mut());
    // SAFETY: the caller guarantees valid arguments.
    unsafe { start(ep, Kind::Barrier, none, none, 0, &words) }
}

/// `fi_broadcast`.
unsafe extern "C" fn broadcast(
    ep: *mut FidEp,
    buf: *mut c_void,
    count: usize,
    desc: *mut c_void,
    group: u64,
    root: u64,
    datatype: c_int,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let words = Words::new(group, datatype, flags, context).with_root(root);
    let buffer = (buf, desc);
    // SAFETY: the caller guarantees valid arguments.
    unsafe { start(ep, Kind::Broadcast, buffer, buffer, count, &words) }
}

/// Calls with a source and a result. Calls of the same form differ only in their names.
macro_rules! two_buffers {
    ($($(#[$call:meta])* $name:ident: $kind:ident ($($root:ident)?) ($($op:ident)?);)*) => {$(
        $(#[$call])*
        unsafe extern "C" fn $name(
            ep: *mut FidEp,
            buf: *const c_void,
            count: usize,
            desc: *mut c_void,
            result: *mut c_void,
            result_desc: *mut c_void,
            group: u64,
            $($root: u64,)?
            datatype: c_int,
            $($op: c_int,)?
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            let words = Words::new(group, datatype, flags, context);
            $(let words = words.with_root($root);)?
            $(let words = words.with_op($op);)?
            let (source, result) = ((buf.cast_mut(), desc), (result, result_desc));
            // SAFETY: the caller guarantees valid arguments.
            unsafe { start(ep, Kind::$kind, source, result, count, &words) }
        }
    )*};
}
two_buffers! {
    /// `fi_alltoall`.
    alltoall: AllToAll () ();
    /// `fi_allreduce`.
    allreduce: AllReduce () (op);
    /// `fi_allgather`.
    allgather: AllGather () ();
    /// `fi_reduce_scatter`.
    reduce_scatter: ReduceScatter () (op);
    /// `fi_reduce`.
    reduce: Reduce (root) (op);
    /// `fi_scatter`.
    scatter: Scatter (root) ();
    /// `fi_gather`.
    gather: Gather (root) ();
}

/// `fi_ops_collective.msg`: a collective operation as a message, which no inline function calls.
unsafe extern "C" fn msg(
    ep: *mut FidEp,
    msg: *const MsgCollective,
    resultv: *mut Ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    transfer_status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees that the message is null or valid.
        let (ep, msg) = unsafe { (&find::<EpObject, _>(ep)?.inner, input(msg)?) };
        let kind = Kind::of(msg.coll).ok_or(FiError::OPNOTSUPP)?;
        // SAFETY: lists of these lengths, as the caller guarantees.
        let (source, result) = unsafe {
            (
                Memory::List(
                    list(msg.msg_iov, msg.iov_count)?,
                    descriptors(msg.desc, msg.iov_count)?,
                ),
                Memory::List(
                    list(resultv.cast_const(), result_count)?,
                    descriptors(result_desc, result_count)?,
                ),
            )
        };
        let words = Words::new(msg.coll_addr, msg.datatype, flags, msg.context);
        let words = words.with_root(msg.root_addr).with_op(msg.op);
        // A broadcast has one buffer on every member.
        let result = if kind == Kind::Broadcast {
            source
        } else {
            result
        };
        ep.collective(&words.args(kind, source, result, None))
    })
}

/// `fi_query_collective`.
///
/// # Safety
/// The arguments must be valid as described in fi_collective(3).
pub(crate) unsafe extern "C" fn query(
    domain: *mut FidDomain,
    coll: c_int,
    attr: *mut CollectiveAttr,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees valid attributes.
        let attr = unsafe {
            find::<DomainObject, _>(domain)?;
            input(attr.cast_const())?;
            &mut *attr
        };
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        if attr.mode != 0 {
            return Err(FiError::INVAL);
        }
        let kind = Kind::of(coll).ok_or(FiError::OPNOTSUPP)?;
        let size = element_size(kind, attr.datatype, attr.op)?;
        attr.datatype_attr = AtomicAttr {
            count: BYTES_MAX.checked_div(size).unwrap_or(0),
            size,
        };
        attr.max_members = MEMBERS_MAX;
        Ok(())
    })
}

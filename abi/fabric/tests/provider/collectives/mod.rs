//! Collective operations: several sides of one process as members of groups.

mod data;
mod ends;
mod rules;
mod sets;
mod strangers;

use crate::addresses::own_name;
use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

/// Hints of members of groups.
pub(crate) fn wish() -> Wish {
    Wish {
        caps: FI_MSG | FI_TAGGED | FI_COLLECTIVE,
        ..Wish::default()
    }
}

/// Opens a side whose endpoint has an event queue.
pub(crate) fn open(wish: &Wish) -> Side {
    open_with(wish, |_, _| {})
}

/// Like [`open`]; `more` binds further objects before the endpoint is enabled.
pub(crate) fn open_with(wish: &Wish, more: impl FnOnce(*mut FidDomain, *mut FidEp)) -> Side {
    let info = wish.info();
    let mut side = Side::waiting(open_domain(wish.version, info), info);
    side.eq = event_queue(side.fabric);
    assert_eq!(bind(side.ep.cast(), side.av.cast(), 0), 0);
    assert_eq!(bind(side.ep.cast(), side.eq.cast(), 0), 0);
    let mut name = unshared_name();
    let (at, len) = (name.as_mut_ptr().cast(), name.len());
    // SAFETY: a live handle, and a name of this length.
    let code = unsafe { ((*(*side.ep).cm).setname)(side.ep.cast(), at, len) };
    assert_eq!(code, 0);
    more(side.domain, side.ep);
    assert_eq!(side.enable(), 0);
    side
}

/// A name that no other endpoint gets, not even after this one is closed: the address of a member that is gone must stay
/// unused.
fn unshared_name() -> Vec<u8> {
    static PORT: AtomicU16 = AtomicU16::new(10_000);
    own_name(PORT.fetch_add(1, Ordering::Relaxed))
}

/// Members, each with all names in its address vector in the same order.
pub(crate) struct Team {
    pub(crate) sides: Vec<Side>,
}

impl Team {
    pub(crate) fn open(n: usize, wish: &Wish) -> Self {
        let sides: Vec<_> = (0..n).map(|_| open(wish)).collect();
        for side in &sides {
            for (number, other) in sides.iter().enumerate() {
                assert_eq!(side.peer(other), number as u64);
            }
        }
        Self { sides }
    }

    /// All members make progress.
    pub(crate) fn progress(&self) {
        for side in &self.sides {
            // A read of zero entries makes progress and takes nothing.
            // SAFETY: the handle is live.
            unsafe { ((*(*side.cq).ops).read)(side.cq, null_mut(), 0) };
        }
    }

    /// Joins these members to a group and returns their handles of it.
    pub(crate) fn join(&self, members: &[usize]) -> Vec<Mc> {
        let started: Vec<Mc> = members.iter().map(|&at| self.start(at, members)).collect();
        for (mc, &at) in started.iter().zip(members) {
            let (event, entry) = self.event(at).unwrap();
            assert_eq!((event, entry.fid), (FI_JOIN_COMPLETE, mc.0.cast()));
            assert_eq!(entry.context as usize, 100 + at);
        }
        started
    }

    pub(crate) fn join_all(&self) -> Vec<Mc> {
        self.join(&(0..self.sides.len()).collect::<Vec<_>>())
    }

    /// One member begins to join.
    pub(crate) fn start(&self, at: usize, members: &[usize]) -> Mc {
        let side = &self.sides[at];
        let set = Set::of(side, members);
        join(side.ep, &set, set.address(), 100 + at).unwrap()
    }

    /// The next event of a member.
    pub(crate) fn event(&self, at: usize) -> Result<(u32, EqEntry), EqErrEntry> {
        let started = Instant::now();
        loop {
            if let Some(event) = event(self.sides[at].eq) {
                return event;
            }
            assert!(started.elapsed() < PATIENCE, "no event came");
            self.progress();
            std::thread::yield_now();
        }
    }

    /// The next completion of a member, which must be that of a collective operation.
    pub(crate) fn done(&self, at: usize) -> Result<usize, c_int> {
        let peers: Vec<&Side> = self.sides.iter().collect();
        match self.sides[at].completion(&peers) {
            Ok(entry) => {
                assert_eq!(entry.flags & FI_COLLECTIVE, FI_COLLECTIVE);
                Ok(entry.op_context as usize)
            }
            Err(error) => {
                assert_eq!(error.flags & FI_COLLECTIVE, FI_COLLECTIVE);
                Err(error.err)
            }
        }
    }

    /// Checks that every member's operation completes without an error.
    pub(crate) fn all_done(&self) {
        for at in 0..self.sides.len() {
            assert_eq!(self.done(at), Ok(7));
        }
    }

    /// Closes everything.
    pub(crate) fn close(self) {
        for side in &self.sides {
            assert_eq!(close(side.ep.cast()), 0);
        }
        for side in self.sides {
            let eq = side.eq;
            let fabric = side.fabric;
            let rest: [*mut Fid; 3] = [side.cq.cast(), side.av.cast(), side.domain.cast()];
            assert_eq!(rest.map(close), [0; 3]);
            assert_eq!((close(eq.cast()), close(fabric.cast())), (0, 0));
        }
    }
}

/// The next event of a queue, if there is one.
fn event(eq: *mut FidEq) -> Option<Result<(u32, EqEntry), EqErrEntry>> {
    // SAFETY: the handle is live, and the buffer is our own.
    unsafe {
        let ops = &*(*eq).ops;
        let (mut number, mut entry): (u32, EqEntry) = std::mem::zeroed();
        match (ops.read)(eq, &mut number, (&raw mut entry).cast(), 24, 0) {
            24 => Some(Ok((number, entry))),
            -259 => {
                let mut error: EqErrEntry = std::mem::zeroed();
                assert_eq!((ops.readerr)(eq, &mut error, 0), 48);
                Some(Err(error))
            }
            code => {
                assert_eq!(code, -(libc::EAGAIN as isize));
                None
            }
        }
    }
}

/// `fi_join_collective`.
pub(crate) fn join(ep: *mut FidEp, set: &Set, address: u64, context: usize) -> Result<Mc, c_int> {
    let mut mc = null_mut();
    let addr = CollectiveAddr {
        set: set.0,
        coll_addr: address,
    };
    // SAFETY: live handles, and room for one.
    let code = unsafe {
        let join = (*(*ep).cm).join;
        let context = context as *mut c_void;
        join(
            ep,
            (&raw const addr).cast(),
            FI_COLLECTIVE,
            &mut mc,
            context,
        )
    };
    if code == 0 { Ok(Mc(mc)) } else { Err(code) }
}

/// A member's handle of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mc(pub(crate) *mut FidMc);

impl Mc {
    pub(crate) fn address(&self) -> u64 {
        // SAFETY: the handle is live.
        unsafe { (*self.0).fi_addr }
    }

    pub(crate) fn close(self) {
        assert_eq!(close(self.0.cast()), 0);
    }
}

/// An address vector set.
pub(crate) struct Set(pub(crate) *mut FidAvSet);

/// Attributes of a set without members.
pub(crate) fn empty() -> AvSetAttr {
    AvSetAttr {
        count: 0,
        start_addr: FI_ADDR_NOTAVAIL,
        end_addr: FI_ADDR_NOTAVAIL,
        stride: 0,
        comm_key_size: 0,
        comm_key: null_mut(),
        flags: 0,
    }
}

impl Set {
    pub(crate) fn new(side: &Side, mut attr: AvSetAttr) -> Result<Self, c_int> {
        let mut set = null_mut();
        // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
        let code = unsafe { ((*(*side.av).ops).av_set)(side.av, &mut attr, &mut set, null_mut()) };
        if code == 0 { Ok(Self(set)) } else { Err(code) }
    }

    pub(crate) fn of(side: &Side, members: &[usize]) -> Self {
        let set = Self::new(side, empty()).unwrap();
        for &member in members {
            assert_eq!(set.insert(member as u64), 0);
        }
        set
    }

    fn ops(&self) -> &OpsAvSet {
        // SAFETY: the handle is live.
        unsafe { &*(*self.0).ops }
    }

    pub(crate) fn insert(&self, number: u64) -> c_int {
        // SAFETY: the handle is live.
        unsafe { (self.ops().insert)(self.0, number) }
    }

    pub(crate) fn address(&self) -> u64 {
        let mut address = 0;
        // SAFETY: the handle is live, and the buffer is our own.
        assert_eq!(unsafe { (self.ops().addr)(self.0, &mut address) }, 0);
        address
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        assert_eq!(close(self.0.cast()), 0);
    }
}

/// The context of all operations.
const CONTEXT: *mut c_void = 7 as *mut c_void;

/// Buffers of a call: the source and the result, and their descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) source: *mut u8,
    pub(crate) desc: *mut c_void,
    pub(crate) result: *mut u8,
    pub(crate) result_desc: *mut c_void,
    pub(crate) count: usize,
}

impl Buffers {
    /// `count` elements of memory that stays until the operation is complete.
    pub(crate) fn new<T>(source: &mut [T], result: &mut [T], count: usize) -> Self {
        Self {
            source: source.as_mut_ptr().cast(),
            desc: null_mut(),
            result: result.as_mut_ptr().cast(),
            result_desc: null_mut(),
            count,
        }
    }
}

/// Calls the collective operation with this number. A broadcast uses the source at its root and the result elsewhere.
pub(crate) fn call(
    side: &Side,
    mc: &Mc,
    coll: c_int,
    it: Buffers,
    root: Option<u64>,
    (datatype, op): (c_int, c_int),
) -> c_int {
    let (ep, group, to) = (side.ep, mc.address(), root.unwrap_or(FI_ADDR_NOTAVAIL));
    let (source, result) = (it.source.cast::<c_void>(), it.result.cast::<c_void>());
    let (desc, count, there) = (it.desc, it.count, it.result_desc);
    // SAFETY: the handles are live; the buffers stay valid until the operation is complete.
    let code = again(|| unsafe {
        let ops = &*(*ep).collective;
        match coll {
            FI_BARRIER => (ops.barrier)(ep, group, CONTEXT),
            FI_BROADCAST => {
                (ops.broadcast)(ep, source, count, desc, group, to, datatype, 0, CONTEXT)
            }
            FI_ALLTOALL => (ops.alltoall)(
                ep, source, count, desc, result, there, group, datatype, 0, CONTEXT,
            ),
            FI_ALLREDUCE => (ops.allreduce)(
                ep, source, count, desc, result, there, group, datatype, op, 0, CONTEXT,
            ),
            FI_ALLGATHER => (ops.allgather)(
                ep, source, count, desc, result, there, group, datatype, 0, CONTEXT,
            ),
            FI_REDUCE_SCATTER => (ops.reduce_scatter)(
                ep, source, count, desc, result, there, group, datatype, op, 0, CONTEXT,
            ),
            FI_REDUCE => (ops.reduce)(
                ep, source, count, desc, result, there, group, to, datatype, op, 0, CONTEXT,
            ),
            FI_SCATTER => (ops.scatter)(
                ep, source, count, desc, result, there, group, to, datatype, 0, CONTEXT,
            ),
            _ => (ops.gather)(
                ep, source, count, desc, result, there, group, to, datatype, 0, CONTEXT,
            ),
        }
    });
    code as c_int
}

/// A barrier.
pub(crate) fn barrier(side: &Side, mc: &Mc) -> c_int {
    let none = Buffers::new::<u8>(&mut [], &mut [], 0);
    call(side, mc, FI_BARRIER, none, None, (FI_VOID, FI_NOOP))
}

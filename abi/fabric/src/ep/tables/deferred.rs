//! Operations of an endpoint that are started later. The program's lists are copied, because the program may reuse them when the
//! call returns.

#![allow(unsafe_code)]
// UNSAFETY: reads the program's structures.

use super::atomic::of_message;
use super::calls::{ReceiveArgs, SendArgs, descriptors};
use super::{msg, rma};
use crate::cq::Entry;
use crate::ep::atomic::AtomicArgs;
use crate::ep::object::EpObject;
use crate::ep::receive::Wanted;
use crate::ep::report::Deferred;
use crate::ep::rma::Transfer;
use crate::ep::send::{Descriptors, Message, QUEUED, QUIET};
use crate::ep::*;
use crate::object::{find, input, list};
use crate::work::Action;
use libc::iovec;
use rkey_rdm::atomic::Kind;
use std::ffi::c_void;

/// The program's buffers and their descriptors.
pub(super) struct Buffers<T> {
    list: Vec<T>,
    /// One for each buffer, or none.
    desc: Vec<*mut c_void>,
}

impl<T: Copy> Buffers<T> {
    pub(super) fn copy(list: &[T], desc: Descriptors<'_>) -> Self {
        let desc = match desc {
            Descriptors::None => Vec::new(),
            _ => (0..list.len()).map(|index| desc.get(index)).collect(),
        };
        Self {
            list: list.to_vec(),
            desc,
        }
    }

    /// # Safety
    /// `start` has `count` buffers, and `desc` is null or has `count` descriptors.
    unsafe fn read(start: *const T, desc: *mut *mut c_void, count: usize) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        unsafe { Ok(Self::copy(list(start, count)?, descriptors(desc, count)?)) }
    }

    fn desc(&self) -> Descriptors<'_> {
        match self.desc.as_slice() {
            [] => Descriptors::None,
            desc => Descriptors::Many(desc),
        }
    }
}

/// An operation and all its arguments.
pub(super) enum DeferredCall {
    Send(Buffers<iovec>, SendArgs),
    Receive(Buffers<iovec>, ReceiveArgs),
    Rma {
        buffers: Buffers<iovec>,
        remote: Vec<RmaIov>,
        peer: u64,
        data: Option<u64>,
        context: *mut c_void,
        flags: u64,
        reads: bool,
    },
    Atomic {
        operands: Buffers<Ioc>,
        compare: Buffers<Ioc>,
        result: Buffers<Ioc>,
        /// The arguments without the lists.
        args: Box<AtomicArgs<'static>>,
    },
}

/// An operation that is started later.
pub(super) struct Job {
    ep: Arc<Endpoint>,
    what: DeferredCall,
    deferred: Option<Deferred>,
}

// SAFETY: the program's addresses in it are only numbers here; their memory is accessed as by the same operation
// started at once, from any thread.
unsafe impl Send for Job {}
// SAFETY: as above; the operation never changes.
unsafe impl Sync for Job {}

impl Job {
    /// An operation with `FI_TRIGGER`.
    pub(super) fn triggered(ep: &Arc<Endpoint>, mut what: DeferredCall) -> Result<Self> {
        ep.check_caps(FI_TRIGGER)?;
        ep.live()?;
        *what.flags_mut() |= QUEUED;
        Ok(Self {
            ep: Arc::clone(ep),
            what,
            deferred: None,
        })
    }

    /// An operation of the deferred work queue.
    ///
    /// # Safety
    /// `work.op` points to the structure of the operation, which is valid with everything that it points to.
    pub(super) unsafe fn of_work(
        domain: &Arc<Domain>,
        work: &DeferredWork,
        counter: Option<Arc<Counter>>,
    ) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let (ep, what) = unsafe {
            match work.op_type {
                FI_OP_SEND | FI_OP_RECV => {
                    let DeferredMsg { ep, msg, flags } = *input(work.op.cast::<DeferredMsg>())?;
                    let buffers = Buffers::read(msg.msg_iov, msg.desc, msg.iov_count)?;
                    let (peer, context) = (msg.addr, msg.context);
                    let what = if work.op_type == FI_OP_SEND {
                        let it = SendArgs::new(peer, None, context);
                        DeferredCall::Send(buffers, it.with_flags(flags, msg.data)?)
                    } else {
                        let it = ReceiveArgs::new(peer, None, context);
                        DeferredCall::Receive(buffers, it.with_flags(flags, msg::RECV_FLAGS)?)
                    };
                    (ep, what)
                }
                FI_OP_TSEND | FI_OP_TRECV => {
                    let DeferredTagged { ep, msg, flags } =
                        *input(work.op.cast::<DeferredTagged>())?;
                    let buffers = Buffers::read(msg.msg_iov, msg.desc, msg.iov_count)?;
                    let (peer, context) = (msg.addr, msg.context);
                    let what = if work.op_type == FI_OP_TSEND {
                        let it = SendArgs::new(peer, Some(msg.tag), context);
                        DeferredCall::Send(buffers, it.with_flags(flags, msg.data)?)
                    } else {
                        let it = ReceiveArgs::new(peer, Some((msg.tag, msg.ignore)), context);
                        DeferredCall::Receive(buffers, it.with_flags(flags, FI_COMPLETION)?)
                    };
                    (ep, what)
                }
                FI_OP_READ | FI_OP_WRITE => {
                    let DeferredRma { ep, msg, flags } = *input(work.op.cast::<DeferredRma>())?;
                    let reads = work.op_type == FI_OP_READ;
                    let what = DeferredCall::Rma {
                        buffers: Buffers::read(msg.msg_iov, msg.desc, msg.iov_count)?,
                        remote: list(msg.rma_iov, msg.rma_iov_count)?.to_vec(),
                        peer: msg.addr,
                        data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data),
                        context: msg.context,
                        flags: rma::check_flags(flags, reads)?,
                        reads,
                    };
                    (ep, what)
                }
                FI_OP_ATOMIC => {
                    let op = input(work.op.cast::<DeferredAtomic>())?;
                    let none = DeferredLists::NONE;
                    let what = atomic_of(Kind::Base, &op.msg, &none, &none, op.flags)?;
                    (op.ep, what)
                }
                FI_OP_FETCH_ATOMIC => {
                    let op = input(work.op.cast::<DeferredFetch>())?;
                    let none = DeferredLists::NONE;
                    let what = atomic_of(Kind::Fetch, &op.msg, &none, &op.fetch, op.flags)?;
                    (op.ep, what)
                }
                FI_OP_COMPARE_ATOMIC => {
                    let op = input(work.op.cast::<DeferredCompare>())?;
                    let what = atomic_of(Kind::Compare, &op.msg, &op.compare, &op.fetch, op.flags)?;
                    (op.ep, what)
                }
                _ => return Err(FiError::NOSYS),
            }
        };
        // SAFETY: `find` validates the handle.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        if !Arc::ptr_eq(&ep.domain, domain) {
            return Err(FiError::INVAL);
        }
        Ok(Self {
            deferred: Some(Deferred { counter }),
            ..Self::triggered(ep, what.quiet()?)?
        })
    }

    /// Makes the work's endpoint progress when the program reads this counter.
    pub(super) fn attach(&self, counter: &Arc<Counter>) {
        counter.attach(&self.ep);
        let mut setup = self.ep.setup.lock();
        if !setup
            .completed_work
            .iter()
            .any(|known| Arc::ptr_eq(known, counter))
        {
            setup.completed_work.push(Arc::clone(counter));
        }
    }
}

impl Action for Job {
    fn run(&self) -> Result<()> {
        let deferred = self.deferred.as_ref();
        match &self.what {
            // Jobs always have flags of their own, so the default is not used.
            DeferredCall::Send(buffers, it) => self.ep.send(&Message {
                deferred,
                ..it.message(&buffers.list, buffers.desc(), 0)
            }),
            DeferredCall::Receive(buffers, it) => self.ep.receive(&Wanted {
                deferred,
                ..it.wanted(&buffers.list, buffers.desc(), 0)
            }),
            DeferredCall::Rma {
                buffers,
                remote,
                peer,
                data,
                context,
                flags,
                reads,
            } => self.ep.transfer(
                &Transfer {
                    iov: &buffers.list,
                    desc: buffers.desc(),
                    peer: *peer,
                    remote,
                    data: *data,
                    context: *context,
                    flags: *flags,
                    deferred,
                },
                *reads,
            ),
            DeferredCall::Atomic {
                operands,
                compare,
                result,
                args,
            } => self.ep.atomic(&AtomicArgs {
                operands: &operands.list,
                desc: operands.desc(),
                compare: &compare.list,
                compare_desc: compare.desc(),
                result: &result.list,
                result_desc: result.desc(),
                deferred,
                ..**args
            }),
        }
    }

    fn failed(&self, error: FiError) {
        let Some(live) = self.ep.live.get() else {
            return;
        };
        let (place, kind, context, flags) = match &self.what {
            DeferredCall::Send(_, it) => (SENT, FI_SEND | it.kind(), it.context(), it.flags()),
            DeferredCall::Receive(_, it) => {
                (RECEIVED, FI_RECV | it.kind(), it.context(), it.flags())
            }
            DeferredCall::Rma {
                context,
                flags,
                reads,
                ..
            } => match reads {
                true => (READ, FI_RMA | FI_READ, *context, *flags),
                false => (WRITTEN, FI_RMA | FI_WRITE, *context, *flags),
            },
            DeferredCall::Atomic { args, .. } => match args.kind {
                Kind::Base => (WRITTEN, FI_ATOMIC | FI_WRITE, args.context, args.flags),
                _ => (READ, FI_ATOMIC | FI_READ, args.context, args.flags),
            },
        };
        let counter = match &self.deferred {
            Some(deferred) => deferred.counter.as_ref(),
            None => live.host.counters[place].get(),
        };
        if let Some(counter) = counter {
            counter.count_error();
        }
        let side = match place {
            RECEIVED => &live.host.rx,
            _ => &live.host.tx,
        };
        if let Some(side) = side
            && flags & QUIET == 0
        {
            let entry = Entry {
                context: context as usize,
                flags: kind,
                ..Entry::default()
            };
            side.cq.push(entry.failed(error));
        }
    }

    fn endpoint(&self) -> Option<u32> {
        Some(self.ep.number)
    }

    fn is_work(&self) -> bool {
        self.deferred.is_some()
    }
}

impl DeferredCall {
    fn flags_mut(&mut self) -> &mut u64 {
        match self {
            Self::Send(_, it) => it.flags_mut(),
            Self::Receive(_, it) => it.flags_mut(),
            Self::Rma { flags, .. } => flags,
            Self::Atomic { args, .. } => &mut args.flags,
        }
    }

    /// Makes the operation report only on request, as deferred work does.
    fn quiet(mut self) -> Result<Self> {
        let flags = self.flags_mut();
        if *flags & FI_TRIGGER != 0 {
            return Err(FiError::BADFLAGS);
        }
        if *flags & FI_COMPLETION == 0 {
            *flags |= QUIET;
        }
        Ok(self)
    }
}

/// # Safety
/// The message and the lists are valid as described in fi_atomic(3).
unsafe fn atomic_of(
    kind: Kind,
    msg: &MsgAtomic,
    compare: &DeferredLists,
    result: &DeferredLists,
    flags: u64,
) -> Result<DeferredCall> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        Ok(DeferredCall::Atomic {
            operands: Buffers::read(msg.msg_iov, msg.desc, msg.iov_count)?,
            compare: Buffers::read(compare.msg_iov, compare.desc, compare.iov_count)?,
            result: Buffers::read(result.msg_iov, result.desc, result.iov_count)?,
            args: Box::new(of_message(kind, msg, flags)?),
        })
    }
}

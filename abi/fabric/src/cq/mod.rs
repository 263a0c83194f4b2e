//! Completion queues: entries of every format, errors, waiting by descriptor or in a call.
//!
//! A read first takes what is there, and makes the endpoints of the queue progress when there is
//! nothing.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

mod entry;
mod read;
mod waiting;

pub(crate) use entry::Entry;
pub(crate) use waiting::{Armed, Wait};

use crate::attached::Attached;
use crate::domain::{Domain, DomainObject};
use crate::ep::Endpoint;
use crate::errno::{FiError, Result};
use crate::nosys::{self, nosys};
use crate::object::{Users, find, object, place, remove, status};
use crate::sys::*;
use crate::wait::{Set, check_object};
use rkey_device::base::SpinLock;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a program has a handle of.
#[repr(C)]
pub(crate) struct CqObject {
    fid: UnsafeCell<FidCq>,
    pub(crate) inner: Arc<Cq>,
}
object!(CqObject, FidCq, 65536);

/// Entries of a queue whose size is ours to choose.
const DEFAULT_SIZE: usize = 16384;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) domain: Arc<Domain>,
    format: c_int,
    /// With so many entries it is full: nothing is begun that would add more. What was begun does.
    size: usize,
    queue: SpinLock<Queue>,
    /// How many entries there are, for a look without the lock.
    count: AtomicUsize,
    endpoints: Attached,
    pub(crate) wait: Option<Wait>,
    pub(crate) users: Users,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// It was full, and peers wait for answers until it is not.
    owes: bool,
    /// Data of the last error that was read; the program may look at it until the next read.
    error_data: Vec<u8>,
    /// Where the program has these data, and how much of them.
    given: (usize, usize),
}

impl Cq {
    /// Adds an entry.
    #[inline]
    pub(crate) fn push(&self, entry: Entry) {
        let mut queue = self.queue.lock();
        queue.entries.push_back(entry);
        self.counted(&queue);
        drop(queue);
        if let Some(wait) = &self.wait {
            wait.signal.raise();
        }
    }

    /// Lets who waits look again, and prepare again: an endpoint has something for him, or what he waits for may have
    /// been told to somebody else.
    pub(crate) fn nudge(&self) {
        if let Some(wait) = &self.wait {
            wait.signal.raise();
        }
    }

    /// Whether the program has to read entries before more may come.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.size
    }

    /// Whether answers to peers have to wait because it is full. They are given when the program has read entries, also
    /// if that is all that it does.
    pub(crate) fn holds_answers_back(&self) -> bool {
        if !self.is_full() {
            return false;
        }
        // Under the lock: whoever reads now finds that they wait, or has made room.
        let mut queue = self.queue.lock();
        let full = queue.entries.len() >= self.size;
        queue.owes |= full;
        full
    }

    /// Entries were read. Whether there are answers to give now that there is room for what follows from them.
    #[inline]
    fn has_read(&self, queue: &mut Queue) -> bool {
        self.counted(queue);
        let due = queue.owes && queue.entries.len() < self.size;
        queue.owes &= !due;
        due
    }

    #[cold]
    fn give_answers(&self) {
        for endpoint in &*self.endpoints.all() {
            endpoint.give_answers();
        }
    }

    /// Entries that the program has not read.
    pub(crate) fn unread(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there is nothing to read.
    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// The number of entries may have changed.
    #[inline]
    fn counted(&self, queue: &Queue) {
        self.count.store(queue.entries.len(), Ordering::Relaxed);
    }

    /// An endpoint makes progress through this queue from now on. `fd` is readable when it has to.
    pub(crate) fn attach(&self, endpoint: &Arc<Endpoint>, fd: Option<RawFd>) -> Result<()> {
        self.endpoints.join(endpoint, self.set(), fd)
    }

    pub(crate) fn detach(&self, endpoint: &Arc<Endpoint>, fd: Option<RawFd>) {
        self.endpoints.leave(endpoint, self.set(), fd);
    }

    /// What a program waits for, if it may.
    fn set(&self) -> Option<&Set> {
        self.wait.as_ref().map(|wait| &wait.set)
    }

    pub(crate) fn progress(&self) {
        for endpoint in &*self.endpoints.all() {
            endpoint.progress();
        }
        self.domain.work.run();
    }
}

static FID_OPS: Ops = Ops {
    close,
    control,
    ..nosys::OPS
};

static OPS: OpsCq = OpsCq {
    size: size_of::<OpsCq>(),
    read: read::read,
    readfrom: read::readfrom,
    readerr: read::readerr,
    sread: read::sread,
    sreadfrom: read::sreadfrom,
    signal: read::signal,
    strerror: read::strerror,
    export_xpu: nosys!(c_int, *mut FidCq, *mut c_void),
};

/// `fi_cq_open`.
///
/// # Safety
/// Arguments as fi_cq(3) asks for them.
pub(crate) unsafe extern "C" fn cq_open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    cq: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: handles and attributes as the caller promises, or something that is refused.
        let (owner, attr) = unsafe { (find::<DomainObject, _>(domain)?, attr.as_ref()) };
        let (format, wait_obj, cond) = match attr {
            None => (FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE, FI_CQ_COND_NONE),
            Some(attr) => (attr.format, attr.wait_obj, attr.wait_cond),
        };
        let size = match attr.map_or(0, |attr| attr.size) {
            0 => DEFAULT_SIZE,
            size => size,
        };
        let format = match format {
            // The longest, so that nothing is lost.
            FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_TAGGED,
            FI_CQ_FORMAT_CONTEXT..=FI_CQ_FORMAT_TAGGED => format,
            _ => return Err(FiError::NOSYS),
        };
        if !matches!(cond, FI_CQ_COND_NONE | FI_CQ_COND_THRESHOLD) {
            return Err(FiError::INVAL);
        }
        let wait = match check_object(wait_obj)? {
            false => None,
            true => Some(Wait::new()?),
        };
        if let Some(wait) = &wait {
            owner.inner.work.wakes(&wait.signal);
        }
        let inner = Cq {
            domain: Arc::clone(&owner.inner),
            format,
            size,
            queue: SpinLock::default(),
            count: AtomicUsize::new(0),
            endpoints: Attached::default(),
            wait,
            users: Users::default(),
        };
        let object = CqObject {
            fid: UnsafeCell::new(FidCq {
                fid: Fid::new(FI_CLASS_CQ, context, &FID_OPS),
                ops: &OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: room for a handle, as the caller promises.
        unsafe { place(object, cq)? };
        owner.inner.users.add();
        if let Some(attr) = attr
            && attr.format == FI_CQ_FORMAT_UNSPEC
        {
            // SAFETY: attributes of the program, which learns the choice from them (fi_cq(3)).
            unsafe { (*(&raw const *attr).cast_mut()).format = format };
        }
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        unsafe { find::<CqObject, _>(fid)? }
            .inner
            .users
            .none("endpoints that are bound to the completion queue")?;
        // SAFETY: the program uses the queue no more.
        let object = unsafe { remove::<CqObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let cq = &unsafe { find::<CqObject, _>(fid)? }.inner;
        match (command, &cq.wait) {
            // SAFETY: room for a descriptor, as the command asks for.
            (FI_GETWAIT, Some(wait)) => unsafe { crate::object::output(arg.cast(), wait.fd()) },
            (FI_GETWAITOBJ, wait) => {
                let object = if wait.is_some() {
                    FI_WAIT_FD
                } else {
                    FI_WAIT_NONE
                };
                // SAFETY: room for a number, as the command asks for.
                unsafe { crate::object::output(arg.cast(), object) }
            }
            (FI_GETWAIT, None) => Err(FiError::NODATA),
            _ => Err(FiError::NOSYS),
        }
    })
}

/// Whether a program may wait for the descriptor of a completion queue.
///
/// # Safety
/// A handle, or something that is refused.
pub(crate) unsafe fn trywait(fid: *mut Fid) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { find::<CqObject, _>(fid)? }.inner.arm_descriptor()
}

//! Completion queues: entries in every format, errors, and waiting on a descriptor or in a call.
//!
//! A read returns the queued entries; only if there are none does it drive the queue's endpoints.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

mod entry;
mod read;
mod waiting;

pub(crate) use entry::Entry;
pub(crate) use waiting::Wait;

use crate::attached::{Attached, CqId, Driven};
use crate::domain::{Domain, DomainObject};
use crate::errno::{FiError, Result};
use crate::nosys::{self, nosys};
use crate::object::{Users, busy, find, object, publish, remove, status};
use crate::sys::*;
use crate::wait::{Set, check_object};
use rkey_device::base::SpinLock;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct CqObject {
    fid: UnsafeCell<FidCq>,
    pub(crate) inner: Arc<Cq>,
}
object!(CqObject, FidCq, 65536);

/// The default size of a queue, in entries.
const DEFAULT_SIZE: usize = 16384;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) domain: Arc<Domain>,
    format: c_int,
    /// The number of entries at which the queue is full: then no operation that would add an entry begins, but those in progress still
    /// add theirs.
    size: usize,
    queue: SpinLock<Queue>,
    /// The number of entries, readable without the lock.
    count: AtomicUsize,
    endpoints: Attached,
    pub(crate) wait: Option<Wait>,
    pub(crate) users: Users,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Whether responses to peers wait because the queue was full.
    owes: bool,
    /// The data of the last error, valid until the next read.
    error_data: Vec<u8>,
    /// The address and length of this data as the program last got them.
    given: (usize, usize),
}

impl Cq {
    /// Identifies the queue to endpoints.
    #[inline]
    pub(crate) fn id(&self) -> CqId {
        CqId(std::ptr::from_ref(self).addr())
    }

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

    /// Wakes all waiting threads, so that they check and prepare again: an endpoint has something for them, or another thread may have
    /// read the event that they wait for.
    pub(crate) fn nudge(&self) {
        if let Some(wait) = &self.wait {
            wait.signal.raise();
        }
    }

    /// Whether the program must read entries before more operations can begin.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.size
    }

    /// Whether responses to peers must wait because the queue is full. They are sent once the program has read
    /// entries, even if it makes no other call.
    pub(crate) fn holds_answers_back(&self) -> bool {
        if !self.is_full() {
            return false;
        }
        // Set the flag under the lock, so that a concurrent read either sees the flag or has already made room.
        let mut queue = self.queue.lock();
        let full = queue.entries.len() >= self.size;
        queue.owes |= full;
        full
    }

    /// Must be called after the program has read entries. Returns whether responses to peers are due: some are waiting, and the queue
    /// has room for the completions that they cause.
    #[inline]
    fn has_read(&self, queue: &mut Queue) -> bool {
        self.counted(queue);
        let due = queue.owes && queue.entries.len() < self.size;
        queue.owes &= !due;
        due
    }

    #[cold]
    fn send_owed_answers(&self) {
        for endpoint in &*self.endpoints.all() {
            endpoint.send_owed_answers();
        }
    }

    /// The number of unread entries.
    pub(crate) fn unread(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there is nothing to read.
    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Updates the number of entries.
    #[inline]
    fn counted(&self, queue: &Queue) {
        self.count.store(queue.entries.len(), Ordering::Relaxed);
    }

    /// Drives an endpoint through this queue from now on. `fd` is readable when the endpoint has work.
    pub(crate) fn attach(
        &self,
        endpoint: &Arc<impl Driven + 'static>,
        fd: Option<RawFd>,
    ) -> Result<()> {
        self.endpoints.join(endpoint, self.set(), fd)
    }

    pub(crate) fn detach(&self, endpoint: &Arc<impl Driven>, fd: Option<RawFd>) {
        self.endpoints.leave(endpoint, self.set(), fd);
    }

    /// The set that a program waits on, if the queue has a wait object.
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
/// The arguments must be valid as described in fi_cq(3).
pub(crate) unsafe extern "C" fn cq_open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    cq: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handles.
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
            // The longest format, so that nothing is lost.
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
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, cq)? };
        owner.inner.users.add();
        if let Some(attr) = attr
            && attr.format == FI_CQ_FORMAT_UNSPEC
        {
            // SAFETY: the program's attributes, which report the choice (fi_cq(3)).
            unsafe { (*(&raw const *attr).cast_mut()).format = format };
        }
        Ok(())
    })
}

/// `fi_close`: returns `-FI_EBUSY` while endpoints are bound to the queue.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<CqObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| busy("endpoints that are bound to the completion queue"))?;
        // SAFETY: the program no longer uses the queue.
        let object = unsafe { remove::<CqObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

/// `fi_control`: `FI_GETWAIT` and `FI_GETWAITOBJ`.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let cq = &unsafe { find::<CqObject, _>(fid)? }.inner;
        match (command, &cq.wait) {
            // SAFETY: the command requires room for a descriptor.
            (FI_GETWAIT, Some(wait)) => unsafe { crate::object::store(arg.cast(), wait.fd()) },
            (FI_GETWAITOBJ, wait) => {
                let object = if wait.is_some() {
                    FI_WAIT_FD
                } else {
                    FI_WAIT_NONE
                };
                // SAFETY: the command requires room for a number.
                unsafe { crate::object::store(arg.cast(), object) }
            }
            (FI_GETWAIT, None) => Err(FiError::NODATA),
            _ => Err(FiError::NOSYS),
        }
    })
}

/// Prepares for a wait on the descriptor of a completion queue; returns `FI_EAGAIN` if there is something to read or to do
/// first.
///
/// # Safety
/// The handle may be invalid; a live object stays alive during the call.
pub(crate) unsafe fn trywait(fid: *mut Fid) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { find::<CqObject, _>(fid)? }.inner.arm_descriptor()
}

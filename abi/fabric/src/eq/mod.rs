//! Event queues: connection events, completed registrations and insertions.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::attached::{Attached, Driven};
use crate::errno::{self, FiError, Result};
use crate::fabric::{Fabric, FabricObject};
use crate::nosys;
use crate::object::{Users, busy, count, find, object, publish, remove, status};
use crate::sys::*;
use crate::wait::{Deadline, Set, Signal, check_object, readable};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct EqObject {
    fid: UnsafeCell<FidEq>,
    pub(crate) inner: Arc<Eq>,
}
object!(EqObject, FidEq, 4096);

/// An event queue. Its descriptor is readable while there are events, and when a connection may have ended.
pub(crate) struct Eq {
    pub(crate) fabric: Arc<Fabric>,
    queue: Mutex<Queue>,
    /// Locked while an event is added for an object that another thread may be closing, and while an object's events
    /// are removed.
    telling: Mutex<()>,
    signal: Signal,
    /// The set that a program waits on, if the queue has a wait object: `signal`, and the descriptors of
    /// `endpoints`.
    set: Option<Set>,
    /// Connected endpoints: reading the queue detects the end of their connections (fi_domain(3), control
    /// progress).
    endpoints: Attached,
    writable: bool,
    pub(crate) users: Users,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    /// The data of the last error, valid until the next read.
    error_data: Vec<u8>,
}

enum Event {
    /// The bytes of an event, as the program reads them.
    Plain {
        event: u32,
        bytes: Vec<u8>,
        /// For a connection request: the address of its information.
        request: Option<usize>,
        /// Whether the program has peeked at it.
        seen: bool,
    },
    Failed(Failure),
}

impl Event {
    /// An event that is not a connection request.
    fn plain(event: u32, bytes: Vec<u8>) -> Self {
        Self::Plain {
            event,
            bytes,
            request: None,
            seen: false,
        }
    }

    /// The information of a connection request; `None` for other events.
    fn request(&self) -> Option<*mut Info> {
        match self {
            Self::Plain { request, .. } => request.map(|info| info as *mut Info),
            Self::Failed(_) => None,
        }
    }
}

/// A failed operation, as `fi_eq_readerr` reports it.
pub(crate) struct Failure {
    pub(crate) fid: usize,
    pub(crate) context: usize,
    pub(crate) data: u64,
    pub(crate) error: FiError,
    pub(crate) error_data: Vec<u8>,
}

impl Eq {
    fn push(&self, event: Event) {
        self.queue.lock().events.push_back(event);
        self.signal.raise();
    }

    /// Whether a program may wait for the queue.
    pub(crate) fn is_waitable(&self) -> bool {
        self.set.is_some()
    }

    /// Reports the end of an endpoint's connection here from now on. `fd` is readable when the
    /// connection may have ended.
    pub(crate) fn attach(
        &self,
        endpoint: &Arc<impl Driven + 'static>,
        fd: Option<RawFd>,
    ) -> Result<()> {
        self.endpoints.join(endpoint, self.set.as_ref(), fd)
    }

    pub(crate) fn detach(&self, endpoint: &Arc<impl Driven>, fd: Option<RawFd>) {
        self.endpoints.leave(endpoint, self.set.as_ref(), fd);
    }

    /// Checks whether connections have ended. Returns whether there was any work.
    fn progress(&self) -> bool {
        let endpoints = self.endpoints.all();
        // Check all of them, so that a busy one does not delay the others.
        endpoints.iter().filter(|it| it.check_for_end()).count() > 0
    }

    /// Prepares to wait. Returns `FI_EAGAIN` if there is something to read.
    fn arm(&self) -> Result<()> {
        for endpoint in &*self.endpoints.all() {
            endpoint.arm_for_end()?;
        }
        let queue = self.queue.lock();
        if !queue.events.is_empty() {
            return Err(FiError::AGAIN);
        }
        self.signal.clear();
        Ok(())
    }

    /// Reports that an operation on an object has completed.
    pub(crate) fn completed(&self, event: u32, fid: usize, context: usize, data: u64) {
        let entry = EqEntry {
            fid: fid as *mut Fid,
            context: context as *mut c_void,
            data,
        };
        self.push(Event::plain(event, bytes_of(&entry)));
    }

    /// Reports a connection event. The program frees `info`.
    pub(crate) fn connection(&self, event: u32, fid: usize, info: *mut Info, data: &[u8]) {
        let mut bytes = bytes_of(&EqCmEntry {
            fid: fid as *mut Fid,
            info,
        });
        bytes.extend_from_slice(data);
        self.push(Event::Plain {
            event,
            bytes,
            request: (event == FI_CONNREQ).then_some(info as usize),
            seen: false,
        });
    }

    /// Reports that an operation failed.
    pub(crate) fn failed(&self, failure: Failure) {
        self.push(Event::Failed(failure));
    }

    /// Runs `report`, which may report on an object, unless the object is being closed: after [`Eq::forget`] there are no
    /// more reports on it.
    pub(crate) fn unless_closing(&self, closing: &AtomicBool, report: impl FnOnce()) {
        let _telling = self.telling.lock();
        if !closing.load(Ordering::Acquire) {
            report();
        }
    }

    /// Removes the events of an object that is being closed.
    pub(crate) fn forget(&self, fid: usize) {
        let about = |event: &Event| match event {
            Event::Failed(failure) => failure.fid == fid,
            Event::Plain { bytes, .. } => bytes.get(..8) == Some(&fid.to_ne_bytes()),
        };
        let _telling = self.telling.lock();
        self.take_out(about);
    }

    /// Removes connection requests that were dropped because their clients have exited, except one that the program has
    /// peeked at, because the program may be using it.
    pub(crate) fn forget_ended_requests(&self) {
        self.take_out(|event| {
            let unseen = matches!(event, Event::Plain { seen: false, .. });
            let info = event.request().filter(|_| unseen);
            // SAFETY: the information of a request that the program has not read.
            info.is_some_and(|info| unsafe { crate::connect_request::has_ended(info) })
        });
    }

    /// Removes unread events.
    fn take_out(&self, unwanted: impl Fn(&Event) -> bool) {
        let mut forgotten = Vec::new();
        self.queue.lock().events.retain(|event| {
            let keep = !unwanted(event);
            if !keep {
                forgotten.extend(event.request());
            }
            keep
        });
        for info in forgotten {
            // SAFETY: the information of a request that the program has not read.
            unsafe { crate::connect_request::forget_request(info) };
        }
    }
}

/// The bytes of a structure without padding.
fn bytes_of<T: Copy>(value: &T) -> Vec<u8> {
    // SAFETY: event structures have no padding: only pointers and 64-bit numbers.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

static FID_OPS: Ops = Ops {
    close,
    control,
    ..nosys::OPS
};

static OPS: OpsEq = OpsEq {
    size: size_of::<OpsEq>(),
    read,
    readerr,
    write,
    sread,
    strerror,
};

/// `fi_eq_open`.
///
/// # Safety
/// The arguments must be valid as described in fi_eq(3).
pub(crate) unsafe extern "C" fn eq_open(
    fabric: *mut FidFabric,
    attr: *mut EqAttr,
    eq: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let owner = unsafe { find::<FabricObject, _>(fabric)? };
        // SAFETY: the caller guarantees null or attributes.
        let (flags, wait_obj) = match unsafe { attr.as_ref() } {
            None => (0, FI_WAIT_NONE),
            Some(attr) => (attr.flags, attr.wait_obj),
        };
        if flags & !FI_WRITE != 0 {
            return Err(FiError::BADFLAGS);
        }
        let signal = Signal::new()?;
        let set = match check_object(wait_obj)? {
            false => None,
            true => {
                let set = Set::new()?;
                set.add(signal.raw())?;
                Some(set)
            }
        };
        let inner = Eq {
            fabric: Arc::clone(&owner.inner),
            queue: Mutex::default(),
            telling: Mutex::default(),
            signal,
            set,
            endpoints: Attached::default(),
            writable: flags & FI_WRITE != 0,
            users: Users::default(),
        };
        let object = EqObject {
            fid: UnsafeCell::new(FidEq {
                fid: Fid::new(FI_CLASS_EQ, context, &FID_OPS),
                ops: &OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, eq)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close`: returns `-FI_EBUSY` while an object is bound to the queue.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<EqObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| {
                busy("endpoints, domains or address vectors that are bound to the event queue")
            })?;
        // SAFETY: the program no longer uses the queue.
        let object = unsafe { remove::<EqObject, _>(fid)? };
        object.inner.fabric.users.remove();
        Ok(())
    })
}

/// `fi_control`: `FI_GETWAIT`.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let eq = &unsafe { find::<EqObject, _>(fid)? }.inner;
        match (command, &eq.set) {
            (FI_GETWAIT, Some(set)) => {
                // SAFETY: the command requires room for a descriptor.
                unsafe { crate::object::store(arg.cast(), set.raw()) }
            }
            _ => Err(FiError::NOSYS),
        }
    })
}

/// Prepares for a wait on the descriptor of an event queue; returns `FI_EAGAIN` if there is something to read.
///
/// # Safety
/// The handle may be invalid; a live object stays alive during the call.
pub(crate) unsafe fn trywait(fid: *mut Fid) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { find::<EqObject, _>(fid)? }.inner.arm()
}

/// Takes or peeks at an event.
///
/// # Safety
/// `buf` is null or has `len` bytes; `event` is null or writable.
unsafe fn take(
    eq: &Eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> Result<usize> {
    // Keep the queue locked, so that concurrent threads get different events.
    let mut queue = eq.queue.lock();
    let (number, bytes, seen) = match queue.events.front_mut() {
        None => {
            eq.signal.clear();
            return Err(FiError::AGAIN);
        }
        Some(Event::Failed(_)) => return Err(FiError::AVAIL),
        Some(Event::Plain {
            event, bytes, seen, ..
        }) => (*event, bytes, seen),
    };
    // Connection data is truncated. Everything else must fit, or the event stays in the queue (fi_eq(3)).
    let least = match number {
        FI_CONNREQ | FI_CONNECTED | FI_SHUTDOWN => size_of::<EqCmEntry>(),
        _ => bytes.len(),
    };
    if len < least || buf.is_null() {
        return Err(FiError::TOOSMALL);
    }
    let len = len.min(bytes.len());
    // SAFETY: the caller guarantees this length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), len) };
    if !event.is_null() {
        // SAFETY: not null, so it is writable.
        unsafe { *event = number };
    }
    *seen = true;
    if flags & FI_PEEK == 0 {
        queue.events.pop_front();
    }
    Ok(len)
}

/// Like [`take`], but if there is no event, checks whether connections have ended and tries again.
///
/// # Safety
/// Same as for [`take`].
unsafe fn poll(
    eq: &Eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> Result<usize> {
    // SAFETY: guaranteed by the caller.
    match unsafe { take(eq, event, buf, len, flags) } {
        // SAFETY: as above.
        Err(FiError::AGAIN) if eq.progress() => unsafe { take(eq, event, buf, len, flags) },
        result => result,
    }
}

/// `fi_eq_read`.
unsafe extern "C" fn read(
    eq: *mut FidEq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    count(|| {
        // SAFETY: `find` validates the handle.
        let eq = &unsafe { find::<EqObject, _>(eq)? }.inner;
        // SAFETY: the caller guarantees this length.
        unsafe { poll(eq, event, buf, len, flags) }
    })
}

/// `fi_eq_sread`.
unsafe extern "C" fn sread(
    eq: *mut FidEq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    count(|| {
        // SAFETY: `find` validates the handle.
        let eq = &unsafe { find::<EqObject, _>(eq)? }.inner;
        let set = eq.set.as_ref().ok_or(FiError::INVAL)?;
        let deadline = Deadline::of(timeout);
        loop {
            // SAFETY: the caller guarantees this length.
            match unsafe { poll(eq, event, buf, len, flags) } {
                Err(FiError::AGAIN) if deadline.passed() => return Err(FiError::AGAIN),
                Err(FiError::AGAIN) => {}
                result => return result,
            }
            match eq.arm() {
                Ok(()) => readable(&[set.raw()], &deadline)?,
                Err(FiError::AGAIN) => continue,
                Err(error) => return Err(error),
            };
        }
    })
}

/// `fi_eq_readerr`.
unsafe extern "C" fn readerr(eq: *mut FidEq, into: *mut EqErrEntry, flags: u64) -> isize {
    count(|| {
        // SAFETY: `find` validates the handle.
        let eq = &unsafe { find::<EqObject, _>(eq)? }.inner;
        if into.is_null() {
            return Err(FiError::INVAL);
        }
        let mut queue = eq.queue.lock();
        let Some(Event::Failed(failure)) = queue.events.front() else {
            return Err(FiError::AGAIN);
        };
        let (fid, context, data) = (failure.fid, failure.context, failure.data);
        let (error, error_data) = (failure.error, failure.error_data.clone());
        if flags & FI_PEEK == 0 {
            queue.events.pop_front();
        }
        queue.error_data = error_data;
        // SAFETY: the program's entry, which may point to a buffer for the data of the error.
        let entry = unsafe { &mut *into };
        entry.fid = fid as *mut Fid;
        entry.context = context as *mut c_void;
        entry.data = data;
        entry.err = error.0;
        entry.prov_errno = error.0;
        // SAFETY: the entry gives the length of the program's buffer.
        unsafe {
            write_error_data(
                &queue.error_data,
                &mut entry.err_data,
                &mut entry.err_data_size,
            );
        }
        Ok(size_of::<EqErrEntry>())
    })
}

/// Passes the data of an error to the program: in the program's buffer if there is one, otherwise in ours.
///
/// # Safety
/// `room` has `size` bytes.
pub(crate) unsafe fn write_error_data(data: &[u8], room: &mut *mut c_void, size: &mut usize) {
    if *size > 0 && !room.is_null() {
        let len = data.len().min(*size);
        // SAFETY: the caller guarantees this length.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), room.cast::<u8>(), len) };
        *size = len;
    } else {
        *room = data.as_ptr().cast_mut().cast();
        *size = data.len();
    }
}

/// `fi_eq_write`.
unsafe extern "C" fn write(
    eq: *mut FidEq,
    event: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> isize {
    count(|| {
        // SAFETY: `find` validates the handle.
        let eq = &unsafe { find::<EqObject, _>(eq)? }.inner;
        if !eq.writable || flags != 0 {
            return Err(FiError::INVAL);
        }
        // SAFETY: the caller guarantees this length.
        let bytes = unsafe { crate::object::list(buf.cast::<u8>(), len)? }.to_vec();
        eq.push(Event::plain(event, bytes));
        Ok(len)
    })
}

/// `fi_eq_strerror`.
unsafe extern "C" fn strerror(
    _: *mut FidEq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller guarantees null, or room of this length.
    unsafe { write_text(prov_errno, buf, len) }
}

/// Returns the text for an error number, in the program's buffer if there is one.
///
/// # Safety
/// `buf` is null or has `len` bytes.
pub(crate) unsafe fn write_text(number: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { write_string(errno::text(number).into_owned(), buf, len) }
}

/// Returns a text: in the program's buffer if there is one, otherwise in a thread-local buffer.
///
/// # Safety
/// `buf` is null or has `len` bytes.
pub(crate) unsafe fn write_string(text: CString, buf: *mut c_char, len: usize) -> *const c_char {
    thread_local! {
        static TEXT: std::cell::RefCell<CString> = std::cell::RefCell::default();
    }
    if buf.is_null() || len == 0 {
        return TEXT.with(|place| {
            *place.borrow_mut() = text;
            place.borrow().as_ptr()
        });
    }
    let bytes = text.as_bytes();
    let cut = bytes.len().min(len - 1);
    // SAFETY: the caller guarantees `len` bytes, and `cut` is less.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), cut);
        *buf.add(cut) = 0;
    }
    buf
}

//! Completion queues.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::acks::Acks;
use crate::completion::channel::ChannelObject;
use crate::completion::cq_cursor::{self, Cursor};
use crate::completion::status;
use crate::device::clock::timestamp;
use crate::device::context::ContextObject;
use crate::memory::pd::PdObject;
use crate::object::{Object, Users, find, find_or_null, insert, remove};
use crate::sys::{CompChannel, Context, Cq, CqEx, Pd, Wc};
use crate::translate::errno;
use rkey_device::DeviceError;
use rkey_device::engine::{Completion, Stamped};
use rkey_device::time;
use rkey_kit::{Errno, Pool, c_call, contained};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// The maximum number of completions that one poll takes from the device.
const BATCH: usize = 16;

/// A completion queue, as the program sees it: always the extended form, which begins with the plain one.
#[repr(C)]
pub struct CqObject {
    c: UnsafeCell<CqEx>,
    context: *mut Context,
    /// The device's completion queue.
    pub cq: rkey_device::Cq,
    channel: *mut CompChannel,
    parent: *mut Pd,
    /// Queue pairs that complete here.
    pub users: Users,
    /// Completion events not yet acknowledged.
    pub comp_acks: Acks,
    /// Asynchronous events not yet acknowledged.
    pub async_acks: Acks,
    /// State of the extended polling calls.
    pub cursor: Cursor,
}

// SAFETY: the C structure is written only by the calls that poll, under their lock or by a program that
// promised to use one thread.
unsafe impl Sync for CqObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for CqObject {}

static CQS: Pool<CqObject> = Pool::new(1 << 16);

// SAFETY: the first field is the C structure, which begins with a `Cq`.
unsafe impl Object for CqObject {
    type C = Cq;
    fn pool() -> &'static Pool<Self> {
        &CQS
    }
}

impl CqObject {
    /// The C structure that the program reads.
    #[inline]
    #[must_use]
    pub fn c(&self) -> *mut Cq {
        self.c.get().cast()
    }

    /// The extended structure.
    #[inline]
    #[must_use]
    pub fn ex(&self) -> *mut CqEx {
        self.c.get()
    }

    /// Whether the queue belongs to `context`.
    #[must_use]
    pub fn is_of(&self, context: *mut Context) -> bool {
        self.context == context
    }
}

/// The parameters of a new completion queue.
pub struct CqConfig {
    /// The minimum capacity, in completions.
    pub depth: u32,
    /// The program's `cq_context`.
    pub cq_context: *mut c_void,
    /// The channel for events, or null.
    pub channel: *mut CompChannel,
    /// Completion vector.
    pub vector: u32,
    /// The parent domain, or null.
    pub parent: *mut Pd,
    /// Which fields the program reads through the extended form (`IBV_WC_EX_WITH_*`).
    pub wc_flags: u64,
    /// Whether the program promised to use one thread.
    pub single_threaded: bool,
}

/// Creates a completion queue.
///
/// # Errors
/// `EINVAL`: an invalid depth, vector, channel or parent domain; `ENOMEM`: a limit is reached.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe fn create(context: *mut Context, wanted: &CqConfig) -> Result<*mut Cq, Errno> {
    // SAFETY: `find` and `find_or_null` validate the handles.
    let (object, channel, parent) = unsafe {
        (
            find::<ContextObject>(context)?,
            find_or_null::<ChannelObject>(wanted.channel)?,
            find_or_null::<PdObject>(wanted.parent)?,
        )
    };
    // SAFETY: the context is live, and so is the channel if there is one.
    let (vectors, of_other) = unsafe {
        let of_other = channel.is_some() && (*wanted.channel).context != context;
        ((*context).num_comp_vectors, of_other)
    };
    if of_other || parent.is_some_and(|parent| parent.context != context) {
        return Err(Errno::INVAL);
    }
    if wanted.depth == 0 || i64::from(wanted.vector) >= i64::from(vectors) {
        return Err(Errno::INVAL);
    }
    let (device, channel_of_device) = (object.device(), channel.map(|c| &c.channel));
    let cq = if cq_cursor::is_stamped(wanted.wc_flags) {
        device.create_stamped_cq(wanted.depth, channel_of_device, timestamp)
    } else {
        device.create_cq(wanted.depth, channel_of_device)
    };
    let cq = cq.map_err(errno::from)?;
    let id = cq.id();
    let head = Cq {
        context,
        channel: wanted.channel,
        cq_context: wanted.cq_context,
        handle: id.index,
        cqe: c_int::try_from(cq.depth()).unwrap_or(c_int::MAX),
        mutex: [0; 5],
        cond: [0; 6],
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let c = (object.tables.cq)(head, wanted.wc_flags);
    let handle = insert(CqObject {
        c: UnsafeCell::new(c),
        context,
        cq,
        channel: wanted.channel,
        parent: wanted.parent,
        users: Users::default(),
        comp_acks: Acks::default(),
        async_acks: Acks::default(),
        cursor: Cursor::new(wanted.single_threaded),
    })?;
    object.open.events.add_cq(id, handle);
    if let Some(channel) = channel {
        channel.users.add();
    }
    if let Some(parent) = parent {
        parent.users.add();
    }
    Ok(handle)
}

/// `ibv_create_cq`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn create_cq(
    context: *mut Context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    c_call(|| {
        let wanted = CqConfig {
            depth: u32::try_from(depth).map_err(|_| Errno::INVAL)?,
            cq_context,
            channel,
            vector: u32::try_from(vector).map_err(|_| Errno::INVAL)?,
            parent: std::ptr::null_mut(),
            wc_flags: 0,
            single_threaded: false,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { create(context, &wanted) }
    })
}

/// `ibv_resize_cq`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn resize_cq(cq: *mut Cq, depth: c_int) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<CqObject>(cq)? };
        let depth = u32::try_from(depth)
            .ok()
            .filter(|&d| d > 0)
            .ok_or(Errno::INVAL)?;
        if (depth as usize) < object.cq.depth() {
            wait_for_outstanding_sends(object, depth as usize)?;
        }
        object.cq.resize(depth).map_err(errno::from)?;
        // SAFETY: the completion queue is live; the program resizes from one thread at a time.
        unsafe { (*cq).cqe = c_int::try_from(object.cq.depth()).unwrap_or(c_int::MAX) };
        Ok(0)
    })
}

/// Waits for sends that a NIC would already have completed, because the check of the new depth must count their
/// completions. Returns when no send is outstanding, when more than `depth` completions are queued, or when no send has
/// completed for `STALL_LIMIT`, for example because all sends wait for receives at their peers.
fn wait_for_outstanding_sends(object: &CqObject, depth: usize) -> Result<(), Errno> {
    const POLL_INTERVAL: Duration = Duration::from_millis(1);
    const STALL_LIMIT: Duration = Duration::from_secs(2);
    let outstanding = || object.cq.outstanding().map_err(errno::from);
    let (mut left, mut since) = (outstanding()?, time::now());
    while left > 0 && object.cq.len() <= depth && time::since(since) < STALL_LIMIT {
        time::sleep(POLL_INTERVAL);
        let now = outstanding()?;
        if now != left {
            (left, since) = (now, time::now());
        }
    }
    Ok(())
}

/// `ibv_destroy_cq`: waits until all of its events are acknowledged.
///
/// # Safety
/// No other thread may use the completion queue, except to acknowledge events.
pub unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<CqObject>(cq)? };
        object.users.none()?;
        // SAFETY: a live completion queue belongs to a live context.
        let context = unsafe { find::<ContextObject>(object.context)? };
        context.open.events.remove_cq(object.cq.id());
        object.comp_acks.wait();
        object.async_acks.wait();
        // SAFETY: this completion queue kept both alive until now.
        unsafe {
            if let Ok(Some(channel)) = find_or_null::<ChannelObject>(object.channel) {
                channel.users.remove();
            }
            if let Ok(Some(parent)) = find_or_null::<PdObject>(object.parent) {
                parent.users.remove();
            }
        }
        // SAFETY: unused, as the caller guarantees.
        drop(unsafe { remove::<CqObject>(cq)? });
        Ok(0)
    })
}

/// `ibv_poll_cq`: returns the number of completions, or a negative error number.
///
/// # Safety
/// `into` has room for `count` completions.
pub unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, into: *mut Wc) -> c_int {
    let Ok(wanted) = usize::try_from(count) else {
        return -Errno::INVAL.raw();
    };
    // SAFETY: `find` validates the handle.
    let Ok(object) = (unsafe { find::<CqObject>(cq) }) else {
        return -Errno::INVAL.raw();
    };
    if into.is_null() && wanted > 0 {
        return -Errno::INVAL.raw();
    }
    let mut done = 0;
    let mut batch = [Completion::default(); BATCH];
    while done < wanted {
        let room = BATCH.min(wanted - done);
        let got = match poll(object, &mut batch[..room]) {
            Ok(got) => got,
            Err(errno) if done == 0 => return -errno.raw(),
            Err(_) => break,
        };
        for (index, completion) in batch[..got].iter().enumerate() {
            // SAFETY: the caller guarantees room for `count` completions.
            unsafe { into.add(done + index).write(status::wc(completion)) };
        }
        done += got;
        if got < room {
            break;
        }
    }
    done as c_int
}

/// Polls the device. A panic becomes an error.
#[inline]
pub fn poll(object: &CqObject, into: &mut [Completion]) -> Result<usize, Errno> {
    caught(|| object.cq.poll(into))
}

/// Polls the device for completions with their timestamps. A panic becomes an error.
pub fn poll_stamped(object: &CqObject, into: &mut [Stamped]) -> Result<usize, Errno> {
    caught(|| object.cq.poll_stamped(into))
}

#[inline(always)]
fn caught(poll: impl FnOnce() -> Result<usize, DeviceError>) -> Result<usize, Errno> {
    contained(|| poll().map_err(errno::from))
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<CqObject>(cq)? };
        if object.channel.is_null() {
            return Ok(0); // there is no channel to notify; the kernel accepts that, too
        }
        object
            .cq
            .req_notify(solicited_only != 0)
            .map_err(errno::from)?;
        Ok(0)
    })
}

/// Destroys the remaining completion queues of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in CQS.live(|cq| cq.context == context) {
            if let Ok(cq) = remove::<CqObject>(object.cast())
                && let Ok(context) = find::<ContextObject>(cq.context)
            {
                context.open.events.remove_cq(cq.cq.id());
            }
        }
    }
}

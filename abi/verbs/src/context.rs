//! The device, as a program that opened it sees it.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::async_event::Events;
use crate::object::{Object, handle_of};
use crate::sys::{Context, Cq, CqEx, Qp, QpEx, VerbsContext};
use rkey_kit::{Errno, Pool};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Reads and atomics that a queue pair may have outstanding.
pub const MAX_READS: i32 = 128;
/// Multicast groups, and queue pairs in each; nothing here has such a limit, but programs want a number.
pub(crate) const MAX_GROUPS: c_int = 8192;
/// Bytes of device memory.
pub const MAX_DM: u64 = 1 << 24;

/// The rkey device behind one or more contexts (importing gives a second one).
pub struct Open {
    /// The device.
    pub device: rkey_device::Device,
    /// Names it to `ibv_import_device`, in this process.
    pub(crate) command: OwnedFd,
    /// Asynchronous events.
    pub events: Events,
}

/// What makes the structures of objects that have functions of their own. The functions are above the objects (in
/// `tables`), so a context hands these down.
pub struct Tables {
    /// The structure of a completion queue with this head, for a program that reads these fields.
    pub cq: fn(Cq, u64) -> CqEx,
    /// The structure of a queue pair with this head.
    pub qp: fn(Qp) -> QpEx,
}

/// An open device, as a program sees it.
#[repr(C)]
pub struct ContextObject {
    verbs: UnsafeCell<VerbsContext>,
    /// What is behind it.
    pub open: Arc<Open>,
    /// For the objects that are made from it.
    pub tables: &'static Tables,
}

// SAFETY: the structure that programs read is written only while it is made.
unsafe impl Sync for ContextObject {}
// SAFETY: it may be dropped by any thread.
unsafe impl Send for ContextObject {}

static CONTEXTS: Pool<ContextObject> = Pool::new(4096);

// SAFETY: `verbs` is at the start, and its field `context` at this offset of it.
unsafe impl Object for ContextObject {
    type C = Context;
    const OFFSET: usize = core::mem::offset_of!(VerbsContext, context);
    fn pool() -> &'static Pool<Self> {
        &CONTEXTS
    }
}

impl ContextObject {
    /// A context of an open device.
    #[must_use]
    pub fn new(verbs: VerbsContext, open: Arc<Open>, tables: &'static Tables) -> Self {
        Self {
            verbs: UnsafeCell::new(verbs),
            open,
            tables,
        }
    }

    /// The device.
    #[inline]
    #[must_use]
    pub fn device(&self) -> &rkey_device::Device {
        &self.open.device
    }

    /// Its handle.
    #[must_use]
    pub fn handle(&self) -> *mut Context {
        handle_of(self)
    }
}

/// A descriptor whose file stands for the device.
pub(crate) fn new_command() -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"rkey-device".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Device and inode of a file.
pub(crate) fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeroes is a valid value, and the call only writes there.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for a stat.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

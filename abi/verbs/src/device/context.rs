//! Contexts: the open device.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::registry::Events;
use crate::object::{Object, handle_of};
use crate::sys::{Context, Cq, CqEx, Qp, QpEx, VerbsContext};
use rkey_kit::{Errno, Pool};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An open rkey device. `ibv_import_device` makes another context for it.
pub struct Open {
    /// The device.
    pub device: rkey_device::Device,
    /// Identifies the device to `ibv_import_device`, within this process.
    pub(crate) command: OwnedFd,
    /// Handles for asynchronous events.
    pub events: Events,
}

/// Constructors of the C structures that contain function pointers. The functions (in `tables`) use the objects, so the
/// objects must not depend on the functions: an object gets these constructors from its context.
pub struct Tables {
    /// Creates an extended completion queue from a plain one and the fields that the program requested (`IBV_WC_EX_WITH_*`).
    pub cq: fn(Cq, u64) -> CqEx,
    /// Creates an extended queue pair from a plain one.
    pub qp: fn(Qp) -> QpEx,
}

/// A context, as the program sees it.
#[repr(C)]
pub struct ContextObject {
    verbs: UnsafeCell<VerbsContext>,
    /// The open device.
    pub open: Arc<Open>,
    /// Constructors for the objects of this context.
    pub tables: &'static Tables,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for ContextObject {}
// SAFETY: any thread may drop it.
unsafe impl Send for ContextObject {}

static CONTEXTS: Pool<ContextObject> = Pool::new(4096);

// SAFETY: `verbs` is the first field, and `context` is at this offset in it.
unsafe impl Object for ContextObject {
    type C = Context;
    const OFFSET: usize = core::mem::offset_of!(VerbsContext, context);
    fn pool() -> &'static Pool<Self> {
        &CONTEXTS
    }
}

impl ContextObject {
    /// Creates a context of an open device.
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

    /// The program's handle of the context.
    #[must_use]
    pub fn handle(&self) -> *mut Context {
        handle_of(self)
    }
}

/// Creates a descriptor whose file identifies the device.
pub(crate) fn new_command() -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"rkey-device".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Device and inode of a file.
pub(crate) fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeros is a valid value, and the call only writes there.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the result is valid for writes.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

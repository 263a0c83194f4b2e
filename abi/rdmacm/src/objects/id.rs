//! Identifiers (`struct rdma_cm_id`), as programs see them.
//!
//! Programs read all fields, and write some (`context`, `qp`, `pd`). While a call uses an identifier, no other thread may write its
//! fields, directly or through a call. The stock library requires that too, because its calls access the fields without a lock.

#![allow(unsafe_code)]
// UNSAFETY: structures that C code reads and writes.

use crate::state::hub::IdKey;
use crate::sys::*;
use parking_lot::Mutex;
use rkey_kit::Errno;
use rkey_kit::object::{find, handle_of, insert, remove};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of identifiers that exist at once.
pub const MAX: u32 = 1 << 16;

/// An identifier.
#[repr(C)]
pub struct IdObject {
    c: UnsafeCell<CmId>,
    path: UnsafeCell<SaPathRec>,
    /// The key of the identifier in the hub.
    pub key: IdKey,
    /// Whether the identifier is synchronous: its calls wait for their events, and it has an event channel of its own.
    pub sync: AtomicBool,
    /// Attributes from `rdma_create_ep`, for the queue pairs of incoming connections.
    pub qp_init: Mutex<Option<QpInit>>,
    /// Private data for `rdma_connect`: the `ai_connect` that was passed to `rdma_create_ep`.
    pub connect_data: Mutex<Vec<u8>>,
}

/// Attributes of queue pairs that do not exist yet.
#[derive(Clone, Copy)]
pub struct QpInit(pub QpInitAttr);

// SAFETY: holds handles, which are validated before use.
unsafe impl Send for QpInit {}

// SAFETY: see the module: threads do not use the structure at the same time.
unsafe impl Sync for IdObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for IdObject {}

rkey_kit::object!(IdObject, c: CmId, MAX);

/// Defines accessors for plain fields.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident, $set:ident: $type:ty;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $field(&self) -> $type {
                // SAFETY: no other thread writes it now (see the module).
                unsafe { (*self.c.get()).$field }
            }

            /// Sets the field.
            pub fn $set(&self, value: $type) {
                // SAFETY: no other thread uses it now (see the module).
                unsafe { (*self.c.get()).$field = value };
            }
        )*
    };
}

impl IdObject {
    fields! {
        /// The device, once it is known.
        verbs, set_verbs: *mut Context;
        /// The event channel.
        channel, set_channel: *mut EventChannel;
        /// The program's context pointer.
        context, set_context: *mut c_void;
        /// The queue pair.
        qp, set_qp: *mut Qp;
        /// The number of the device's port.
        port_num, set_port_num: u8;
        /// The last event of a synchronous identifier.
        event, set_event: *mut CmEvent;
        /// The completion channel for sends.
        send_cq_channel, set_send_cq_channel: *mut CompChannel;
        /// The completion queue for sends.
        send_cq, set_send_cq: *mut Cq;
        /// The completion channel for receives.
        recv_cq_channel, set_recv_cq_channel: *mut CompChannel;
        /// The completion queue for receives.
        recv_cq, set_recv_cq: *mut Cq;
        /// The shared receive queue.
        srq, set_srq: *mut Srq;
        /// The protection domain.
        pd, set_pd: *mut Pd;
        /// The type of the queue pair.
        qp_type, set_qp_type: ibv_qp_type;
    }

    /// The program's handle.
    #[must_use]
    pub fn handle(&self) -> *mut CmId {
        handle_of(self)
    }

    /// Whether the identifier is synchronous.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    /// Sets our address.
    pub fn set_source(&self, address: SocketAddr) {
        let (storage, gid) = (
            crate::lookup::address::storage(address),
            crate::lookup::address::gid(address),
        );
        // SAFETY: no other thread uses it now (see the module).
        unsafe {
            let route = &raw mut (*self.c.get()).route;
            (*route).addr.src.src_storage = storage;
            (*route).addr.addr.ibaddr.sgid = gid;
            (*route).addr.addr.ibaddr.pkey = 0xffff;
        }
    }

    /// Sets the peer's address.
    pub fn set_destination(&self, address: SocketAddr) {
        let (storage, gid) = (
            crate::lookup::address::storage(address),
            crate::lookup::address::gid(address),
        );
        // SAFETY: no other thread uses it now (see the module).
        unsafe {
            let route = &raw mut (*self.c.get()).route;
            (*route).addr.dst.dst_storage = storage;
            (*route).addr.addr.ibaddr.dgid = gid;
        }
    }

    /// Our port and the peer's, in network byte order.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        // SAFETY: no other thread writes it now (see the module); every bit pattern is an address.
        unsafe {
            let addr = &raw const (*self.c.get()).route.addr;
            let (src, dst) = ((*addr).src.src_storage, (*addr).dst.dst_storage);
            (
                crate::lookup::address::port(&src),
                crate::lookup::address::port(&dst),
            )
        }
    }

    /// Sets the path of the identifier.
    pub fn set_path(&self, path: SaPathRec) {
        // SAFETY: no other thread uses it now (see the module).
        unsafe {
            *self.path.get() = path;
            let route = &raw mut (*self.c.get()).route;
            (*route).path_rec = self.path.get();
            (*route).num_paths = 1;
        }
    }
}

/// Allocates an identifier.
///
/// # Errors
/// `ENOMEM`.
pub fn new(
    key: IdKey,
    channel: *mut EventChannel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut CmId, Errno> {
    // SAFETY: all fields are numbers or pointers, which may be all zeros.
    let mut c: CmId = unsafe { std::mem::zeroed() };
    c.channel = channel;
    c.context = context;
    c.ps = space;
    c.qp_type = qp_type;
    insert(IdObject {
        c: UnsafeCell::new(c),
        path: UnsafeCell::new(SaPathRec::default()),
        key,
        sync: AtomicBool::new(false),
        qp_init: Mutex::new(None),
        connect_data: Mutex::new(Vec::new()),
    })
}

/// The identifier with the handle that the hub has stored.
///
/// # Errors
/// `EINVAL`: it has ended.
///
/// # Safety
/// The identifier must not be destroyed while the reference is in use.
pub unsafe fn of_handle<'a>(handle: usize) -> Result<&'a IdObject, Errno> {
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    unsafe { find::<IdObject>(std::ptr::with_exposed_provenance::<CmId>(handle)) }
}

/// Frees an identifier.
///
/// # Safety
/// The identifier must not be used afterwards.
pub unsafe fn free(id: *mut CmId) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { remove::<IdObject>(id) });
}

/// No queue pair.
pub const NO_QP: *mut Qp = null_mut();

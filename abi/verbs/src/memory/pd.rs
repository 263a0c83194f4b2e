//! Protection domains, parent domains and thread domains.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::context::ContextObject;
use crate::object::{Object, Users, find, find_or_null, handle_of, input, insert, remove};
use crate::sys::{Context, ParentDomainInitAttr, Pd, Td, TdInitAttr};
use crate::translate::errno;
use rkey_device::core::DomainId;
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::c_int;

/// The device's domain behind a protection domain.
enum Kind {
    /// The handle has a domain of its own.
    Own,
    /// The domain of another protection domain, which must outlive this one (a parent domain).
    Parent { of: *mut Pd, thread: *mut Td },
    /// The domain of a protection domain of another context.
    Imported,
}

/// A protection domain, as the program sees it.
#[repr(C)]
pub struct PdObject {
    c: UnsafeCell<Pd>,
    /// The context.
    pub context: *mut Context,
    /// The device's domain.
    pub domain: DomainId,
    kind: Kind,
    /// Counts queue pairs and other objects that use the protection domain. The device counts regions and windows itself.
    pub users: Users,
}

// SAFETY: handles, which are validated before use; the C structure is written only while the object is created.
unsafe impl Sync for PdObject {}
// SAFETY: as above.
unsafe impl Send for PdObject {}

rkey_kit::object!(PdObject, c: Pd, 1 << 16);

impl PdObject {
    /// The context.
    ///
    /// # Errors
    /// `EINVAL`: it is closed.
    #[inline]
    pub fn context(&self) -> Result<&ContextObject, Errno> {
        // SAFETY: closing a context destroys its protection domains.
        unsafe { find(self.context) }
    }
}

fn new_pd(context: *mut Context, domain: DomainId, kind: Kind) -> Result<*mut Pd, Errno> {
    let c = UnsafeCell::new(Pd {
        context,
        handle: domain.number(),
    });
    insert(PdObject {
        c,
        context,
        domain,
        kind,
        users: Users::default(),
    })
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<ContextObject>(context)? };
        let domain = object.device().create_domain().map_err(errno::from)?;
        new_pd(context, domain, Kind::Own).inspect_err(|_| {
            let _ = object.device().close_domain(domain);
        })
    })
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// No other thread may use the domain.
pub unsafe extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<PdObject>(pd)? };
        object.users.none()?;
        match object.kind {
            Kind::Own => {
                object
                    .context()?
                    .device()
                    .close_domain(object.domain)
                    .map_err(errno::from)?;
            }
            Kind::Parent { of, thread } => release_parent(of, thread),
            Kind::Imported => return Err(Errno::INVAL),
        }
        // SAFETY: unused, as the caller guarantees.
        unsafe { remove::<PdObject>(pd)? };
        Ok(0)
    })
}

fn release_parent(of: *mut Pd, thread: *mut Td) {
    // SAFETY: the parent domain kept both alive, unless their context is closed.
    unsafe {
        if let Ok(pd) = find::<PdObject>(of) {
            pd.users.remove();
        }
        if let Ok(Some(thread)) = find_or_null::<TdObject>(thread) {
            thread.users.remove();
        }
    }
}

/// `ibv_alloc_parent_domain`. Thread domains and allocators are hints that this device ignores: it is
/// thread-safe and allocates nothing that a device reads.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut Context,
    attr: *mut ParentDomainInitAttr,
) -> *mut Pd {
    const KNOWN: u32 = 3;
    c_call(|| {
        // SAFETY: `find` and `find_or_null` validate the handles; `input` refuses null, the caller guarantees the
        // rest.
        let (attr, pd, thread) = unsafe {
            find::<ContextObject>(context)?;
            let attr = input(attr)?;
            (
                attr,
                find::<PdObject>(attr.pd)?,
                find_or_null::<TdObject>(attr.td)?,
            )
        };
        if attr.comp_mask & !KNOWN != 0 || pd.context != context {
            return Err(Errno::INVAL);
        }
        let kind = Kind::Parent {
            of: handle_of(pd),
            thread: attr.td,
        };
        let parent = new_pd(context, pd.domain, kind)?;
        pd.users.add();
        if let Some(thread) = thread {
            thread.users.add();
        }
        Ok(parent)
    })
}

/// `ibv_import_pd`: makes the domain available in another context of the device.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn import_pd(context: *mut Context, handle: u32) -> *mut Pd {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<ContextObject>(context)? };
        let same = |pd: &PdObject| {
            pd.domain.number() == handle
                && pd.context().is_ok_and(|c| c.device().is(object.device()))
        };
        let domain = PdObject::pool()
            .find_map(|pd| same(pd).then_some(pd.domain))
            .ok_or(Errno::NOENT)?;
        new_pd(context, domain, Kind::Imported)
    })
}

/// `ibv_unimport_pd`. While something uses the handle, it stays valid; the call cannot report that because it returns
/// nothing.
///
/// # Safety
/// No other thread may use the handle.
pub unsafe extern "C" fn unimport_pd(pd: *mut Pd) {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<PdObject>(pd)? };
        if matches!(object.kind, Kind::Imported) {
            object.users.none().inspect_err(|_| {
                tracing::warn!(
                    "ibv_unimport_pd: the protection domain is still in use: first destroy the objects that were created in it"
                );
            })?;
            // SAFETY: unused, as the caller guarantees.
            unsafe { remove::<PdObject>(pd)? };
        }
        Ok(())
    });
}

/// A thread domain: a hint that this device does not use.
#[repr(C)]
pub struct TdObject {
    c: UnsafeCell<Td>,
    context: *mut Context,
    users: Users,
}

// SAFETY: as for protection domains.
unsafe impl Sync for TdObject {}
// SAFETY: as for protection domains.
unsafe impl Send for TdObject {}

rkey_kit::object!(TdObject, c: Td, 1 << 16);

/// `ibv_alloc_td`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn alloc_td(context: *mut Context, attr: *mut TdInitAttr) -> *mut Td {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let attr = unsafe {
            find::<ContextObject>(context)?;
            input(attr)?
        };
        if attr.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        insert(TdObject {
            c: UnsafeCell::new(Td { context }),
            context,
            users: Users::default(),
        })
    })
}

/// `ibv_dealloc_td`.
///
/// # Safety
/// No other thread may use the domain.
pub unsafe extern "C" fn dealloc_td(td: *mut Td) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<TdObject>(td)? }.users.none()?;
        // SAFETY: unused, as the caller guarantees.
        unsafe { remove::<TdObject>(td)? };
        Ok(0)
    })
}

/// Destroys the remaining protection domains and thread domains of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in PdObject::pool().live(|pd| pd.context == context) {
            if let Ok(pd) = remove::<PdObject>(object.cast())
                && matches!(pd.kind, Kind::Own)
                && let Ok(context) = pd.context()
                && let Err(error) = context.device().close_domain(pd.domain)
            {
                tracing::debug!(%error, "cannot deallocate protection {} of a closing context", pd.domain);
            }
        }
        for object in TdObject::pool().live(|td| td.context == context) {
            let _gone = remove::<TdObject>(object.cast());
        }
    }
}

//! Protection domains, parent domains and thread domains.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::context::ContextObject;
use crate::errno;
use crate::object::{Object, Users, find, find_or_null, handle_of, input, place, remove};
use crate::sys::{Context, ParentDomainInitAttr, Pd, Td, TdInitAttr};
use rkey_device::core::DomainId;
use rkey_kit::{Errno, Pool, fence};
use std::cell::UnsafeCell;
use std::ffi::c_int;

/// What a protection domain is for the device.
enum Kind {
    /// A domain of its own.
    Own,
    /// The domain of another one (parent domains), which has to stay.
    Parent { of: *mut Pd, thread: *mut Td },
    /// The domain of another context's.
    Imported,
}

/// A protection domain, as a program sees it.
#[repr(C)]
pub struct PdObject {
    c: UnsafeCell<Pd>,
    /// The context.
    pub context: *mut Context,
    /// The domain of the device.
    pub domain: DomainId,
    kind: Kind,
    /// Queue pairs and other objects that use it. Regions and windows are counted by the device.
    pub users: Users,
}

// SAFETY: addresses of objects, which are checked before use; the structure that programs read is
// written only while it is made.
unsafe impl Sync for PdObject {}
// SAFETY: as above.
unsafe impl Send for PdObject {}

static PDS: Pool<PdObject> = Pool::new(1 << 16);

// SAFETY: the structure is at the start.
unsafe impl Object for PdObject {
    type C = Pd;
    fn pool() -> &'static Pool<Self> {
        &PDS
    }
}

impl PdObject {
    /// The context.
    ///
    /// # Errors
    /// `EINVAL`: it is closed.
    #[inline]
    pub fn context(&self) -> Result<&ContextObject, Errno> {
        // SAFETY: contexts take their protection domains with them when they are closed.
        unsafe { find(self.context) }
    }
}

fn new_pd(context: *mut Context, domain: DomainId, kind: Kind) -> Result<*mut Pd, Errno> {
    let c = UnsafeCell::new(Pd {
        context,
        handle: domain.0,
    });
    place(PdObject {
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
/// A context, or anything else.
pub unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
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
/// Nobody uses it.
pub unsafe extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    fence(|| {
        // SAFETY: a protection domain as the caller promises, or something that is refused.
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
        // SAFETY: nobody uses it.
        unsafe { remove::<PdObject>(pd)? };
        Ok(0)
    })
}

fn release_parent(of: *mut Pd, thread: *mut Td) {
    // SAFETY: both were held by the parent domain, so they are live unless the context is closed.
    unsafe {
        if let Ok(pd) = find::<PdObject>(of) {
            pd.users.remove();
        }
        if let Ok(Some(thread)) = find_or_null::<TdObject>(thread) {
            thread.users.remove();
        }
    }
}

/// `ibv_alloc_parent_domain`. Thread domains and allocators are hints that this device has no use for:
/// it is safe for threads, and allocates nothing that a device reads.
///
/// # Safety
/// A context, and attributes.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut Context,
    attr: *mut ParentDomainInitAttr,
) -> *mut Pd {
    const KNOWN: u32 = 3;
    fence(|| {
        // SAFETY: as the caller promises, or refused.
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

/// `ibv_import_pd`: the same domain under another context of the device.
///
/// # Safety
/// A context, or anything else.
pub unsafe extern "C" fn import_pd(context: *mut Context, handle: u32) -> *mut Pd {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        let object = unsafe { find::<ContextObject>(context)? };
        let same = |pd: &PdObject| {
            pd.domain.0 == handle && pd.context().is_ok_and(|c| c.device().is(object.device()))
        };
        let domain = PDS
            .find_map(|pd| same(pd).then_some(pd.domain))
            .ok_or(Errno::NOENT)?;
        new_pd(context, domain, Kind::Imported)
    })
}

/// `ibv_unimport_pd`. As long as something uses the handle it stays, which the call cannot say: it has no result.
///
/// # Safety
/// Nobody uses it.
pub unsafe extern "C" fn unimport_pd(pd: *mut Pd) {
    fence(|| {
        // SAFETY: a protection domain as the caller promises, or something that is refused.
        let object = unsafe { find::<PdObject>(pd)? };
        if matches!(object.kind, Kind::Imported) {
            object.users.none().inspect_err(|_| {
                tracing::warn!("ibv_unimport_pd: objects still use the protection domain");
            })?;
            // SAFETY: nobody uses it.
            unsafe { remove::<PdObject>(pd)? };
        }
        Ok(())
    });
}

/// A thread domain: a promise of the program's that nothing follows from.
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

static TDS: Pool<TdObject> = Pool::new(1 << 16);

// SAFETY: the structure is at the start.
unsafe impl Object for TdObject {
    type C = Td;
    fn pool() -> &'static Pool<Self> {
        &TDS
    }
}

/// `ibv_alloc_td`.
///
/// # Safety
/// A context, and attributes.
pub unsafe extern "C" fn alloc_td(context: *mut Context, attr: *mut TdInitAttr) -> *mut Td {
    fence(|| {
        // SAFETY: as the caller promises, or refused.
        let attr = unsafe {
            find::<ContextObject>(context)?;
            input(attr)?
        };
        if attr.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        place(TdObject {
            c: UnsafeCell::new(Td { context }),
            context,
            users: Users::default(),
        })
    })
}

/// `ibv_dealloc_td`.
///
/// # Safety
/// Nobody uses it.
pub unsafe extern "C" fn dealloc_td(td: *mut Td) -> c_int {
    fence(|| {
        // SAFETY: a thread domain as the caller promises, or something that is refused.
        unsafe { find::<TdObject>(td)? }.users.none()?;
        // SAFETY: nobody uses it.
        unsafe { remove::<TdObject>(td)? };
        Ok(0)
    })
}

/// Ends what a context that is closed leaves.
///
/// # Safety
/// Nobody uses anything of the context.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: nobody uses the objects, as the caller promises.
    unsafe {
        for object in PDS.live(|pd| pd.context == context) {
            if let Ok(pd) = remove::<PdObject>(object.cast())
                && matches!(pd.kind, Kind::Own)
                && let Ok(context) = pd.context()
                && let Err(error) = context.device().close_domain(pd.domain)
            {
                tracing::debug!(%error, "closing a protection domain with its context");
            }
        }
        for object in TDS.live(|td| td.context == context) {
            let _gone = remove::<TdObject>(object.cast());
        }
    }
}

//! Memory windows.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::context::ContextObject;
use crate::memory::pd::PdObject;
use crate::object::{Object, find, insert, remove};
use crate::sys::consts::*;
use crate::sys::{Context, Mr, Mw, MwBindInfo, Pd};
use crate::translate::{errno, flags};
use rkey_device::base::VaRange;
use rkey_device::core::{Key, LKey, Rules, WindowId, WindowKind};
use rkey_device::engine::Work;
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::c_int;

/// A window, as the program sees it.
#[repr(C)]
pub struct MwObject {
    c: UnsafeCell<Mw>,
    /// The device's window.
    pub window: WindowId,
}

// SAFETY: the program reads and writes the structure, and makes one call at a time for one window.
unsafe impl Sync for MwObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for MwObject {}

rkey_kit::object!(MwObject, c: Mw, 1 << 16);

impl MwObject {
    /// The C structure that the program reads.
    #[must_use]
    pub fn c(&self) -> *mut Mw {
        self.c.get()
    }

    pub(crate) fn context(&self) -> Result<&ContextObject, Errno> {
        // SAFETY: a context outlives its windows.
        unsafe { find((*self.c()).context) }
    }
}

/// `ibv_alloc_mw`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn alloc_mw(pd: *mut Pd, mw_type: c_int) -> *mut Mw {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<PdObject>(pd)? };
        let kind = match mw_type {
            MW_TYPE_1 => WindowKind::Type1,
            MW_TYPE_2 => WindowKind::Type2B,
            _ => return Err(Errno::INVAL),
        };
        let device = object.context()?.device();
        let window = device
            .create_window(object.domain, kind)
            .map_err(errno::from)?;
        let c = Mw {
            context: object.context,
            pd,
            rkey: window.key.0,
            handle: window.key.0,
            mw_type,
        };
        insert(MwObject {
            c: UnsafeCell::new(c),
            window: window.id,
        })
        .inspect_err(|_| {
            let _ = device.deallocate_window(window.id);
        })
    })
}

/// `ibv_dealloc_mw`. Unbinds the window first.
///
/// # Safety
/// No other thread may use the window.
pub unsafe extern "C" fn dealloc_mw(mw: *mut Mw) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<MwObject>(mw)? };
        object
            .context()?
            .device()
            .deallocate_window(object.window)
            .map_err(errno::from)?;
        // SAFETY: unused, as the caller guarantees.
        unsafe { remove::<MwObject>(mw)? };
        Ok(0)
    })
}

/// The work request for a bind. `key` is the new key, which the program chooses for a window of type 2, and the device for one of
/// type 1. No key is needed to unbind a window of type 1.
///
/// # Errors
/// `EINVAL`: no such window or region, invalid flags or range.
///
/// # Safety
/// No other thread deregisters the region during the call.
pub unsafe fn bind_work(
    window: &MwObject,
    info: &MwBindInfo,
    key: Option<u32>,
) -> Result<Work, Errno> {
    let (access, zero_based) = flags::window_flags(info.mw_access_flags)?;
    let range = VaRange::new(info.addr, info.length).ok_or(Errno::INVAL)?;
    let region = if info.mr.is_null() {
        if info.length != 0 {
            return Err(Errno::INVAL);
        }
        LKey(0)
    } else {
        // SAFETY: `find` validates the handle.
        let mr = unsafe { find::<crate::memory::mr::MrObject>(info.mr.cast_const().cast::<Mr>())? };
        // SAFETY: the region is live.
        LKey(unsafe { (*mr.c()).lkey })
    };
    Ok(Work::Bind {
        window: window.window,
        region,
        range,
        access,
        zero_based,
        key: key.map(Key),
        rules: Rules::VERBS,
    })
}

/// Destroys the remaining windows of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in MwObject::pool().live(|mw| (*mw.c()).context == context) {
            if let Ok(mw) = remove::<MwObject>(object.cast())
                && let Ok(context) = mw.context()
                && let Err(error) = context.device().deallocate_window(mw.window)
            {
                tracing::debug!(%error, "cannot deallocate {} of a closing context", mw.window);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::devices;
    use crate::memory::pd;
    use crate::tables::context;

    #[test]
    fn a_window_that_gets_no_handle_is_deallocated() {
        // SAFETY: the device is ours, and every object is live while it is used; the zeroed window has no
        // context.
        unsafe {
            let context = context::open_device(devices::the_device());
            let pd = pd::alloc_pd(context);
            let last = alloc_mw(pd, MW_TYPE_1);
            assert!(!last.is_null());
            let id = find::<MwObject>(last).unwrap().window;
            let fake = || MwObject {
                c: UnsafeCell::new(std::mem::zeroed()),
                window: id,
            };
            while MwObject::pool().put(fake()).is_some() {}
            assert!(alloc_mw(pd, MW_TYPE_1).is_null());
            assert_eq!(Errno::last(), Errno::NOMEM);
            assert_eq!(dealloc_mw(last), 0);
            assert_eq!(pd::dealloc_pd(pd), 0, "the domain has no window left");
        }
    }
}

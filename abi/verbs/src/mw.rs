//! Memory windows.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::context::ContextObject;
use crate::object::{Object, find, input, insert, remove};
use crate::pd::PdObject;
use crate::qp::QpObject;
use crate::sys::consts::*;
use crate::sys::{Context, Mr, Mw, MwBind, MwBindInfo, Pd, Qp};
use crate::{errno, flags};
use rkey_device::base::VaRange;
use rkey_device::core::{Key, LKey, Rules, WindowId, WindowKind};
use rkey_device::engine::{SendRequest, Work};
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

    fn context(&self) -> Result<&ContextObject, Errno> {
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
        let mr = unsafe { find::<crate::mr::MrObject>(info.mr.cast_const().cast::<Mr>())? };
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

/// `ibv_bind_mw`, for windows of type 1. The structure has the new key when this returns; the key becomes valid when
/// the bind completes.
///
/// # Safety
/// No other thread may use the window; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn bind_mw(qp: *mut Qp, mw: *mut Mw, bind: *mut MwBind) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handles; `input` refuses null; the caller guarantees the rest.
        let (qp, window, bind) =
            unsafe { (find::<QpObject>(qp)?, find::<MwObject>(mw)?, input(bind)?) };
        // SAFETY: the window is live.
        if unsafe { (*window.c()).mw_type } != MW_TYPE_1 {
            return Err(Errno::INVAL);
        }
        // The inline function in the header checks this as well.
        let info = &bind.bind_info;
        if info.mr.is_null() && info.addr != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the window is live; `find` validates the region.
        let strange = unsafe {
            let pd = (*window.c()).pd;
            !info.mr.is_null() && (*find::<crate::mr::MrObject>(info.mr)?.c()).pd != pd
        };
        if strange {
            return Err(Errno::PERM);
        }
        let device = window.context()?.device();
        let flags = flags::send_flags(bind.send_flags & !SEND_INLINE)?;
        // A bind of zero bytes unbinds the window, and needs no key.
        let binds = bind.bind_info.length != 0;
        let key = if binds {
            Some(
                device
                    .reserve_window_key(window.window)
                    .map_err(errno::from)?,
            )
        } else {
            None
        };
        let new = key.as_ref().map(|key| key.key().0);
        // SAFETY: guaranteed by the caller.
        let work = unsafe { bind_work(window, &bind.bind_info, new)? };
        let request = SendRequest {
            flags,
            ..SendRequest::new(bind.wr_id, work, &[])
        };
        qp.qp.post_send(&request).map_err(errno::from)?;
        if let Some(key) = key {
            // SAFETY: only this thread uses the window.
            unsafe { (*window.c()).rkey = key.key().0 };
            key.posted();
        }
        Ok(0)
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
    use crate::tables::context;
    use crate::{device, pd};

    #[test]
    fn a_window_that_gets_no_handle_is_deallocated() {
        // SAFETY: the device is ours, and every object is live while it is used; the zeroed window has no
        // context.
        unsafe {
            let context = context::open_device(device::the_device());
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

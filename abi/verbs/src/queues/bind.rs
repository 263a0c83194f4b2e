//! `ibv_bind_mw`: binding a memory window of type 1 through a queue pair. Windows of type 2 are bound by work requests.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::memory::mr::MrObject;
use crate::memory::mw::{MwObject, bind_work};
use crate::object::{find, input};
use crate::queues::qp::QpObject;
use crate::sys::consts::*;
use crate::sys::{Mw, MwBind, Qp};
use crate::translate::{errno, flags};
use rkey_device::engine::SendRequest;
use rkey_kit::{Errno, c_call};
use std::ffi::c_int;

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
            !info.mr.is_null() && (*find::<MrObject>(info.mr)?.c()).pd != pd
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

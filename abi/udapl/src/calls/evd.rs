//! The calls on EVDs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::{find, find_or_null, insert, remove};
use crate::objects::cno::Cno;
use crate::objects::evd::Evd;
use crate::objects::ia::Ia;
use crate::sys::consts::*;
use crate::sys::{CnoHandle, EvdHandle, EvdParam, Event, IaHandle, Return, Timeout};
use crate::values::event::{notifying, software};
use crate::values::limits::MAX_EVD_QLEN;
use std::sync::Arc;

const FLAGS: dat_evd_flags = EVD_SOFTWARE_FLAG | EVD_DEFAULT_FLAG | EVD_EXTENSION_BASE;

/// Creates an EVD and returns its handle.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`, `DAT_INSUFFICIENT_RESOURCES`.
pub fn make(
    ia: &Arc<Ia>,
    qlen: Count,
    cno: Option<&Arc<Cno>>,
    flags: dat_evd_flags,
) -> Result<EvdHandle> {
    let qlen = u32::try_from(qlen).map_err(|_| Fail::argument(2))?;
    if qlen == 0 {
        return Err(Fail::argument(2));
    }
    if qlen > MAX_EVD_QLEN {
        return Err(Fail::resource(RESOURCE_TEVD));
    }
    if flags == 0 || flags & !FLAGS != 0 {
        return Err(Fail::argument(4));
    }
    if cno.is_some_and(|cno| !Arc::ptr_eq(cno.ia(), ia)) {
        return Err(Fail::handle(INVALID_HANDLE_CNO));
    }
    let mut made = None;
    let handle = insert::<Evd>(ia.table, |handle| {
        let evd = Arc::new(Evd::new(ia, handle, qlen, flags, cno.cloned())?);
        made = Some(Arc::clone(&evd));
        Ok(evd)
    })?;
    if let Some(evd) = made {
        ia.add_evd(&evd);
        evd.arm();
    }
    Ok(handle)
}

/// `dat_evd_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    qlen: Count,
    cno: CnoHandle,
    flags: dat_evd_flags,
    evd: *mut EvdHandle,
) -> Return {
    call("dat_evd_create", || {
        // SAFETY: `find` validates the handles.
        let (ia, cno) = unsafe { (find::<Ia>(ia)?, find_or_null::<Cno>(cno)?) };
        argument::room(5, evd)?;
        let handle = make(ia, qlen, cno, flags)?;
        // SAFETY: room for a handle.
        unsafe { argument::store(5, evd, handle) }
    })
}

/// `dat_evd_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    evd: EvdHandle,
    mask: dat_evd_param_mask,
    param: *mut EvdParam,
) -> Return {
    call("dat_evd_query", || {
        // SAFETY: `find` validates the handle.
        let evd = unsafe { find::<Evd>(evd)? };
        argument::mask(2, mask.into(), EVD_FIELD_ALL.into())?;
        let (qlen, evd_state, cno) = evd.describe();
        let value = EvdParam {
            ia_handle: evd.ia().number(),
            evd_qlen: qlen as Count,
            evd_state,
            cno_handle: cno as CnoHandle,
            evd_flags: evd.flags,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_evd_modify_cno`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn modify_cno(evd: EvdHandle, cno: CnoHandle) -> Return {
    call("dat_evd_modify_cno", || {
        // SAFETY: `find` validates the handles.
        let (evd, cno) = unsafe { (find::<Evd>(evd)?, find_or_null::<Cno>(cno)?) };
        if cno.is_some_and(|cno| !Arc::ptr_eq(cno.ia(), evd.ia())) {
            return Err(Fail::handle(INVALID_HANDLE_CNO));
        }
        evd.set_cno(cno.cloned());
        Ok(())
    })
}

/// `dat_evd_enable`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn enable(evd: EvdHandle) -> Return {
    call("dat_evd_enable", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Evd>(evd)? }.enable(true);
        Ok(())
    })
}

/// `dat_evd_disable`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn disable(evd: EvdHandle) -> Return {
    call("dat_evd_disable", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Evd>(evd)? }.enable(false);
        Ok(())
    })
}

/// `dat_evd_set_unwaitable`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn set_unwaitable(evd: EvdHandle) -> Return {
    call("dat_evd_set_unwaitable", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Evd>(evd)? }.set_waitable(false);
        Ok(())
    })
}

/// `dat_evd_clear_unwaitable`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn clear_unwaitable(evd: EvdHandle) -> Return {
    call("dat_evd_clear_unwaitable", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Evd>(evd)? }.set_waitable(true);
        Ok(())
    })
}

/// `dat_evd_wait`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn wait(
    evd: EvdHandle,
    timeout: Timeout,
    threshold: Count,
    event: *mut Event,
    more: *mut Count,
) -> Return {
    call("dat_evd_wait", || {
        // The EVD may be freed during the wait, so the wait needs its own reference.
        // SAFETY: `find` validates the handle.
        let evd = Arc::clone(unsafe { find::<Evd>(evd)? });
        let threshold = argument::count(3, threshold)?;
        if threshold == 0 || threshold > evd.describe().0 {
            return Err(Fail::argument(3));
        }
        argument::room(4, event)?;
        argument::room(5, more)?;
        let (taken, left) = evd.wait(timeout, threshold)?;
        // SAFETY: room for both.
        unsafe {
            argument::store(4, event, taken)?;
            argument::store(5, more, left as Count)
        }
    })
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn dequeue(evd: EvdHandle, event: *mut Event) -> Return {
    call("dat_evd_dequeue", || {
        // SAFETY: `find` validates the handle.
        let evd = unsafe { find::<Evd>(evd)? };
        argument::room(2, event)?;
        let taken = evd.dequeue()?;
        // SAFETY: room for an event.
        unsafe { argument::store(2, event, taken) }
    })
}

/// `dat_evd_resize`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn resize(evd: EvdHandle, qlen: Count) -> Return {
    call("dat_evd_resize", || {
        // SAFETY: `find` validates the handle.
        let evd = unsafe { find::<Evd>(evd)? };
        let qlen = argument::count(2, qlen)?;
        match qlen {
            0 => Err(Fail::argument(2)),
            qlen if qlen > MAX_EVD_QLEN => Err(Fail::resource(RESOURCE_TEVD)),
            qlen => evd.resize(qlen),
        }
    })
}

/// `dat_evd_post_se`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn post_se(evd: EvdHandle, event: *const Event) -> Return {
    call("dat_evd_post_se", || {
        // SAFETY: `find` validates the handle; the caller promises the event.
        let (evd, event) = unsafe { (find::<Evd>(evd)?, argument::input(2, event)?) };
        if evd.flags & EVD_SOFTWARE_FLAG == 0 || event.event_number != SOFTWARE_EVENT {
            return Err(Fail::argument(2));
        }
        evd.push_software(notifying(software(event)))
    })
}

/// `dat_evd_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(evd: EvdHandle) -> Return {
    call("dat_evd_free", || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<Evd>(evd)? };
        if !object.users.is_empty() || object.ia().is_async_evd(object) {
            return Err(Fail::state(INVALID_STATE_EVD_IN_USE));
        }
        if object.is_waited_for() {
            return Err(Fail::state(INVALID_STATE_EVD_WAITER));
        }
        // SAFETY: the last use of the handle.
        unsafe { remove::<Evd>(evd as usize)? }.close();
        Ok(())
    })
}

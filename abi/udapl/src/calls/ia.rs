//! The calls on IAs, and those on handles of any kind.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::calls::ia_attr;
use crate::handles::argument;
use crate::handles::entries;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::{Held, Kind, Table, any, context_of, find, insert, remove, sweep};
use crate::objects::cno::Cno;
use crate::objects::cr::Cr;
use crate::objects::describe::describe;
use crate::objects::ep::Ep;
use crate::objects::evd::Evd;
use crate::objects::ia::Ia;
use crate::objects::lmr::Lmr;
use crate::objects::pz::Pz;
use crate::objects::rmr::Rmr;
use crate::objects::service::{Psp, Rsp};
use crate::objects::srq::Srq;
use crate::sys::consts::*;
use crate::sys::{
    Context, EVD_ASYNC_EXISTS, EVD_OUT_OF_SCOPE, EvdHandle, Handle, IA_FIELD_ALL, IaAttr,
    IaAttrMask, IaHandle, NamePtr, PROVIDER_FIELD_ALL, ProviderAttr, ProviderAttrMask, Return,
};
use crate::values::ep_state::Step;
use rkey_kit::Object;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opens an IA.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`, `DAT_PROVIDER_NOT_FOUND`, `DAT_INSUFFICIENT_RESOURCES`, `DAT_INTERNAL_ERROR`.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn make(name: NamePtr) -> Result<(IaHandle, Arc<Ia>)> {
    if name.is_null() {
        return Err(Fail::argument(1));
    }
    // SAFETY: a C string, as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    let entry = entries::find(name).ok_or(Fail::new(PROVIDER_NOT_FOUND, NO_SUBTYPE))?;
    let mut made = None;
    let handle = insert::<Ia>(Table(entry.table()), |handle| {
        let ia = Ia::open(Table(entry.table()), handle, &entry.parameters(), describe)?;
        made = Some(Arc::clone(&ia));
        Ok(ia)
    })?;
    Ok((handle, made.ok_or(Fail::INTERNAL)?))
}

/// `dat_ia_open`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn open(
    name: NamePtr,
    async_qlen: Count,
    async_evd: *mut EvdHandle,
    ia: *mut IaHandle,
) -> Return {
    call("dat_ia_open", || {
        argument::room(4, ia)?;
        // SAFETY: the caller promises the handle.
        let given = unsafe { *argument::input(3, async_evd.cast_const())? };
        // SAFETY: the caller promises the name.
        let (handle, made) = unsafe { make(name)? };
        // SAFETY: the caller promises the handle.
        match unsafe { choose_async_evd(&made, async_qlen, given) } {
            Ok(evd) => {
                // SAFETY: room for both.
                unsafe {
                    argument::store(3, async_evd, evd)?;
                    argument::store(4, ia, handle)
                }
            }
            Err(fail) => {
                close_all(&made, handle as usize);
                Err(fail)
            }
        }
    })
}

/// The EVD for asynchronous errors: a new one, an existing one, or none.
///
/// # Safety
/// No other thread frees the EVD during the call.
unsafe fn choose_async_evd(ia: &Arc<Ia>, qlen: Count, given: EvdHandle) -> Result<EvdHandle> {
    if given as usize == EVD_ASYNC_EXISTS {
        return Ok(given);
    }
    if !given.is_null() {
        let fail = Fail::handle(INVALID_HANDLE_EVD_ASYNC);
        // SAFETY: `find` validates the handle.
        let evd = unsafe { find::<Evd>(given) }.map_err(|_| fail)?;
        if evd.flags & EVD_ASYNC_FLAG == 0 {
            return Err(fail);
        }
        ia.set_async_evd(Some(Arc::clone(evd)));
        return Ok(given);
    }
    let handle = crate::calls::evd::make(ia, qlen, None, EVD_ASYNC_FLAG)?;
    // SAFETY: it was created just above.
    let evd = unsafe { find::<Evd>(handle)? };
    ia.set_async_evd(Some(Arc::clone(evd)));
    Ok(handle)
}

/// `dat_ia_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    ia: IaHandle,
    async_evd: *mut EvdHandle,
    ia_mask: IaAttrMask,
    ia_attr: *mut IaAttr,
    provider_mask: ProviderAttrMask,
    provider_attr: *mut ProviderAttr,
) -> Return {
    call("dat_ia_query", || {
        // SAFETY: `find` validates the handle.
        let ia = unsafe { find::<Ia>(ia)? };
        argument::mask(3, ia_mask, IA_FIELD_ALL)?;
        argument::mask(5, provider_mask, PROVIDER_FIELD_ALL)?;
        let evd = ia
            .async_evd()
            .map_or(EVD_OUT_OF_SCOPE as EvdHandle, |evd| evd.handle as EvdHandle);
        // SAFETY: the caller promises that there is room.
        unsafe {
            argument::store_if(2, async_evd, evd)?;
            if ia_mask != 0 {
                argument::store(4, ia_attr, ia_attr::of_ia(ia))?;
            }
            if provider_mask != 0 {
                argument::store(6, provider_attr, ia_attr::of_provider())?;
            }
        }
        Ok(())
    })
}

/// `dat_ia_close`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn close(ia: IaHandle, flags: dat_close_flags) -> Return {
    call("dat_ia_close", || {
        // SAFETY: `find` validates the handle.
        let object = Arc::clone(unsafe { find::<Ia>(ia)? });
        match flags {
            CLOSE_ABRUPT_FLAG => {}
            CLOSE_GRACEFUL_FLAG if has_objects(&object) => {
                return Err(Fail::state(INVALID_STATE_IA_IN_USE));
            }
            CLOSE_GRACEFUL_FLAG => {}
            _ => return Err(Fail::argument(2)),
        }
        close_all(&object, ia as usize);
        Ok(())
    })
}

/// Whether an IA has objects, apart from its own EVD.
fn has_objects(ia: &Arc<Ia>) -> bool {
    let here = |other: &Arc<Ia>| Arc::ptr_eq(other, ia);
    let own = |evd: &Evd| ia.async_evd().is_some_and(|own| own.handle == evd.handle);
    any::<Pz>(|it| here(it.ia()))
        || any::<Evd>(|it| here(it.ia()) && !own(it))
        || any::<Cno>(|it| here(it.ia()))
        || any::<Ep>(|it| here(it.ia()))
        || any::<Psp>(|it| here(it.0.ia()))
        || any::<Rsp>(|it| here(it.ia()))
        || any::<Cr>(|it| here(it.ia()))
}

/// Closes an IA with all its objects, each object before those that it uses.
pub fn close_all(ia: &Arc<Ia>, handle: usize) {
    let here = |other: &Arc<Ia>| Arc::ptr_eq(other, ia);
    ia.set_async_evd(None);
    ia.hide();
    // SAFETY: the program makes no further call with the IA or its objects.
    unsafe {
        for rsp in sweep::<Rsp>(|it| here(it.ia())) {
            rsp.close();
        }
        for psp in sweep::<Psp>(|it| here(it.0.ia())) {
            psp.0.close();
        }
        for cr in sweep::<Cr>(|it| here(it.ia())) {
            cr.reject(&[]);
        }
        for ep in sweep::<Ep>(|it| here(it.ia())) {
            ep.end(Step::DisconnectAbruptly, None);
            ep.close();
        }
        for srq in sweep::<Srq>(|it| here(it.pz.ia())) {
            srq.close();
        }
        let mut failed = Vec::new();
        for rmr in sweep::<Rmr>(|it| here(it.pz.ia())) {
            failed.extend(rmr.close().err());
        }
        for lmr in sweep::<Lmr>(|it| here(it.pz.ia())) {
            failed.extend(lmr.close().err());
        }
        let evds = sweep::<Evd>(|it| here(it.ia()));
        let cnos = sweep::<Cno>(|it| here(it.ia()));
        // End all waits first: closing waits for CNOs' agents, and an agent may itself be waiting.
        for evd in &evds {
            evd.abort_wait();
        }
        for cno in &cnos {
            cno.abort_waits();
        }
        for evd in evds {
            evd.close();
        }
        for cno in cnos {
            cno.close();
        }
        for pz in sweep::<Pz>(|it| here(it.ia())) {
            failed.extend(pz.close().err());
        }
        if let Some(fail) = failed.first() {
            tracing::debug!(%fail, "cannot close an object of a closed IA");
        }
    }
    ia.worker().stop();
    // SAFETY: the last use of the handle.
    drop(unsafe { remove::<Ia>(handle) });
}

/// The context of a handle of any kind.
fn context(handle: Handle) -> Result<(dat_handle_type, &'static AtomicU64)> {
    fn of<T: Kind>(handle: Handle) -> Option<(dat_handle_type, &'static AtomicU64)>
    where
        Held<T>: Object,
    {
        context_of::<T>(handle)
    }
    let kinds = [
        of::<Ep>, of::<Evd>, of::<Lmr>, of::<Rmr>, of::<Pz>, of::<Ia>, of::<Cno>, of::<Psp>,
        of::<Rsp>, of::<Cr>, of::<Srq>,
    ];
    let found = kinds.iter().find_map(|kind| kind(handle));
    found.ok_or(Fail::handle(INVALID_HANDLE1))
}

/// `dat_set_consumer_context`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn set_context(handle: Handle, value: Context) -> Return {
    call("dat_set_consumer_context", || {
        let (_, context) = context(handle)?;
        context.store(crate::values::event::bits(value), Ordering::Release);
        Ok(())
    })
}

/// `dat_get_consumer_context`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn get_context(handle: Handle, value: *mut Context) -> Return {
    call("dat_get_consumer_context", || {
        let (_, context) = context(handle)?;
        let as_64 = context.load(Ordering::Acquire);
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(2, value, Context { as_64 }) }
    })
}

/// `dat_get_handle_type`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn get_type(handle: Handle, kind: *mut dat_handle_type) -> Return {
    call("dat_get_handle_type", || {
        let (found, _) = context(handle)?;
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(2, kind, found) }
    })
}

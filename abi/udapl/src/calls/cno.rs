//! The calls on CNOs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, call};
use crate::handles::object::{find, insert, remove};
use crate::objects::cno::Cno;
use crate::objects::ia::Ia;
use crate::sys::consts::*;
use crate::sys::{
    CnoHandle, CnoParam, CnoProxy, EvdHandle, IaHandle, OsWaitProxyAgent, Return, Timeout,
};
use std::ptr::null_mut;
use std::sync::Arc;

/// `dat_cno_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    agent: OsWaitProxyAgent,
    cno: *mut CnoHandle,
) -> Return {
    call("dat_cno_create", || {
        // SAFETY: `find` validates the handle.
        let ia = unsafe { find::<Ia>(ia)? };
        argument::room(3, cno)?;
        let handle = insert::<Cno>(ia.table, |handle| Ok(Arc::new(Cno::new(ia, handle, agent))))?;
        // SAFETY: room for a handle.
        unsafe { argument::store(3, cno, handle) }
    })
}

/// `dat_cno_modify_agent`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn modify_agent(cno: CnoHandle, agent: OsWaitProxyAgent) -> Return {
    call("dat_cno_modify_agent", || {
        // SAFETY: `find` validates the handle.
        let cno = Arc::clone(unsafe { find::<Cno>(cno)? });
        cno.set_agent(agent);
        cno.wait_for_agent(None);
        Ok(())
    })
}

/// `dat_cno_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    cno: CnoHandle,
    mask: dat_cno_param_mask,
    param: *mut CnoParam,
) -> Return {
    call("dat_cno_query", || {
        // SAFETY: `find` validates the handle.
        let cno = unsafe { find::<Cno>(cno)? };
        // The header's value for "all" is the bit after the others.
        argument::mask(
            2,
            mask.into(),
            u64::from(CNO_FIELD_ALL | (CNO_FIELD_ALL - 1)),
        )?;
        let agent = cno.agent();
        let (proxy_type, proxy) = match agent.proxy_agent_func {
            Some(_) => (PROXY_TYPE_AGENT, CnoProxy { agent }),
            None => {
                let mut proxy = CnoProxy { agent };
                proxy.none = null_mut();
                (PROXY_TYPE_NONE, proxy)
            }
        };
        let value = CnoParam {
            ia_handle: cno.ia().number(),
            proxy_type,
            proxy,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_cno_wait`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn wait(cno: CnoHandle, timeout: Timeout, evd: *mut EvdHandle) -> Return {
    call("dat_cno_wait", || {
        // SAFETY: `find` validates the handle.
        let cno = Arc::clone(unsafe { find::<Cno>(cno)? });
        argument::room(3, evd)?;
        // SAFETY: room for a handle.
        unsafe { argument::store(3, evd, null_mut()) }?;
        let found = cno.wait(timeout)?;
        // SAFETY: as above.
        unsafe { argument::store(3, evd, found as EvdHandle) }
    })
}

/// `dat_cno_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(cno: CnoHandle) -> Return {
    call("dat_cno_free", || {
        // SAFETY: `find` validates the handle.
        let object = Arc::clone(unsafe { find::<Cno>(cno)? });
        if !object.users.is_empty() || object.has_waiters() {
            return Err(Fail::state(INVALID_STATE_CNO_IN_USE));
        }
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cno>(cno as usize)? }.close();
        Ok(())
    })
}

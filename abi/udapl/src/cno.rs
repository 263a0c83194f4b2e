//! CNOs (consumer notification objects): several EVDs wake one waiter, or call one agent.

#![allow(unsafe_code)]
// UNSAFETY: C functions; calls the program's agent.

use crate::argument;
use crate::fail::{Fail, Result, call};
use crate::ia::Ia;
use crate::object::{find, insert, remove};
use crate::sys::consts::*;
use crate::sys::{
    CnoHandle, CnoParam, CnoProxy, EvdHandle, IaHandle, OsWaitProxyAgent, Return, Timeout,
};
use crate::worker::Job;
use parking_lot::{Condvar, Mutex};
use rkey_device::time;
use rkey_kit::object::Users;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;

/// A CNO.
pub struct Cno {
    ia: Arc<Ia>,
    /// Its handle.
    pub handle: usize,
    state: Mutex<State>,
    triggered: Condvar,
    /// The EVDs that notify the CNO.
    pub users: Users,
}

struct State {
    agent: Agent,
    /// The EVDs that have triggered the CNO, oldest first, each once.
    evds: VecDeque<usize>,
    waiters: u32,
    freed: bool,
}

/// A function of the program.
#[derive(Clone, Copy)]
struct Agent(OsWaitProxyAgent);
// SAFETY: the program promises that any thread may call it, by passing it to `dat_cno_create`.
unsafe impl Send for Agent {}

crate::kind!(
    Cno,
    HANDLE_TYPE_CNO,
    INVALID_HANDLE_CNO,
    RESOURCE_MEMORY,
    1 << 14
);

impl Cno {
    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        &self.ia
    }

    /// Records that an EVD has a notification. Wakes a waiter, and has the worker call the agent.
    pub fn trigger(self: &Arc<Self>, evd: usize) {
        let mut state = self.state.lock();
        if !state.evds.contains(&evd) {
            state.evds.push_back(evd);
        }
        self.triggered.notify_one();
        if state.agent.0.proxy_agent_func.is_some() {
            let cno = Arc::clone(self);
            self.ia.worker().add(Job::Notify { cno, evd });
        }
    }

    /// Calls the agent for an EVD. The caller holds no lock: the agent may make any call.
    pub fn call_agent(&self, evd: usize) {
        let agent = {
            let state = self.state.lock();
            state.agent.0
        };
        if let Some(function) = agent.proxy_agent_func {
            // SAFETY: the program gave us the function for this.
            unsafe { function(agent.instance_data, evd as EvdHandle) };
        }
    }

    /// Records that an EVD is freed, or will notify another CNO.
    pub fn forget(&self, evd: usize) {
        self.state.lock().evds.retain(|&other| other != evd);
    }

    /// Waits for an EVD.
    ///
    /// # Errors
    /// `DAT_TIMEOUT_EXPIRED`, `DAT_INVALID_STATE` (freed meanwhile).
    fn wait(&self, timeout: Timeout) -> Result<usize> {
        let deadline = crate::evd::deadline(timeout);
        let mut state = self.state.lock();
        state.waiters += 1;
        let result = loop {
            if let Some(evd) = state.evds.pop_front() {
                break Ok(evd);
            }
            if state.freed {
                break Err(Fail::state(INVALID_STATE_CNO_DEAD));
            }
            match deadline {
                None => self.triggered.wait(&mut state),
                Some(end) if time::now() >= end => break Err(Fail::TIMEOUT),
                Some(end) => {
                    self.triggered.wait_until(&mut state, end);
                }
            }
        };
        state.waiters -= 1;
        result
    }

    /// Ends the CNO and the waits for it.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.freed = true;
        self.triggered.notify_all();
    }
}

/// `dat_cno_create`.
///
/// # Safety
/// As the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    agent: OsWaitProxyAgent,
    cno: *mut CnoHandle,
) -> Return {
    call("dat_cno_create", || {
        // SAFETY: `find` validates the handle.
        let ia = unsafe { find::<Ia>(ia)? };
        argument::room(3, cno)?;
        let handle = insert::<Cno>(ia.table, |handle| {
            Ok(Arc::new(Cno {
                ia: Arc::clone(ia),
                handle,
                state: Mutex::new(State {
                    agent: Agent(agent),
                    evds: VecDeque::new(),
                    waiters: 0,
                    freed: false,
                }),
                triggered: Condvar::new(),
                users: Users::default(),
            }))
        })?;
        // SAFETY: room for a handle.
        unsafe { argument::store(3, cno, handle) }
    })
}

/// `dat_cno_modify_agent`.
///
/// # Safety
/// As the manual page.
pub unsafe extern "C" fn modify_agent(cno: CnoHandle, agent: OsWaitProxyAgent) -> Return {
    call("dat_cno_modify_agent", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Cno>(cno)? }.state.lock().agent = Agent(agent);
        Ok(())
    })
}

/// `dat_cno_query`.
///
/// # Safety
/// As the manual page.
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
        let agent = cno.state.lock().agent.0;
        let (proxy_type, proxy) = match agent.proxy_agent_func {
            Some(_) => (PROXY_TYPE_AGENT, CnoProxy { agent }),
            None => {
                let mut proxy = CnoProxy { agent };
                proxy.none = null_mut();
                (PROXY_TYPE_NONE, proxy)
            }
        };
        let value = CnoParam {
            ia_handle: cno.ia.number(),
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
/// As the manual page.
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
/// As the manual page.
pub unsafe extern "C" fn free(cno: CnoHandle) -> Return {
    call("dat_cno_free", || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<Cno>(cno)? };
        if !object.users.is_empty() || object.state.lock().waiters > 0 {
            return Err(Fail::state(INVALID_STATE_CNO_IN_USE));
        }
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cno>(cno as usize)? }.close();
        Ok(())
    })
}

//! CNOs (consumer notification objects): several EVDs wake one waiting thread, or call one agent.

#![allow(unsafe_code)]
// UNSAFETY: calls the program's agent.

use crate::handles::argument::deadline;
use crate::handles::fail::{Fail, Result};
use crate::objects::ia::Ia;
use crate::objects::job::Job;
use crate::sys::{EvdHandle, OsWaitProxyAgent, Timeout};
use parking_lot::{Condvar, Mutex};
use rkey_device::time;
use rkey_kit::object::Users;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// A CNO.
pub struct Cno {
    ia: Arc<Ia>,
    /// The handle of the CNO.
    pub handle: usize,
    state: Mutex<State>,
    triggered: Condvar,
    agent_returned: Condvar,
    /// The EVDs that notify the CNO.
    pub users: Users,
}

struct State {
    agent: Agent,
    /// The EVDs that have triggered the CNO, oldest first, each once.
    evds: VecDeque<usize>,
    waiters: u32,
    /// How many times the CNO has lost its last EVD.
    emptied: u64,
    freed: bool,
    /// The EVDs for which the worker has a job.
    queued: Vec<usize>,
    /// The EVD for which the agent is being called, and the calling thread.
    calling: Option<(usize, ThreadId)>,
}

/// The agent: a function of the program.
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
    /// A CNO that no EVD has triggered.
    #[must_use]
    pub fn new(ia: &Arc<Ia>, handle: usize, agent: OsWaitProxyAgent) -> Self {
        Self {
            ia: Arc::clone(ia),
            handle,
            state: Mutex::new(State {
                agent: Agent(agent),
                evds: VecDeque::new(),
                waiters: 0,
                emptied: 0,
                freed: false,
                queued: Vec::new(),
                calling: None,
            }),
            triggered: Condvar::new(),
            agent_returned: Condvar::new(),
            users: Users::default(),
        }
    }

    /// The agent.
    #[must_use]
    pub fn agent(&self) -> OsWaitProxyAgent {
        self.state.lock().agent.0
    }

    /// Replaces the agent.
    pub fn set_agent(self: &Arc<Self>, agent: OsWaitProxyAgent) {
        let mut state = self.state.lock();
        state.agent = Agent(agent);
        // The new agent is called for EVDs that no waiting thread has taken yet.
        for evd in state.evds.clone() {
            self.queue_call(&mut state, evd);
        }
    }

    /// Whether a thread waits for it.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.state.lock().waiters > 0
    }

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
        self.queue_call(&mut state, evd);
    }

    /// Has the worker call the agent, if there is one, unless that call is already queued.
    fn queue_call(self: &Arc<Self>, state: &mut State, evd: usize) {
        if state.agent.0.proxy_agent_func.is_some() && !state.queued.contains(&evd) {
            state.queued.push(evd);
            let cno = Arc::clone(self);
            self.ia.worker().add(Job::Notify { cno, evd });
        }
    }

    /// Calls the agent for an EVD that still has a notification. The caller holds no lock: the agent may make any call.
    pub fn call_agent(&self, evd: usize) {
        let agent = {
            let mut state = self.state.lock();
            state.queued.retain(|&other| other != evd);
            let place = state.evds.iter().position(|&other| other == evd);
            let Some(function) = state.agent.0.proxy_agent_func.filter(|_| !state.freed) else {
                return;
            };
            // If it is not in the list, the program has taken the events or freed the EVD.
            let Some(_) = place.and_then(|place| state.evds.remove(place)) else {
                return;
            };
            state.calling = Some((evd, thread::current().id()));
            (function, state.agent.0.instance_data)
        };
        let (function, instance_data) = agent;
        // SAFETY: the program gave us the function for this, and cannot replace it during the call: see `wait_for_agent`.
        unsafe { function(instance_data, evd as EvdHandle) };
        self.state.lock().calling = None;
        self.agent_returned.notify_all();
    }

    /// Waits until the agent is not running: for `evd`, or at all (`None`). Returns at once if the agent itself calls this.
    pub fn wait_for_agent(&self, evd: Option<usize>) {
        let own = thread::current().id();
        let mut state = self.state.lock();
        while let Some((current, thread)) = state.calling
            && thread != own
            && evd.is_none_or(|evd| evd == current)
        {
            self.agent_returned.wait(&mut state);
        }
    }

    /// Records that an EVD no longer has a notification.
    pub fn forget(&self, evd: usize) {
        self.state.lock().evds.retain(|&other| other != evd);
    }

    /// Records that an EVD is freed or will notify another CNO. If it was this CNO's last EVD, all waiting threads return.
    pub fn leave(&self, evd: usize) {
        let mut state = self.state.lock();
        state.evds.retain(|&other| other != evd);
        self.users.remove();
        if self.users.is_empty() {
            state.emptied += 1;
            self.triggered.notify_all();
        }
    }

    /// Waits for an EVD to trigger the CNO. Returns 0 (no handle) if the CNO loses all its EVDs in the meantime, or the
    /// IA is closed.
    ///
    /// # Errors
    /// `DAT_TIMEOUT_EXPIRED`.
    pub(crate) fn wait(&self, timeout: Timeout) -> Result<usize> {
        let deadline = deadline(timeout);
        let mut state = self.state.lock();
        let emptied = state.emptied;
        state.waiters += 1;
        let result = loop {
            if let Some(evd) = state.evds.pop_front() {
                break Ok(evd);
            }
            if state.freed || state.emptied != emptied {
                break Ok(0);
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

    /// Ends all waits for the CNO; its agent is not called again.
    pub fn abort_waits(&self) {
        self.state.lock().freed = true;
        self.triggered.notify_all();
    }

    /// Closes the CNO. When this returns, the agent has returned too, unless the agent itself made this call.
    pub fn close(&self) {
        self.abort_waits();
        self.wait_for_agent(None);
    }
}

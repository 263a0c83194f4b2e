//! EVDs (event dispatchers): the queues from which programs take all events.
//!
//! An EVD has its own queue, for events of connections and of the program, and may have a completion queue of the device,
//! for DTOs and binds. A program that dequeues takes the event at the front of the EVD's own queue; if that is empty, the
//! oldest completion becomes an event directly ([`Evd::dequeue`]). [`Evd::collect`] moves all completions to the EVD's
//! queue: before a wait, for the IA's worker, and before an EP ends. An EVD never loses an event: its queue grows beyond
//! the length that the program requested.
//!
//! Lock order: the state of an EP, then that of an EVD, then the lists of posted requests and the state of a CNO.

use crate::handles::fail::{Fail, Result};
use crate::objects::cno::Cno;
use crate::objects::ep::Ep;
use crate::objects::ia::Ia;
use crate::sys::consts::*;
use crate::values::event::Queued;
use parking_lot::Mutex;
use rkey_device::Cq;
use rkey_device::describe::lock_until;
use rkey_kit::object::Users;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// How many completions to take at a time.
pub(crate) const BATCH: usize = 16;
/// The minimum capacity of an EVD's completion queue.
const MIN_DEPTH: u32 = 256;

/// An event dispatcher.
pub struct Evd {
    pub(crate) ia: Arc<Ia>,
    /// The handle of the EVD.
    pub handle: usize,
    /// The kinds of events that the EVD takes: `DAT_EVD_*_FLAG`.
    pub flags: dat_evd_flags,
    /// The completion queue, or the IA's empty one if the EVD takes no completions.
    pub(crate) cq: Cq,
    pub(crate) has_cq: bool,
    pub(crate) state: Mutex<State>,
    /// Incremented whenever a waiting thread must check again.
    pub(crate) news: AtomicU32,
    pub(crate) demand: Demand,
    /// EPs, PSPs and RSPs that deliver events here.
    pub users: Users,
}

pub(crate) struct State {
    pub(crate) queue: VecDeque<Queued>,
    /// How many notification events arrived since the EVD was created.
    pub(crate) notified: u64,
    pub(crate) qlen: u32,
    pub(crate) enabled: bool,
    pub(crate) waitable: bool,
    pub(crate) waiting: bool,
    /// Whether the EVD has been freed, or its IA closed.
    pub(crate) closed: bool,
    pub(crate) cno: Option<Arc<Cno>>,
    /// The EP of the last completion.
    pub(crate) last: Option<(u32, Arc<Ep>)>,
}

crate::kind!(
    Evd,
    HANDLE_TYPE_EVD,
    INVALID_HANDLE_EVD_REQUEST,
    RESOURCE_TEVD,
    1 << 16
);

/// How many completions one completion queue must hold: as many as the requests and receives that may be posted.
#[derive(Default)]
pub struct Demand(Mutex<u32>);

impl Demand {
    /// Makes room for this many more completions.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn add(&self, ia: &Ia, cq: &Cq, more: u32) -> Result {
        let mut demand = self.0.lock();
        let wanted = demand.saturating_add(more);
        let most = ia.device.config().max_cq_depth;
        let depth = wanted.saturating_mul(2).clamp(MIN_DEPTH.min(most), most);
        if cq.depth() < depth as usize {
            cq.resize(depth)?;
        }
        *demand = wanted;
        Ok(())
    }

    /// Releases the room of this many completions.
    pub fn remove(&self, fewer: u32) {
        let mut demand = self.0.lock();
        *demand = demand.saturating_sub(fewer);
    }
}

impl Evd {
    /// Creates an EVD for these kinds of events.
    ///
    /// # Errors
    /// The device has no completion queue left.
    pub fn new(
        ia: &Arc<Ia>,
        handle: usize,
        qlen: u32,
        flags: dat_evd_flags,
        cno: Option<Arc<Cno>>,
    ) -> Result<Self> {
        let has_cq = flags & (EVD_DTO_FLAG | EVD_RMR_BIND_FLAG | EVD_EXTENSION_BASE) != 0;
        let cq = match has_cq {
            true => ia
                .device
                .create_cq(qlen.max(MIN_DEPTH), Some(&ia.channel))?,
            false => ia.idle_cq.clone(),
        };
        if let Some(cno) = &cno {
            cno.users.add();
        }
        Ok(Self {
            ia: Arc::clone(ia),
            handle,
            flags,
            cq,
            has_cq,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                notified: 0,
                qlen,
                enabled: true,
                waitable: true,
                waiting: false,
                closed: false,
                cno,
                last: None,
            }),
            news: AtomicU32::new(0),
            demand: Demand::default(),
            users: Users::default(),
        })
    }

    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        &self.ia
    }

    /// The completion queue, if the EVD takes completions.
    #[must_use]
    pub fn cq(&self) -> Option<&Cq> {
        self.has_cq.then_some(&self.cq)
    }

    /// Makes room for the completions of an EP that may post this many more requests.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn expect(&self, more: u32) -> Result {
        match self.cq() {
            Some(cq) => self.demand.add(&self.ia, cq, more),
            // Without a completion queue, completions go to the IA's queue.
            None => self.ia.sink_demand.add(&self.ia, &self.ia.sink_cq, more),
        }
    }

    /// Releases the room of an EP that could post this many requests.
    pub fn expect_less(&self, fewer: u32) {
        match self.has_cq {
            true => self.demand.remove(fewer),
            false => self.ia.sink_demand.remove(fewer),
        }
    }

    /// Whether its completion queue may be too full for later requests: [`Evd::collect`] makes room, even if the program
    /// takes no events.
    #[inline]
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.cq.len() >= self.cq.depth() / 2
    }

    /// Adds an event, and notifies the program if it is a notification event.
    pub fn push(&self, queued: Queued) {
        let mut state = self.state.lock();
        state.queue.push_back(queued);
        if queued.notify {
            state.notified += 1;
            self.announce(&state);
        }
    }

    /// Adds a software event.
    ///
    /// # Errors
    /// `DAT_QUEUE_FULL`.
    pub fn push_software(&self, queued: Queued) -> Result {
        {
            let state = self.state.lock();
            if state.queue.len() >= state.qlen as usize {
                return Err(Fail::new(QUEUE_FULL, NO_SUBTYPE));
            }
        }
        self.push(queued);
        Ok(())
    }

    /// Whether another event fits within the length that the program requested.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.queue.len() < state.qlen as usize
    }

    /// The kinds of events that the EVD takes, and the events that wait in it, for inspection.
    #[must_use]
    pub fn in_words(&self, until: Instant) -> String {
        let kinds = [
            (EVD_SOFTWARE_FLAG, "software"),
            (EVD_CR_FLAG, "connection requests"),
            (EVD_DTO_FLAG, "DTOs"),
            (EVD_CONNECTION_FLAG, "connections"),
            (EVD_RMR_BIND_FLAG, "binds"),
            (EVD_ASYNC_FLAG, "asynchronous errors"),
        ];
        let kinds = kinds.iter().filter(|(flag, _)| self.flags & flag != 0);
        let mut text = kinds.map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        let Some(state) = lock_until(&self.state, until) else {
            return text + "; busy: the program holds the lock of the EVD";
        };
        let _ = write!(text, "; {} of {} events", state.queue.len(), state.qlen);
        for (is_so, words) in [
            (state.waiting, "; a thread waits"),
            (!state.enabled, "; disabled"),
            (!state.waitable, "; unwaitable"),
        ] {
            if is_so {
                text.push_str(words);
            }
        }
        if let Some(cno) = &state.cno {
            let _ = write!(text, "; notifies CNO {:#x}", cno.handle);
        }
        text
    }

    /// Changes the length of the EVD.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`: it holds more events; `DAT_INSUFFICIENT_RESOURCES`.
    pub fn resize(&self, qlen: u32) -> Result {
        let mut state = self.state.lock();
        if state.queue.len() > qlen as usize {
            return Err(Fail::new(INVALID_STATE, NO_SUBTYPE));
        }
        let most = self.ia.device.config().max_cq_depth;
        if self.has_cq && self.cq.depth() < qlen.min(most) as usize {
            self.cq.resize(qlen.min(most))?;
        }
        state.qlen = qlen;
        Ok(())
    }

    /// The length of the EVD, its state (`DAT_EVD_STATE_*`) and the handle of its CNO.
    #[must_use]
    pub fn describe(&self) -> (u32, dat_evd_state, usize) {
        let state = self.state.lock();
        let bits = if state.enabled {
            EVD_STATE_ENABLED
        } else {
            EVD_STATE_DISABLED
        };
        let waits = if state.waitable {
            EVD_STATE_WAITABLE
        } else {
            EVD_STATE_UNWAITABLE
        };
        let cno = state.cno.as_ref().map_or(0, |cno| cno.handle);
        (state.qlen, bits | waits | EVD_STATE_CONFIG_NOTIFY, cno)
    }

    /// Closes the EVD.
    pub fn close(&self) {
        self.abort_wait();
        let cno = self.state.lock().cno.take();
        if let Some(cno) = cno {
            cno.leave(self.handle);
            cno.wait_for_agent(Some(self.handle));
        }
        if self.has_cq {
            self.ia.forget_cq(self.cq.id());
        }
    }
}

impl State {
    /// Whether a thread may wait for the EVD.
    pub(crate) fn check_waitable(&self) -> Result {
        if self.closed {
            return Err(Fail::new(ABORT, NO_SUBTYPE));
        }
        match self.waitable {
            true => Ok(()),
            false => Err(Fail::state(INVALID_STATE_EVD_UNWAITABLE)),
        }
    }

    /// The CNO, if events trigger it.
    pub(crate) fn active_cno(&self) -> Option<&Arc<Cno>> {
        self.cno.as_ref().filter(|_| self.enabled)
    }
}

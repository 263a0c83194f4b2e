//! EVDs (event dispatchers): the queues from which programs take all events.
//!
//! An EVD has its own queue, for events of connections and of the program, and may have a completion queue of the device,
//! for DTOs and binds. A program that dequeues takes the event at the front of the EVD's own queue; if that is empty, the
//! oldest completion becomes an event directly ([`Evd::dequeue`]). [`Evd::collect`] moves all completions to the EVD's
//! queue: before a wait, for the IA's worker, and before an EP ends. An EVD never loses an event: its queue grows beyond
//! the length that the program requested.
//!
//! Lock order: the state of an EP, then that of an EVD, then the lists of posted requests and the state of a CNO.

use crate::cno::Cno;
use crate::completion;
use crate::ep::Ep;
use crate::event::Queued;
use crate::fail::{Fail, Result};
use crate::ia::Ia;
use crate::sys::consts::*;
use crate::sys::{EvdHandle, Event, TIMEOUT_INFINITE, Timeout};
use parking_lot::Mutex;
use rkey_device::describe::lock_until;
use rkey_device::engine::Completion;
use rkey_device::{Cq, time};
use rkey_kit::object::Users;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How many completions to take at a time.
const BATCH: usize = 16;
/// The minimum capacity of an EVD's completion queue.
const MIN_DEPTH: u32 = 256;

/// An event dispatcher.
pub struct Evd {
    ia: Arc<Ia>,
    /// The handle of the EVD.
    pub handle: usize,
    /// The kinds of events that the EVD takes: `DAT_EVD_*_FLAG`.
    pub flags: dat_evd_flags,
    /// The completion queue, or the IA's empty one if the EVD takes no completions.
    cq: Cq,
    has_cq: bool,
    state: Mutex<State>,
    /// Incremented whenever a waiting thread must check again.
    news: AtomicU32,
    demand: Demand,
    /// EPs, PSPs and RSPs that deliver events here.
    pub users: Users,
}

struct State {
    queue: VecDeque<Queued>,
    /// How many notification events arrived since the EVD was created.
    notified: u64,
    qlen: u32,
    enabled: bool,
    waitable: bool,
    waiting: bool,
    /// Whether the EVD has been freed, or its IA closed.
    closed: bool,
    cno: Option<Arc<Cno>>,
    /// The EP of the last completion.
    last: Option<(u32, Arc<Ep>)>,
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

/// EPs with failed requests.
type Broken = Vec<Arc<Ep>>;

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

    /// Turns all completions into events, and handles EPs whose requests failed.
    pub fn collect(&self) {
        let mut broken = Broken::new();
        {
            let mut state = self.state.lock();
            let before = state.notified;
            while self.take_completions(&mut state, &mut broken) > 0 {}
            if state.notified != before {
                self.announce(&state);
            }
        }
        self.handle_broken(broken);
    }

    /// Notifies the waiting thread if there is one, otherwise the CNO. The caller holds the lock, so the CNO does not
    /// report events that were already taken.
    fn announce(&self, state: &State) {
        self.news.fetch_add(1, Ordering::SeqCst);
        if state.waiting {
            self.cq.wake();
        } else if let Some(cno) = state.active_cno() {
            cno.trigger(self.handle);
        }
    }

    /// Moves up to [`BATCH`] completions to the queue; returns how many there were.
    fn take_completions(&self, state: &mut State, broken: &mut Broken) -> usize {
        let mut batch = [Completion::default(); BATCH];
        let taken = match self.has_cq {
            true => self.cq.poll(&mut batch).unwrap_or(0),
            false => 0,
        };
        for completion in batch.iter().take(taken) {
            if let Some(queued) = self.translate(state, completion, broken) {
                state.queue.push_back(queued);
            }
        }
        taken
    }

    /// Takes one event directly from the completion queue. Call it only while the event queue is empty.
    #[inline]
    fn take_one(&self, state: &mut State, broken: &mut Broken) -> Option<Queued> {
        let mut completion = [Completion::default()];
        while self.has_cq && self.cq.poll(&mut completion).unwrap_or(0) > 0 {
            let found = self.translate(state, &completion[0], broken);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The event for a completion; `None` if the program wants no event or the EP no longer exists.
    #[inline]
    fn translate(
        &self,
        state: &mut State,
        completion: &Completion,
        broken: &mut Broken,
    ) -> Option<Queued> {
        let known = state.last.as_ref();
        if known.is_none_or(|(qpn, _)| *qpn != completion.qpn) {
            state.last = Some((completion.qpn, self.ia.ep(completion.qpn)?));
        }
        let (_, ep) = state.last.as_ref()?;
        let found = completion::translate(ep, completion);
        if !completion.status.is_success() && ep.is_in_service() {
            broken.push(Arc::clone(ep));
        }
        if let Some(queued) = &found {
            state.notified += u64::from(queued.notify);
        }
        found
    }

    /// Handles EPs that have failed requests.
    fn handle_broken(&self, broken: Broken) {
        for ep in broken {
            ep.request_failed();
        }
    }

    /// Turns the completions of an EP into events before its queue pair is destroyed, while its number still identifies
    /// the EP.
    pub fn forget_ep(&self, qpn: u32) {
        self.collect();
        let mut state = self.state.lock();
        if state.last.as_ref().is_some_and(|(last, _)| *last == qpn) {
            state.last = None;
        }
    }

    /// Takes the event at the front of the EVD's own queue; if that is empty, the event of the oldest completion.
    ///
    /// # Errors
    /// `DAT_QUEUE_EMPTY`.
    pub fn dequeue(&self) -> Result<Event> {
        let mut broken = Broken::new();
        let taken = {
            let mut state = self.state.lock();
            let taken = match state.queue.pop_front() {
                Some(queued) => Some(queued),
                None => self.take_one(&mut state, &mut broken),
            };
            if let Some(cno) = state.active_cno()
                && state.queue.is_empty()
            {
                cno.forget(self.handle);
            }
            taken
        };
        if !broken.is_empty() {
            self.handle_broken(broken);
        }
        let mut event = taken.ok_or(Fail::EMPTY)?.event;
        event.evd_handle = self.handle as EvdHandle;
        Ok(event)
    }

    /// Waits for `threshold` events and takes one as [`Evd::dequeue`] does; also returns how many events remain.
    ///
    /// # Errors
    /// `DAT_TIMEOUT_EXPIRED`; `DAT_INVALID_STATE` (unwaitable, or another waiter); `DAT_ABORT` (freed, or its IA closed).
    pub fn wait(&self, timeout: Timeout, threshold: u32) -> Result<(Event, u32)> {
        {
            let mut state = self.state.lock();
            state.check_waitable()?;
            if std::mem::replace(&mut state.waiting, true) {
                return Err(Fail::state(INVALID_STATE_EVD_WAITER));
            }
        }
        let deadline = deadline(timeout);
        let event = loop {
            let waited = self.wait_alone(deadline, threshold as usize);
            // Another thread may have taken the event.
            match waited.and_then(|()| self.dequeue()) {
                Err(Fail::EMPTY) => {}
                result => break result,
            }
        };
        let mut state = self.state.lock();
        state.waiting = false;
        match event {
            Ok(event) => {
                let more = state.queue.len() + if self.has_cq { self.cq.len() } else { 0 };
                Ok((event, more as u32))
            }
            Err(fail) => {
                // Fewer events than the threshold have arrived; the CNO was not triggered for them.
                self.trigger_if_notified(&state);
                Err(fail)
            }
        }
    }

    fn wait_alone(&self, deadline: Option<Instant>, threshold: usize) -> Result {
        let mut before = None;
        loop {
            let seen = self.news.load(Ordering::SeqCst);
            let mut broken = Broken::new();
            let (enough, allowed) = {
                let mut state = self.state.lock();
                while self.take_completions(&mut state, &mut broken) > 0 {}
                // Events that are already queued end the wait at once; later, only a notification does.
                let notified = before.is_none_or(|before| state.notified > before);
                before.get_or_insert(state.notified);
                let enough = notified && state.queue.len() >= threshold;
                (enough, state.check_waitable())
            };
            self.handle_broken(broken);
            if enough {
                return Ok(());
            }
            allowed?;
            let left = match deadline {
                None => None,
                Some(end) => match end.checked_duration_since(time::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return Err(Fail::TIMEOUT),
                },
            };
            self.cq
                .wait_or(left, || self.news.load(Ordering::SeqCst) != seen)?;
        }
    }

    /// Takes completions after a report of the completion queue to the IA's worker, and requests the next report.
    pub fn look(&self) {
        loop {
            self.collect();
            self.arm();
            if self.cq.is_empty() {
                return;
            }
        }
    }

    /// Asks the device to report failures to the IA's worker, and all completions if the EVD has a CNO.
    pub fn arm(&self) {
        if !self.has_cq {
            return;
        }
        let has_cno = self.state.lock().active_cno().is_some();
        let armed = match has_cno {
            true => self.cq.req_notify(false),
            false => Ok(()),
        };
        if let Err(error) = armed.and_then(|()| self.cq.watch(&self.ia.channel)) {
            tracing::debug!(%error, "cannot watch the completion queue of EVD {:#x}", self.handle);
        }
    }

    /// Triggers the CNO for events that are already queued.
    fn trigger_for_old(&self) {
        self.look();
        self.trigger_if_notified(&self.state.lock());
    }

    fn trigger_if_notified(&self, state: &State) {
        if let Some(cno) = state.active_cno()
            && !state.waiting
            && state.queue.iter().any(|queued| queued.notify)
        {
            cno.trigger(self.handle);
        }
    }

    /// Sets or removes the CNO that the EVD triggers.
    pub fn set_cno(&self, cno: Option<Arc<Cno>>) {
        if let Some(cno) = &cno {
            cno.users.add();
        }
        let old = std::mem::replace(&mut self.state.lock().cno, cno);
        if let Some(old) = old {
            old.leave(self.handle);
        }
        self.trigger_for_old();
    }

    /// Sets whether events trigger the CNO.
    pub fn enable(&self, enabled: bool) {
        self.state.lock().enabled = enabled;
        if enabled {
            self.trigger_for_old();
        }
    }

    /// Sets whether threads may wait for the EVD. If they may not, a waiting thread returns.
    pub fn set_waitable(&self, waitable: bool) {
        self.state.lock().waitable = waitable;
        self.news.fetch_add(1, Ordering::SeqCst);
        self.cq.wake();
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

    /// Whether a thread waits for it.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.state.lock().waiting
    }

    /// Ends the current wait, and refuses later ones.
    pub fn abort_wait(&self) {
        self.state.lock().closed = true;
        self.news.fetch_add(1, Ordering::SeqCst);
        self.cq.wake();
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
    fn check_waitable(&self) -> Result {
        if self.closed {
            return Err(Fail::new(ABORT, NO_SUBTYPE));
        }
        match self.waitable {
            true => Ok(()),
            false => Err(Fail::state(INVALID_STATE_EVD_UNWAITABLE)),
        }
    }

    /// The CNO, if events trigger it.
    fn active_cno(&self) -> Option<&Arc<Cno>> {
        self.cno.as_ref().filter(|_| self.enabled)
    }
}

/// The deadline for a DAT timeout (microseconds); `None`: never.
#[must_use]
pub fn deadline(timeout: Timeout) -> Option<Instant> {
    match timeout {
        TIMEOUT_INFINITE => None,
        micros => Some(time::now() + Duration::from_micros(micros.into())),
    }
}

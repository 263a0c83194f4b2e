//! Work that waits for counters: triggered operations and the deferred work queue (fi_trigger(3)).
//!
//! A thread that drives the domain's queues and counters starts the work that is due, without holding an
//! endpoint's lock: for each counter in the order of the thresholds, and at one threshold in the order in which
//! it was queued.
//!
//! Three events wake a sleeping program: a counter moves and makes work due, new work is queued, and due work
//! could not be started. Nothing wakes it for the next attempt, nor for work that only the progress of other
//! queues' endpoints makes due: a sleeping thread checks for those regularly ([`Queue::needs_looks`]).

#![allow(unsafe_code)]
// UNSAFETY: reads the program's structures.

use crate::attached::Attached;
use crate::cntr::{CntrObject, Counter};
use crate::domain::Domain;
use crate::ep::deferred::Job;
use crate::errno::{FiError, Result};
use crate::object::{find, input};
use crate::sys::*;
use crate::wait::Signal;
use parking_lot::{Mutex, Once};
use rkey_device::CountListener;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What to do when the threshold is reached.
pub(crate) enum Action {
    Job(Job),
    Set(Arc<Counter>, u64),
    Add(Arc<Counter>, u64),
}

impl Action {
    /// `FI_EAGAIN`: try again. No other error is possible.
    fn run(&self) -> Result<()> {
        match self {
            Self::Set(counter, value) => counter.set(*value),
            Self::Add(counter, value) => counter.add(*value),
            Self::Job(job) => match job.run() {
                Err(error) if error == FiError::AGAIN => return Err(error),
                Err(error) => job.failed(error),
                Ok(()) => {}
            },
        }
        Ok(())
    }

    /// The number of its endpoint.
    fn endpoint(&self) -> Option<u32> {
        match self {
            Self::Job(job) => Some(job.endpoint()),
            _ => None,
        }
    }
}

/// Waiting work.
struct Item {
    counter: Arc<Counter>,
    threshold: u64,
    /// The address by which the program names it: its structure, or the context of a triggered operation.
    id: usize,
    action: Action,
    /// It was due and could not be started.
    tried: bool,
}

impl Drop for Item {
    fn drop(&mut self) {
        self.counter.users.remove();
    }
}

/// The waiting work of a domain.
#[derive(Default)]
pub(crate) struct Queue {
    items: Mutex<Vec<Item>>,
    /// The number of items: most domains have none, and check no further.
    len: AtomicUsize,
    /// Locked while a thread starts due work: one at a time, to preserve the order. Such work is not among the
    /// items.
    running: Mutex<()>,
    /// Endpoints (by number) that make progress through the completion counter of their work.
    attached: Mutex<Vec<(u32, Arc<Counter>)>>,
    /// Signals that wake threads waiting for the domain's completion queues. Not the queues themselves: the
    /// device's thread raises these, too, and must not end up with the last reference to its device.
    waiters: Mutex<Vec<Weak<Signal>>>,
    /// The waiting threads were told that work is due, and none has checked since then.
    told: AtomicBool,
    /// Whether the device reports its counts.
    listens: Once,
}

impl CountListener for Queue {
    fn counted(&self) {
        if self.len.load(Ordering::SeqCst) > 0 {
            self.tell_of_due(None);
        }
    }
}

impl Queue {
    fn add(self: &Arc<Self>, counter: &Arc<Counter>, threshold: u64, id: usize, action: Action) {
        self.listens.call_once(|| {
            let listener: Weak<Self> = Arc::downgrade(self);
            counter.domain.device.listen_to_counts(listener);
        });
        counter.users.add();
        let mut items = self.items.lock();
        items.push(Item {
            counter: Arc::clone(counter),
            threshold,
            id,
            action,
            tried: false,
        });
        // Ordered with counting, as `Counter::add` says.
        self.len.store(items.len(), Ordering::SeqCst);
        drop(items);
        // Sleeping threads may now depend on other endpoints.
        self.rouse();
    }

    /// Wakes the waiting thread of this signal when there may be work to start.
    pub(crate) fn wakes(&self, signal: &Arc<Signal>) {
        let mut waiters = self.waiters.lock();
        waiters.retain(|it| it.strong_count() > 0);
        waiters.push(Arc::downgrade(signal));
    }

    /// Lets all waiting threads prepare again, if there is work.
    pub(crate) fn rouse(&self) {
        if self.len.load(Ordering::SeqCst) == 0 {
            return;
        }
        for signal in self.waiters.lock().iter().filter_map(Weak::upgrade) {
            signal.raise();
        }
    }

    /// A counter has moved, and the caller starts no work itself.
    #[inline]
    pub(crate) fn counted_in(&self, counter: &Counter) {
        if self.len.load(Ordering::SeqCst) > 0 {
            self.tell_of_due(Some(counter));
        }
    }

    /// Wakes waiting threads if work is due, of one counter or of any.
    #[cold]
    fn tell_of_due(&self, of: Option<&Counter>) {
        let due = |item: &Item| {
            of.is_none_or(|counter| std::ptr::eq(counter, &*item.counter)) && item.is_due()
        };
        let any = self.items.lock().iter().any(due);
        if any && !self.told.swap(true, Ordering::AcqRel) {
            self.rouse();
        }
    }

    /// Whether work waits for something that wakes no thread: for another attempt, or for progress of endpoints
    /// other than those in `own`, for which the caller will be woken.
    pub(crate) fn needs_looks(&self, own: &Attached) -> bool {
        // Work that another thread has just taken may be put back.
        let alone = self.running.lock();
        if self.len.load(Ordering::Acquire) == 0 {
            return false;
        }
        let (due, counters) = {
            let items = self.items.lock();
            let counters: Vec<_> = items.iter().map(|it| Arc::clone(&it.counter)).collect();
            (items.iter().any(Item::is_due), counters)
        };
        drop(alone);
        due || counters.iter().any(|it| it.depends_on_others(own))
    }

    /// Takes due work, in the order in which to start it.
    fn take_due(&self) -> Vec<Item> {
        let mut due = self.take(Item::is_due);
        due.sort_by_key(|item| item.threshold);
        due
    }

    /// Puts back work that could not be started, before all other.
    fn put_back(&self, due: Vec<Item>) {
        let mut items = self.items.lock();
        let later = std::mem::replace(&mut *items, due);
        items.extend(later);
        self.len.store(items.len(), Ordering::Release);
    }

    /// Starts due work.
    #[inline]
    pub(crate) fn run(&self) {
        if self.len.load(Ordering::Acquire) > 0 {
            self.run_due();
        }
    }

    #[cold]
    fn run_due(&self) {
        let mut counters: Vec<_> = {
            let items = self.items.lock();
            items.iter().map(|it| Arc::clone(&it.counter)).collect()
        };
        // Many items may wait for one counter.
        counters.sort_by_key(Arc::as_ptr);
        counters.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for counter in counters {
            counter.progress_endpoints();
        }
        let _alone = self.running.lock();
        // Before the check: later counts are reported again.
        self.told.swap(false, Ordering::AcqRel);
        loop {
            let mut due = self.take_due();
            if due.is_empty() {
                return;
            }
            let started = due.iter().take_while(|it| it.action.run().is_ok()).count();
            due.drain(..started);
            if !due.is_empty() {
                let first = due.iter().any(|it| !it.tried);
                due.iter_mut().for_each(|it| it.tried = true);
                self.put_back(due);
                // Once: the waiting threads then retry by themselves.
                return if first {
                    self.rouse()
                };
            }
        }
    }

    /// Takes out matching work, waiting for a thread that is just starting some.
    fn withdraw(&self, which: impl Fn(&Item) -> bool) -> Vec<Item> {
        let _alone = self.running.lock();
        self.take(which)
    }

    /// Takes out matching work.
    fn take(&self, which: impl Fn(&Item) -> bool) -> Vec<Item> {
        let mut items = self.items.lock();
        let (taken, rest) = std::mem::take(&mut *items).into_iter().partition(which);
        *items = rest;
        self.len.store(items.len(), Ordering::Release);
        taken
    }

    /// `fi_cancel` of a triggered operation of an endpoint. Returns whether there was one.
    pub(crate) fn cancel(&self, endpoint: u32, context: usize) -> bool {
        let taken = self.withdraw(|it| it.id == context && it.action.endpoint() == Some(endpoint));
        for item in &taken {
            if let Action::Job(job) = &item.action {
                job.failed(FiError::CANCELED);
            }
        }
        !taken.is_empty()
    }

    /// Removes the work of an endpoint that is being closed.
    pub(crate) fn forget(&self, endpoint: u32) -> Vec<Arc<Counter>> {
        drop(self.withdraw(|it| it.action.endpoint() == Some(endpoint)));
        let mut attached = self.attached.lock();
        let (of_it, rest) = std::mem::take(&mut *attached)
            .into_iter()
            .partition(|(number, _)| *number == endpoint);
        *attached = rest;
        of_it.into_iter().map(|(_, counter)| counter).collect()
    }
}

/// A counter of this domain.
///
/// # Safety
/// The handle may be invalid; a live object stays during the call.
unsafe fn counter_of<'a>(domain: &Arc<Domain>, handle: *mut FidCntr) -> Result<&'a Arc<Counter>> {
    // SAFETY: the caller promises it.
    let counter = &unsafe { find::<CntrObject, _>(handle)? }.inner;
    if !Arc::ptr_eq(&counter.domain, domain) {
        return Err(FiError::INVAL);
    }
    Ok(counter)
}

/// Queues an operation that was posted with `FI_TRIGGER`.
///
/// # Safety
/// `context` is null or a `fi_triggered_context`.
pub(crate) unsafe fn trigger(domain: &Arc<Domain>, context: *mut c_void, job: Job) -> Result<()> {
    // SAFETY: the caller promises it.
    let trigger = unsafe { input(context.cast::<TriggeredContext>())? };
    if trigger.event_type != FI_TRIGGER_THRESHOLD {
        return Err(FiError::NOSYS);
    }
    // SAFETY: threshold events use this part of the union; `find` validates the handle.
    let (counter, threshold) = unsafe {
        let wanted = trigger.trigger.threshold;
        (counter_of(domain, wanted.cntr)?, wanted.threshold as u64)
    };
    let id = context as usize;
    domain.work.add(counter, threshold, id, Action::Job(job));
    domain.work.run();
    Ok(())
}

/// `FI_QUEUE_WORK`.
///
/// # Safety
/// `work` is null or a complete `fi_deferred_work`.
pub(crate) unsafe fn queue(domain: &Arc<Domain>, work: *const DeferredWork) -> Result<()> {
    // SAFETY: `input` refuses null; `counter_of` validates the handle; the caller promises the rest.
    let (request, counter) = unsafe {
        let request = input(work)?;
        (request, counter_of(domain, request.triggering_cntr)?)
    };
    let done = match request.completion_cntr.is_null() {
        true => None,
        // SAFETY: `counter_of` validates the handle.
        false => Some(Arc::clone(unsafe {
            counter_of(domain, request.completion_cntr)?
        })),
    };
    let action = match request.op_type {
        FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
            if done.is_some() {
                return Err(FiError::INVAL);
            }
            // SAFETY: the caller promises the structure of this operation.
            let (op, target) = unsafe {
                let op = input(request.op.cast::<DeferredCount>())?;
                (op, Arc::clone(counter_of(domain, op.cntr)?))
            };
            match request.op_type {
                FI_OP_CNTR_SET => Action::Set(target, op.value),
                _ => Action::Add(target, op.value),
            }
        }
        // SAFETY: the caller promises the structure of this operation.
        _ => Action::Job(unsafe { Job::of_work(domain, request, done.clone())? }),
    };
    if let (Action::Job(job), Some(done)) = (&action, &done) {
        // Reading the completion counter makes the endpoint progress.
        job.attach(done);
        let mut attached = domain.work.attached.lock();
        let known = |(number, counter): &(u32, Arc<Counter>)| {
            *number == job.endpoint() && Arc::ptr_eq(counter, done)
        };
        if !attached.iter().any(known) {
            attached.push((job.endpoint(), Arc::clone(done)));
        }
    }
    domain
        .work
        .add(counter, request.threshold, work as usize, action);
    domain.work.run();
    Ok(())
}

/// `FI_CANCEL_WORK`: `FI_ENOENT` for work that is not waiting.
pub(crate) fn cancel(domain: &Domain, work: *const DeferredWork) -> Result<()> {
    let taken = domain.work.withdraw(|it| it.id == work as usize);
    match taken.is_empty() {
        true => Err(FiError::NOENT),
        false => Ok(()),
    }
}

/// `FI_FLUSH_WORK`: cancels all work, or all that waits for one counter.
///
/// # Safety
/// The counter may be null or invalid; a live one stays during the call.
pub(crate) unsafe fn flush(domain: &Arc<Domain>, counter: *mut FidCntr) -> Result<()> {
    if counter.is_null() {
        drop(domain.work.withdraw(Item::is_work));
        return Ok(());
    }
    // SAFETY: the caller promises it.
    let counter = unsafe { counter_of(domain, counter)? };
    drop(
        domain
            .work
            .withdraw(|it| it.is_work() && Arc::ptr_eq(&it.counter, counter)),
    );
    Ok(())
}

impl Item {
    /// Whether its counter has reached the threshold.
    fn is_due(&self) -> bool {
        self.counter.reached() >= self.threshold
    }

    /// Whether it comes from the deferred work queue.
    fn is_work(&self) -> bool {
        match &self.action {
            Action::Job(job) => job.is_work(),
            _ => true,
        }
    }
}

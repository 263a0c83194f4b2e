//! Work that waits for counters: triggered operations and the deferred work queue (fi_trigger(3)).
//!
//! It is started by whoever makes the domain's queues and counters progress, without any lock of an
//! endpoint: work of one counter in the order of its thresholds, and of one threshold in the order in
//! which it was queued.
//!
//! A program that sleeps is woken for it: when a counter moves, by whatever the provider or the device counts, and makes
//! work due; when other work came; and when some could not be started. For what comes after that nobody is woken, nor for
//! what only the progress of endpoints of other queues makes due: who sleeps looks at those now and then
//! ([`Queue::needs_looks`]).

#![allow(unsafe_code)]
// UNSAFETY: reads structures of the program.

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

/// What is done when the time has come.
pub(crate) enum Action {
    Job(Job),
    Set(Arc<Counter>, u64),
    Add(Arc<Counter>, u64),
}

impl Action {
    /// `FI_EAGAIN` if it has to be tried again; nothing else comes out.
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

    /// The number of the endpoint that it is for.
    fn endpoint(&self) -> Option<u32> {
        match self {
            Self::Job(job) => Some(job.endpoint()),
            _ => None,
        }
    }
}

/// Something that waits.
struct Item {
    counter: Arc<Counter>,
    threshold: u64,
    /// The address by which the program names it: its structure, or the context of a triggered operation.
    id: usize,
    action: Action,
    /// It was due, and could not be started.
    tried: bool,
}

impl Drop for Item {
    fn drop(&mut self) {
        self.counter.users.remove();
    }
}

/// The work of a domain that waits.
#[derive(Default)]
pub(crate) struct Queue {
    items: Mutex<Vec<Item>>,
    /// How many there are: most domains have none, and look no further.
    len: AtomicUsize,
    /// Somebody starts what is due: one at a time, so that order is kept. Meanwhile that is not among the items.
    running: Mutex<()>,
    /// Endpoints (by number) that make progress through the completion counter of their work.
    attached: Mutex<Vec<(u32, Arc<Counter>)>>,
    /// What wakes those who wait for completion queues of the domain. Not the queues: the device's thread, which wakes
    /// them too, must not come to hold the last handle of its device.
    waiters: Mutex<Vec<Weak<Signal>>>,
    /// They were told that work is due, and nobody has looked since.
    told: AtomicBool,
    /// The device tells from now on when it counts.
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
        // In one order with what is counted, as `Counter::add` says.
        self.len.store(items.len(), Ordering::SeqCst);
        drop(items);
        // Who sleeps already may have to look at other endpoints now.
        self.rouse();
    }

    /// Who waits with this is woken when there may be work to start.
    pub(crate) fn wakes(&self, signal: &Arc<Signal>) {
        let mut waiters = self.waiters.lock();
        waiters.retain(|it| it.strong_count() > 0);
        waiters.push(Arc::downgrade(signal));
    }

    /// Lets everybody who waits prepare for that anew, if there is work.
    pub(crate) fn rouse(&self) {
        if self.len.load(Ordering::SeqCst) == 0 {
            return;
        }
        for signal in self.waiters.lock().iter().filter_map(Weak::upgrade) {
            signal.raise();
        }
    }

    /// A counter has moved, and who moved it starts no work himself.
    #[inline]
    pub(crate) fn counted_in(&self, counter: &Counter) {
        if self.len.load(Ordering::SeqCst) > 0 {
            self.tell_of_due(Some(counter));
        }
    }

    /// Tells those who wait if work is due, of one counter or of any.
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

    /// Whether work waits for something that wakes nobody: for another try, or for progress of endpoints other than
    /// those that who asks will be woken for.
    pub(crate) fn needs_looks(&self, own: &Attached) -> bool {
        // What somebody has just taken out he may have to put back.
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

    /// Takes what is due, in the order in which it is to be started.
    fn take_due(&self) -> Vec<Item> {
        let mut due = self.take(Item::is_due);
        due.sort_by_key(|item| item.threshold);
        due
    }

    /// Puts back what could not be started yet, before everything else.
    fn put_back(&self, due: Vec<Item>) {
        let mut items = self.items.lock();
        let later = std::mem::replace(&mut *items, due);
        items.extend(later);
        self.len.store(items.len(), Ordering::Release);
    }

    /// Starts what is due.
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
        // Before the look: of what is counted from here on they are told again.
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
                // Once: they try again by themselves from then on.
                return if first {
                    self.rouse()
                };
            }
        }
    }

    /// Takes out what `which` says, before it is started or after: what somebody is just starting may have to wait on.
    fn withdraw(&self, which: impl Fn(&Item) -> bool) -> Vec<Item> {
        let _alone = self.running.lock();
        self.take(which)
    }

    /// Takes out what `which` says.
    fn take(&self, which: impl Fn(&Item) -> bool) -> Vec<Item> {
        let mut items = self.items.lock();
        let (taken, rest) = std::mem::take(&mut *items).into_iter().partition(which);
        *items = rest;
        self.len.store(items.len(), Ordering::Release);
        taken
    }

    /// `fi_cancel` of a triggered operation of an endpoint; whether there is one.
    pub(crate) fn cancel(&self, endpoint: u32, context: usize) -> bool {
        let taken = self.withdraw(|it| it.id == context && it.action.endpoint() == Some(endpoint));
        for item in &taken {
            if let Action::Job(job) = &item.action {
                job.failed(FiError::CANCELED);
            }
        }
        !taken.is_empty()
    }

    /// An endpoint is being closed.
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

/// A counter of a domain.
///
/// # Safety
/// A handle, or something that is refused.
unsafe fn counter_of<'a>(domain: &Arc<Domain>, handle: *mut FidCntr) -> Result<&'a Arc<Counter>> {
    // SAFETY: as the caller promises.
    let counter = &unsafe { find::<CntrObject, _>(handle)? }.inner;
    if !Arc::ptr_eq(&counter.domain, domain) {
        return Err(FiError::INVAL);
    }
    Ok(counter)
}

/// Queues an operation that was posted with `FI_TRIGGER`.
///
/// # Safety
/// The context is null or a `fi_triggered_context`.
pub(crate) unsafe fn trigger(domain: &Arc<Domain>, context: *mut c_void, job: Job) -> Result<()> {
    // SAFETY: as the caller promises.
    let trigger = unsafe { input(context.cast::<TriggeredContext>())? };
    if trigger.event_type != FI_TRIGGER_THRESHOLD {
        return Err(FiError::NOSYS);
    }
    // SAFETY: events at a threshold have this part of the union; `find` validates the handle.
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
/// Null or a `fi_deferred_work` with everything that hangs on it.
pub(crate) unsafe fn queue(domain: &Arc<Domain>, work: *const DeferredWork) -> Result<()> {
    // SAFETY: as the caller promises; handles, or something that is refused.
    let (asked, counter) = unsafe {
        let asked = input(work)?;
        (asked, counter_of(domain, asked.triggering_cntr)?)
    };
    let done = match asked.completion_cntr.is_null() {
        true => None,
        // SAFETY: a handle, or something that is refused.
        false => Some(Arc::clone(unsafe {
            counter_of(domain, asked.completion_cntr)?
        })),
    };
    let action = match asked.op_type {
        FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
            if done.is_some() {
                return Err(FiError::INVAL);
            }
            // SAFETY: the structure of this operation, as the caller promises.
            let (op, target) = unsafe {
                let op = input(asked.op.cast::<DeferredCount>())?;
                (op, Arc::clone(counter_of(domain, op.cntr)?))
            };
            match asked.op_type {
                FI_OP_CNTR_SET => Action::Set(target, op.value),
                _ => Action::Add(target, op.value),
            }
        }
        // SAFETY: the structure of the operation, as the caller promises.
        _ => Action::Job(unsafe { Job::of_work(domain, asked, done.clone())? }),
    };
    if let (Action::Job(job), Some(done)) = (&action, &done) {
        // Whoever looks at the completion counter makes the endpoint progress.
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
        .add(counter, asked.threshold, work as usize, action);
    domain.work.run();
    Ok(())
}

/// `FI_CANCEL_WORK`: `FI_ENOENT` for work that does not wait (any more).
pub(crate) fn cancel(domain: &Domain, work: *const DeferredWork) -> Result<()> {
    let taken = domain.work.withdraw(|it| it.id == work as usize);
    match taken.is_empty() {
        true => Err(FiError::NOENT),
        false => Ok(()),
    }
}

/// `FI_FLUSH_WORK`: everything, or what waits for one counter.
///
/// # Safety
/// Null, a handle, or something that is refused.
pub(crate) unsafe fn flush(domain: &Arc<Domain>, counter: *mut FidCntr) -> Result<()> {
    if counter.is_null() {
        drop(domain.work.withdraw(Item::is_work));
        return Ok(());
    }
    // SAFETY: as the caller promises.
    let counter = unsafe { counter_of(domain, counter)? };
    drop(
        domain
            .work
            .withdraw(|it| it.is_work() && Arc::ptr_eq(&it.counter, counter)),
    );
    Ok(())
}

impl Item {
    /// Its counter has reached the threshold.
    fn is_due(&self) -> bool {
        self.counter.reached() >= self.threshold
    }

    /// It is of the deferred work queue, not a triggered operation.
    fn is_work(&self) -> bool {
        match &self.action {
            Action::Job(job) => job.is_work(),
            _ => true,
        }
    }
}

//! Work that waits for counters: triggered operations and the deferred work queue (fi_trigger(3)).
//!
//! A thread that drives the domain's queues and counters starts the work that is due, without holding an endpoint's
//! lock. For each counter, it starts work in the order of the thresholds, and for each threshold in the order in which
//! the work was queued.
//!
//! Three events wake a sleeping program: a counter moves and makes work due, new work is queued, or due work could not
//! be started. Nothing wakes it for the next attempt, or for work that only the progress of other queues' endpoints
//! makes due: a sleeping thread checks for these regularly ([`Queue::needs_polling`]).

use crate::attached::Attached;
use crate::errno::{FiError, Result};
use crate::object::Users;
use crate::wait::Signal;
use parking_lot::{Mutex, Once};
use rkey_device::{CountListener, Device};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What queued work needs from its counter.
pub(crate) trait Counting: Send + Sync {
    /// Counts a success. Wakes a waiting thread if that makes work due.
    fn count(&self);

    /// The value that triggers deferred work: successes plus errors (fi_trigger(3)).
    fn reached(&self) -> u64;

    /// Drives the endpoints that count in this counter.
    fn progress_endpoints(&self);

    /// Whether the counter depends on the progress of endpoints that are not in `than`.
    fn depends_on_others(&self, than: &Attached) -> bool;

    /// The counter's users. While there are any, the program cannot close the counter.
    fn users(&self) -> &Users;
}

/// What to do when the threshold is reached.
pub(crate) trait Action: Send + Sync {
    /// Starts the work. `FI_EAGAIN`: try again. Other errors go to [`Action::failed`].
    fn run(&self) -> Result<()>;

    /// Reports to the program that the work will not be started.
    fn failed(&self, error: FiError);

    /// The number of the work's endpoint, if it has one.
    fn endpoint(&self) -> Option<u32>;

    /// Whether the action comes from the deferred work queue.
    fn is_work(&self) -> bool;
}

/// Waiting work.
struct Item {
    counter: Arc<dyn Counting>,
    threshold: u64,
    /// The address by which the program refers to it: of its structure, or the context of a triggered operation.
    id: usize,
    action: Box<dyn Action>,
    /// Whether the work was due and could not be started.
    tried: bool,
}

impl Drop for Item {
    fn drop(&mut self) {
        self.counter.users().remove();
    }
}

/// The waiting work of a domain.
#[derive(Default)]
pub(crate) struct Queue {
    items: Mutex<Vec<Item>>,
    /// The number of items, for a shortcut: most domains have none.
    len: AtomicUsize,
    /// Locked while a thread starts due work: one at a time, to preserve the order. Work that is being started
    /// is not in `items`.
    running: Mutex<()>,
    /// Signals that wake threads waiting for the domain's completion queues. They are not the queues themselves: the
    /// device's thread also raises these signals, and a reference to a queue could be the last one to that thread's own
    /// device.
    waiters: Mutex<Vec<Weak<Signal>>>,
    /// Set when the waiting threads were notified of due work and no thread has looked for due work since.
    told: AtomicBool,
    /// Completed when the device reports its counts here.
    listens: Once,
}

impl CountListener for Queue {
    fn counted(&self) {
        if self.len.load(Ordering::SeqCst) > 0 {
            self.wake_if_due(None);
        }
    }
}

impl Queue {
    /// Adds work: queues `action` until `counter` reaches `threshold`. From then on the domain's device reports its
    /// counts here.
    pub(crate) fn add(
        self: &Arc<Self>,
        device: &Device,
        counter: Arc<dyn Counting>,
        threshold: u64,
        id: usize,
        action: Box<dyn Action>,
    ) {
        self.listens.call_once(|| {
            let listener: Weak<Self> = Arc::downgrade(self);
            device.listen_to_counts(listener);
        });
        counter.users().add();
        let mut items = self.items.lock();
        items.push(Item {
            counter,
            threshold,
            id,
            action,
            tried: false,
        });
        // Ordered with counting, as `Counter::add` says.
        self.len.store(items.len(), Ordering::SeqCst);
        drop(items);
        // Sleeping threads may now depend on other endpoints.
        self.wake_all();
    }

    /// Wakes the waiting thread of this signal when there may be work to start.
    pub(crate) fn wakes(&self, signal: &Arc<Signal>) {
        let mut waiters = self.waiters.lock();
        waiters.retain(|it| it.strong_count() > 0);
        waiters.push(Arc::downgrade(signal));
    }

    /// Wakes all waiting threads, if any work is queued: each prepares to wait again.
    pub(crate) fn wake_all(&self) {
        if self.len.load(Ordering::SeqCst) == 0 {
            return;
        }
        for signal in self.waiters.lock().iter().filter_map(Weak::upgrade) {
            signal.raise();
        }
    }

    /// Must be called when a counter has changed and the caller does not start work itself.
    #[inline]
    pub(crate) fn counted_in(&self, counter: &dyn Counting) {
        if self.len.load(Ordering::SeqCst) > 0 {
            self.wake_if_due(Some(counter));
        }
    }

    /// Wakes waiting threads if work is due, for one counter or for any.
    #[cold]
    fn wake_if_due(&self, of: Option<&dyn Counting>) {
        let due = |item: &Item| of.is_none_or(|it| item.waits_for(it)) && item.is_due();
        let any = self.items.lock().iter().any(due);
        if any && !self.told.swap(true, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Whether work waits for something that wakes no thread: for another attempt, or for progress of endpoints
    /// that are not in `own` (the caller is woken for those).
    pub(crate) fn needs_polling(&self, own: &Attached) -> bool {
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

    /// Puts back work that could not be started, at the front.
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
        let address = |counter: &Arc<dyn Counting>| Arc::as_ptr(counter).addr();
        counters.sort_by_key(address);
        counters.dedup_by_key(|counter| address(counter));
        for counter in counters {
            counter.progress_endpoints();
        }
        let _running = self.running.lock();
        // Clear `told` before taking due work, so that later counts are reported again.
        self.told.swap(false, Ordering::AcqRel);
        loop {
            let mut due = self.take_due();
            if due.is_empty() {
                return;
            }
            let started = due.iter().take_while(|it| it.start().is_ok()).count();
            due.drain(..started);
            if !due.is_empty() {
                let first = due.iter().any(|it| !it.tried);
                due.iter_mut().for_each(|it| it.tried = true);
                self.put_back(due);
                // Once is enough: after that, the waiting threads retry on their own.
                return if first {
                    self.wake_all()
                };
            }
        }
    }

    /// Removes and returns matching work, after waiting for a thread that is starting work.
    fn withdraw(&self, which: impl Fn(&Item) -> bool) -> Vec<Item> {
        let _running = self.running.lock();
        self.take(which)
    }

    /// Removes and returns matching work.
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
            item.action.failed(FiError::CANCELED);
        }
        !taken.is_empty()
    }

    /// Removes the work of an endpoint that is being closed.
    pub(crate) fn forget(&self, endpoint: u32) {
        drop(self.withdraw(|it| it.action.endpoint() == Some(endpoint)));
    }

    /// `FI_CANCEL_WORK`: removes the work with this id. Returns whether there was any.
    pub(crate) fn cancel_work(&self, id: usize) -> bool {
        !self.withdraw(|it| it.id == id).is_empty()
    }

    /// `FI_FLUSH_WORK`: removes all work of the deferred work queue, or all of it that waits for one counter.
    pub(crate) fn flush(&self, of: Option<&dyn Counting>) {
        let waits = |item: &Item| of.is_none_or(|it| item.waits_for(it));
        drop(self.withdraw(|it| it.action.is_work() && waits(it)));
    }
}

impl Item {
    /// Whether the counter has reached the threshold.
    fn is_due(&self) -> bool {
        self.counter.reached() >= self.threshold
    }

    /// Whether the work waits for `counter`.
    fn waits_for(&self, counter: &dyn Counting) -> bool {
        std::ptr::addr_eq(counter, Arc::as_ptr(&self.counter))
    }

    /// Starts the work; reports any failure except `FI_EAGAIN` (try again), which it returns.
    fn start(&self) -> Result<()> {
        match self.action.run() {
            Err(error) if error == FiError::AGAIN => return Err(error),
            Err(error) => self.action.failed(error),
            Ok(()) => {}
        }
        Ok(())
    }
}

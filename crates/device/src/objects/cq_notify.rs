//! Notifies channels and waiting threads when a completion queue becomes ready.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rkey_engine::CqId;
use rustix::event::{EventfdFlags, eventfd};

use super::event_queue::EventQueue;
use super::spin::SpinForecast;
use crate::lifecycle::WaitPoint;
use crate::progress::DeviceEngine;

/// The channels and threads that wait for a completion queue. It holds no device, so the engine thread never has a device's
/// last handle.
#[derive(Debug)]
pub(crate) struct CqNotify {
    pub(super) channel: Option<Arc<EventQueue<CqId>>>,
    /// Whether the program requested an event on the channel.
    pub(super) wants_event: AtomicBool,
    /// Whether the queue is armed in the engine, for the channel or for a waiting thread.
    armed: AtomicBool,
    /// A channel for solicited completions and errors only.
    pub(super) watcher: OnceLock<Arc<EventQueue<CqId>>>,
    /// Whether the queue is watched in the engine, for `watcher`.
    watched: AtomicBool,
    pub(super) waiters: AtomicU32,
    pub(super) times_ready: Mutex<u64>,
    pub(super) readiness: Condvar,
    /// The thread that sleeps until packets arrive.
    pub(super) packet_waiter: PacketWaiter,
    /// How long threads have waited.
    pub(super) spin: SpinForecast,
    /// How many queue pairs that complete here have failed because their peer has ended, or because of a request of it.
    pub(super) ended_peers: AtomicU32,
}

impl CqNotify {
    /// Notifies the channel and waiting threads.
    fn ready(&self, id: CqId) {
        if let Some(channel) = &self.channel
            && self.wants_event.swap(false, Ordering::AcqRel)
        {
            channel.push(id);
        }
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.wake_all();
        }
    }

    /// Notifies the watcher.
    fn seen(&self, id: CqId) {
        if let Some(watcher) = self.watcher.get() {
            watcher.push(id);
        }
    }

    /// Waits until [`CqNotify::wake_all`] is called for the first time since `times_ready` was `seen`. Returns `false` if `deadline` passed
    /// first.
    pub(super) fn sleep_until(&self, deadline: Option<Instant>, seen: u64) -> bool {
        let mut times_ready = self.times_ready.lock();
        while *times_ready == seen {
            match deadline {
                None => self.readiness.wait(&mut times_ready),
                Some(until) => {
                    let waited = self.readiness.wait_until(&mut times_ready, until);
                    if waited.timed_out() {
                        return false;
                    }
                }
            }
        }
        true
    }

    pub(super) fn wake_all(&self) {
        *self.times_ready.lock() += 1;
        self.readiness.notify_all();
        self.packet_waiter.wake();
    }

    /// Counts a failed queue pair. Called under the engine's lock: a thread that arms the queue later sees the number, and one that
    /// armed it before is notified.
    pub(crate) fn count_ended_peer(&self, _locked: &DeviceEngine) {
        self.ended_peers.fetch_add(1, Ordering::Release);
    }
}

/// At most one thread that waits for a descriptor, because it also waits for sockets. Others wait for the condition variable.
#[derive(Debug, Default)]
pub(super) struct PacketWaiter {
    descriptor: OnceLock<OwnedFd>,
    is_there: AtomicBool,
}

impl PacketWaiter {
    /// Registers the calling thread; `None` if there is another one, or no descriptor. [`CqNotify::wake_all`] makes the descriptor readable
    /// until the result is dropped.
    pub(super) fn register(&self) -> Option<Registered<'_>> {
        if self.is_there.swap(true, Ordering::SeqCst) {
            return None;
        }
        let registered = Registered(self);
        if self.descriptor.get().is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            // Another thread cannot have set it: this one is the only waiter.
            let _ = self.descriptor.set(eventfd(0, flags).ok()?);
        }
        Some(registered)
    }

    fn wake(&self) {
        if self.is_there.load(Ordering::SeqCst)
            && let Some(descriptor) = self.descriptor.get()
        {
            // A full counter is already readable.
            let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
        }
    }
}

/// The registered thread.
pub(super) struct Registered<'a>(&'a PacketWaiter);

impl Registered<'_> {
    /// Readable once the thread was woken, or because another thread, which was interrupted in [`CqNotify::wake_all`], woke the previous one
    /// too late.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.descriptor.get().map(AsFd::as_fd)
    }

    /// Makes the descriptor unreadable. Check afterwards whether the queue has become ready.
    pub(super) fn clear(&self) {
        if let Some(descriptor) = self.0.descriptor.get() {
            let _ = rustix::io::read(descriptor, &mut [0u8; 8]);
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.clear();
        self.0.is_there.store(false, Ordering::SeqCst);
    }
}

/// The completion queues of a device, by id.
#[derive(Debug, Default)]
pub(crate) struct CqTable {
    by_id: Mutex<HashMap<CqId, Arc<CqNotify>>>,
    /// The number of armed queues plus the number of watched ones. If it is not 0, threads are about to sleep.
    armed: AtomicU32,
}

impl CqTable {
    /// Adds a completion queue, whose events go to `channel`.
    pub(super) fn add(&self, id: CqId, channel: Option<Arc<EventQueue<CqId>>>) -> Arc<CqNotify> {
        let notify = Arc::new(CqNotify {
            channel,
            wants_event: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            watcher: OnceLock::new(),
            watched: AtomicBool::new(false),
            waiters: AtomicU32::new(0),
            times_ready: Mutex::new(0),
            readiness: Condvar::new(),
            packet_waiter: PacketWaiter::default(),
            spin: SpinForecast::default(),
            ended_peers: AtomicU32::new(0),
        });
        self.by_id.lock().insert(id, Arc::clone(&notify));
        notify
    }

    /// Removes a destroyed completion queue.
    pub(super) fn remove(&self, id: CqId) {
        if let Some(notify) = self.by_id.lock().remove(&id) {
            self.disarm(&notify);
            self.unwatch(&notify);
        }
    }

    /// Records that a completion queue was armed in the engine, for its channel or for a waiting thread.
    pub(super) fn arm(&self, notify: &CqNotify) {
        if !notify.armed.swap(true, Ordering::AcqRel) {
            self.armed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that a completion queue is watched in the engine.
    pub(super) fn watch(&self, notify: &CqNotify) {
        if !notify.watched.swap(true, Ordering::AcqRel) {
            self.armed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Disarms a completion queue; returns whether it was armed.
    fn disarm(&self, notify: &CqNotify) -> bool {
        let was = notify.armed.swap(false, Ordering::AcqRel);
        if was {
            self.armed.fetch_sub(1, Ordering::Relaxed);
        }
        was
    }

    /// Stops watching a completion queue; returns whether it was watched.
    fn unwatch(&self, notify: &CqNotify) -> bool {
        let was = notify.watched.swap(false, Ordering::AcqRel);
        if was {
            self.armed.fetch_sub(1, Ordering::Relaxed);
        }
        was
    }

    /// Whether the program has armed or watched a completion queue, and so is about to wait.
    #[inline]
    pub(crate) fn is_any_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Adds an armed completion queue.
    #[cfg(test)]
    pub(crate) fn arm_one_for_test(&self) {
        let notify = self.add(CqId::from((1, 1)), None);
        self.arm(&notify);
    }

    pub(crate) fn find(&self, id: CqId) -> Option<Arc<CqNotify>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// Handles a completion queue that became ready, which the engine has disarmed.
    pub(crate) fn ready(&self, id: CqId) {
        if let Some(notify) = self.find(id) {
            self.disarm(&notify);
            notify.ready(id);
        }
    }

    /// Handles a watched completion queue that got a solicited completion or an error, which ended the watch.
    pub(crate) fn seen(&self, id: CqId) {
        if let Some(notify) = self.find(id)
            && self.unwatch(&notify)
        {
            notify.seen(id);
        }
    }
}

impl WaitPoint for CqTable {
    /// Makes threads in [`Cq::wait`](super::cq::Cq::wait) check the device's state again.
    fn device_failed(&self) {
        for notify in self.by_id.lock().values() {
            notify.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::event_queue::wait_readable;
    use crate::wire::tests::{address, wait_until};
    use crate::{Config, Device};

    fn id(index: u32) -> CqId {
        CqId::from((index, 1))
    }

    /// Calls a function when it is dropped.
    struct Finally<F: Fn()>(F);

    impl<F: Fn()> Drop for Finally<F> {
        fn drop(&mut self) {
            self.0();
        }
    }

    /// A thread that would find the descriptor readable again and again would use its whole processor until its next completion.
    #[test]
    fn a_late_wake_keeps_no_sleeper_awake() {
        let mut config = Config::default();
        config.set("RKEY_WIRE", &address().to_string()).unwrap();
        let device = Device::open(config).unwrap();
        let cq = device.create_cq(4, None).unwrap();
        let notify = device.shared().cqs.find(cq.id()).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| cq.wait_or(None, || ends.load(Ordering::SeqCst)));
            // Also if an assertion fails: otherwise, the scope would wait for the thread without end.
            let _end = Finally(|| {
                ends.store(true, Ordering::SeqCst);
                cq.wake();
            });
            let waiter = &notify.packet_waiter;
            wait_until(|| waiter.descriptor.get().is_some());
            wait_until(|| waiter.is_there.load(Ordering::SeqCst));
            waiter.wake();
            let descriptor = waiter.descriptor.get().unwrap().as_fd();
            wait_until(|| !wait_readable(descriptor, Some(Instant::now())).unwrap());
            assert!(waiter.is_there.load(Ordering::SeqCst), "it still sleeps");
        });
    }

    #[test]
    fn the_count_of_armed_queues_returns_to_zero() {
        let table = CqTable::default();
        let one = table.add(id(1), None);
        let two = table.add(id(2), None);
        table.arm(&one);
        table.arm(&one);
        table.watch(&one);
        table.arm(&two);
        assert_eq!(table.armed.load(Ordering::Relaxed), 3);
        table.ready(id(1));
        table.ready(id(1));
        table.seen(id(1));
        assert!(table.is_any_armed());
        table.remove(id(2));
        table.remove(id(2));
        assert!(!table.is_any_armed());
    }

    #[test]
    fn a_channel_gets_one_event_for_each_notification_request() {
        let channel = Arc::new(EventQueue::new(8).unwrap());
        let table = CqTable::default();
        let notify = table.add(id(1), Some(Arc::clone(&channel)));
        table.ready(id(1));
        assert_eq!(channel.try_next(), None, "no event was requested");
        notify.wants_event.store(true, Ordering::Release);
        table.ready(id(1));
        table.ready(id(1));
        assert_eq!(
            (channel.try_next(), channel.try_next()),
            (Some(id(1)), None)
        );
        notify.watcher.get_or_init(|| Arc::clone(&channel));
        table.seen(id(1));
        assert_eq!(channel.try_next(), None, "it was not watched");
        table.watch(&notify);
        table.seen(id(1));
        assert_eq!(channel.try_next(), Some(id(1)));
    }
}

//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rkey_base::memory::ProcessMemory;
use rkey_engine::{Clock, Completion, CqId, CqShared, EngineError, Inbox, Stamped};

use crate::device::Device;
use crate::error::DeviceError;
use crate::inspect::denials;
use crate::objects::async_queues::EventSource;
use crate::objects::channel::Channel;
use crate::objects::cq_notify::CqNotify;
use crate::objects::sleeper::Sleeper;
use crate::progress::DeviceEngine;

/// A completion queue. Clones are the same queue; the last one destroys it.
#[derive(Clone, Debug)]
pub struct Cq(Arc<CqInner>);

#[derive(Debug)]
struct CqInner {
    device: Device,
    entries: Arc<CqShared>,
    notify: Arc<CqNotify>,
    channel: Option<Channel>,
}

impl Device {
    /// Creates a completion queue of `depth` entries, whose events go to `channel`.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`], [`DeviceError::Limit`]; [`DeviceError::Unknown`]: the channel belongs to another device.
    pub fn create_cq(&self, depth: u32, channel: Option<&Channel>) -> Result<Cq, DeviceError> {
        self.new_cq(depth, channel, |engine| engine.create_cq(depth))
    }

    /// Like [`Device::create_cq`], with a timestamp for each completion, from `clock`, which must not call the device.
    /// [`Cq::poll_stamped`] returns it.
    ///
    /// # Errors
    /// Same as [`Device::create_cq`].
    pub fn create_stamped_cq(
        &self,
        depth: u32,
        channel: Option<&Channel>,
        clock: Clock,
    ) -> Result<Cq, DeviceError> {
        self.new_cq(depth, channel, |engine| {
            engine.create_stamped_cq(depth, clock)
        })
    }

    fn new_cq(
        &self,
        depth: u32,
        channel: Option<&Channel>,
        create: impl FnOnce(&mut DeviceEngine) -> Result<Arc<CqShared>, EngineError>,
    ) -> Result<Cq, DeviceError> {
        self.check()?;
        self.check_cq_depth(depth)?;
        if channel.is_some_and(|channel| !self.is(channel.device())) {
            return Err(DeviceError::Unknown {
                what: "completion channel",
            });
        }
        let shared = self.shared();
        let entries = shared
            .driver
            .command(create)
            .map_err(|e| self.limit_of(e, "completion queues", "RKEY_MAX_CQS"))?;
        let events = channel.map(|c| Arc::clone(c.queue()));
        let notify = shared.cqs.add(entries.id(), events);
        shared
            .events
            .add(EventSource::Cq(entries.id()), self.events());
        let inner = CqInner {
            device: self.clone(),
            entries,
            notify,
            channel: channel.cloned(),
        };
        Ok(Cq(Arc::new(inner)))
    }

    fn check_cq_depth(&self, depth: u32) -> Result<(), DeviceError> {
        let limit = self.config().max_cq_depth;
        if depth > limit {
            return Err(DeviceError::TooLarge {
                what: "completions in one queue",
                wanted: depth.into(),
                limit: limit.into(),
                variable: "RKEY_MAX_CQ_DEPTH",
            });
        }
        Ok(())
    }
}

impl Cq {
    /// The queue's id in the engine, which events on a channel carry.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.0.entries.id()
    }

    /// The device that the queue belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The channel that the queue's events go to.
    #[must_use]
    pub fn channel(&self) -> Option<&Channel> {
        self.0.channel.as_ref()
    }

    /// The capacity of the queue, in completions.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.entries.depth()
    }

    /// The number of completions in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// Whether a completion was lost because the queue was full. The queue stays broken.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.0.entries.is_overrun()
    }

    /// The number of queue pairs whose completions go to this queue and that have failed because of their peer: its process has
    /// exited, or they have refused a request of it ([`QpOptions::fail_with_peer`](crate::QpOptions::fail_with_peer)). An armed queue
    /// reports such a failure like a completion; the queue already holds everything that came from that peer.
    #[inline]
    #[must_use]
    pub fn ended_peers(&self) -> u32 {
        self.0.notify.ended_peers.load(Ordering::Acquire)
    }

    /// Takes completions, oldest first, into the start of `into`, and returns how many. If there are none, it first drives the
    /// engine if a peer has sent something or the engine has other work, and in any case at every 64th empty poll of the
    /// device, for timeouts.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, DeviceError> {
        let entries = self.drive_if_empty()?;
        // `pop` takes the consumers' lock only if there is an entry, so an empty poll costs little.
        let count = entries.pop(into);
        if self.has_refusals() {
            denials::log_now(&into[..count]);
        }
        Ok(count)
    }

    /// Yields the processor if [`Cq::poll_with`] has found nothing for a while. Call it without holding locks that other
    /// threads need. [`Cq::poll`] does this itself.
    #[inline]
    pub fn rest(&self) {
        self.0.device.shared().driver.rest();
    }

    /// Like [`Cq::poll`], but if there are no completions, peers' messages are offered to `inbox` before they go to receives; see
    /// [`Inbox`]. The inbox runs while the device is locked, and must not call the device.
    ///
    /// # Errors
    /// Same as [`Cq::poll`].
    #[inline]
    pub fn poll_with(
        &self,
        into: &mut [Completion],
        inbox: &mut dyn Inbox<ProcessMemory>,
    ) -> Result<usize, DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        shared.lifecycle().check()?;
        if inner.entries.is_empty() {
            shared.driver.poll_with(Some((self.id(), inbox)));
        }
        let count = inner.entries.pop(into);
        if self.has_refusals() {
            denials::log_now(&into[..count]);
        }
        Ok(count)
    }

    /// Like [`Cq::poll`], with the timestamp of each completion; 0 if the queue has no clock.
    ///
    /// # Errors
    /// Same as [`Cq::poll`].
    pub fn poll_stamped(&self, into: &mut [Stamped]) -> Result<usize, DeviceError> {
        let count = self.drive_if_empty()?.pop_stamped(into);
        if self.has_refusals() {
            denials::log_now(into[..count].iter().map(|stamped| &stamped.completion));
        }
        Ok(count)
    }

    /// Whether completions may name refusals. These must be in the log before the program sees the completions: it may end
    /// because of them.
    #[inline]
    fn has_refusals(&self) -> bool {
        self.0.device.shared().denials.reports().any()
    }

    /// The entries. If there are none, drives the engine first.
    #[inline(always)]
    fn drive_if_empty(&self) -> Result<&CqShared, DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        shared.lifecycle().check()?;
        if inner.entries.is_empty() {
            shared.driver.poll();
        }
        Ok(&inner.entries)
    }

    /// Waits until there is a completion. Returns `false` if `timeout` passed first (`None`: without limit). The calling thread
    /// polls for a short while, then sleeps and leaves driving the engine to the engine thread.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, DeviceError> {
        self.wait_or(timeout, || false)
    }

    /// Like [`Cq::wait`], but also returns `true` when `other` is true. A thread that makes it true calls [`Cq::wake`]
    /// afterwards.
    ///
    /// # Errors
    /// Same as [`Cq::wait`].
    pub fn wait_or(
        &self,
        timeout: Option<Duration>,
        other: impl Fn() -> bool,
    ) -> Result<bool, DeviceError> {
        self.0.device.check()?;
        let started = Instant::now();
        let deadline = timeout.and_then(|t| started.checked_add(t));
        let notify = &*self.0.notify;
        let sleeper = self.0.device.sleeper();
        let spin = self.0.device.config().spin;
        // Without packets, a sleeping thread is woken by another one, which takes longer than most waits.
        if notify.spin.pays() || !sleeper.receives_packets() {
            let until = started + spin;
            if self.spin_until(deadline.map_or(until, |end| end.min(until)), &other)? {
                notify.spin.waited(started.elapsed(), spin);
                return Ok(true);
            }
        }
        notify.waiters.fetch_add(1, Ordering::SeqCst);
        let result = self.sleep_until(deadline, &sleeper, &other);
        notify.waiters.fetch_sub(1, Ordering::SeqCst);
        let time = match &result {
            Ok(true) => started.elapsed(),
            _ => Duration::MAX,
        };
        notify.spin.waited(time, spin);
        result
    }

    /// Makes threads in [`Cq::wait_or`] check their condition again.
    pub fn wake(&self) {
        self.0.notify.wake_all();
    }

    fn spin_until(&self, until: Instant, other: &impl Fn() -> bool) -> Result<bool, DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        loop {
            for _ in 0..32 {
                if !inner.entries.is_empty() || other() {
                    return Ok(true);
                }
                shared.driver.poll();
                rkey_base::hint::pause();
            }
            shared.lifecycle().check()?;
            if Instant::now() >= until {
                return Ok(!inner.entries.is_empty() || other());
            }
        }
    }

    fn sleep_until(
        &self,
        deadline: Option<Instant>,
        sleeper: &Sleeper<'_>,
        other: &impl Fn() -> bool,
    ) -> Result<bool, DeviceError> {
        let inner = &*self.0;
        let (shared, notify) = (inner.device.shared(), &*inner.notify);
        let is_over = || !inner.entries.is_empty() || other();
        loop {
            let receives = sleeper.receives_packets();
            let registered = receives.then(|| notify.packet_waiter.register()).flatten();
            let seen = *notify.times_ready.lock();
            // If the device fails after this check, `times_ready` changes as well.
            shared.lifecycle().check()?;
            self.arm(false)?;
            shared.driver.hand_over();
            if is_over() {
                return Ok(true);
            }
            let is_same = || *notify.times_ready.lock() == seen;
            let waits = registered.as_ref().map(|it| (it, it.descriptor()));
            let in_time = match waits {
                Some((registered, Some(descriptor))) => {
                    let mut in_time = true;
                    // What packets for others have changed needs no other preparations.
                    while in_time && !is_over() && is_same() {
                        let woken = sleeper.sleep(descriptor, deadline)?;
                        shared.driver.send_held_packets();
                        if woken.is_readable && is_same() {
                            registered.clear();
                        }
                        in_time = woken.in_time;
                    }
                    in_time
                }
                _ => notify.sleep_until(deadline, seen),
            };
            if is_over() || !in_time {
                return Ok(is_over());
            }
        }
    }

    fn arm(&self, solicited_only: bool) -> Result<(), DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        shared.driver.command(|engine| {
            shared.cqs.arm(&inner.notify);
            engine.arm_cq(self.id(), solicited_only)
        })?;
        Ok(())
    }

    /// Requests one event on the channel for the next completion (with `solicited_only`: the next one that is solicited
    /// or an error). Completions that the queue already holds do not count: poll again after this call, then wait.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`], [`DeviceError::Unknown`] without a channel.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        if self.0.notify.channel.is_none() {
            return Err(DeviceError::Unknown {
                what: "completion channel",
            });
        }
        self.0.notify.wants_event.store(true, Ordering::Release);
        self.arm(solicited_only)?;
        shared.driver.hand_over();
        Ok(())
    }

    /// Requests one event on `channel` for the next completion that is solicited or an error, or for the end of a peer
    /// ([`Cq::ended_peers`]), independent of [`Cq::req_notify`]. All calls must name the same channel. Completions that the queue
    /// already holds do not count.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`]; [`DeviceError::Unknown`]: the channel belongs to another device.
    pub fn watch(&self, channel: &Channel) -> Result<(), DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        shared.lifecycle().check()?;
        if !inner.device.is(channel.device()) {
            return Err(DeviceError::Unknown {
                what: "completion channel",
            });
        }
        inner
            .notify
            .watcher
            .get_or_init(|| Arc::clone(channel.queue()));
        shared.driver.command(|engine| {
            shared.cqs.watch(&inner.notify);
            engine.watch_cq(self.id())
        })?;
        shared.driver.hand_over();
        Ok(())
    }

    /// The number of sends in flight that complete in this queue. Hands the engine over to the engine thread, which drives them.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn outstanding(&self) -> Result<u32, DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        let count = shared
            .driver
            .command(|engine| engine.outstanding(self.id()));
        shared.driver.hand_over();
        Ok(count)
    }

    /// Changes the depth of the queue.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`]; the queue holds more than `depth` completions.
    pub fn resize(&self, depth: u32) -> Result<(), DeviceError> {
        let device = &self.0.device;
        device.check()?;
        device.check_cq_depth(depth)?;
        device
            .shared()
            .driver
            .command(|engine| engine.resize_cq(self.id(), depth))?;
        Ok(())
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let shared = self.device.shared();
        if !shared.lifecycle().is_usable() {
            return;
        }
        let id = self.entries.id();
        shared.cqs.remove(id);
        shared.events.remove(EventSource::Cq(id));
        let channel = self.channel.as_ref().map(Channel::queue);
        for events in channel.into_iter().chain(self.notify.watcher.get()) {
            events.forget(|&event| event == id);
        }
        // Queue pairs hold their completion queues, so nothing uses the queue now.
        if let Err(error) = shared.driver.command(|engine| engine.destroy_cq(id)) {
            tracing::debug!(cq = ?id, %error, "cannot destroy the completion queue");
        }
    }
}

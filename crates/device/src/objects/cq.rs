//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rkey_base::memory::ProcessMemory;
use rkey_engine::{Clock, Completion, CqId, CqShared, EngineError, Inbox, Stamped};

use crate::device::Device;
use crate::error::DeviceError;
use crate::objects::channel::Channel;
use crate::objects::cq_notify::CqNotify;
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
    /// Creates a completion queue for up to `depth` completions, whose events go to `channel`.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`], [`DeviceError::Limit`]; [`DeviceError::Unknown`]: the channel is another device's.
    pub fn create_cq(&self, depth: u32, channel: Option<&Channel>) -> Result<Cq, DeviceError> {
        self.place_cq(depth, channel, |engine| engine.create_cq(depth))
    }

    /// As [`Device::create_cq`], for completions that have the time at which they were added, by `clock`, which must
    /// not call the device. [`Cq::poll_stamped`] tells it.
    ///
    /// # Errors
    /// As [`Device::create_cq`].
    pub fn create_stamped_cq(
        &self,
        depth: u32,
        channel: Option<&Channel>,
        clock: Clock,
    ) -> Result<Cq, DeviceError> {
        self.place_cq(depth, channel, |engine| {
            engine.create_stamped_cq(depth, clock)
        })
    }

    fn place_cq(
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
    /// The engine's name of it; events on a channel carry it.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.0.entries.id()
    }

    /// The device that it belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The channel that its events go to.
    #[must_use]
    pub fn channel(&self) -> Option<&Channel> {
        self.0.channel.as_ref()
    }

    /// How many completions it can hold.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.entries.depth()
    }

    /// How many completions wait in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether no completion waits in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// Whether a completion was lost because it was full. It stays broken.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.0.entries.is_overrun()
    }

    /// How many queue pairs that complete here were ended because the process of their peer is gone
    /// ([`QpOptions::fail_with_peer`](crate::QpOptions::fail_with_peer)). Whoever has armed the queue is told of one
    /// more as of a completion; what came from that peer was in the queue before.
    #[inline]
    #[must_use]
    pub fn peers_gone(&self) -> u32 {
        self.0.notify.peers_gone.load(Ordering::Acquire)
    }

    /// Takes completions, oldest first, fills `into` from its start and returns how many there were.
    /// When there is none, the call drives the engine itself if a peer has sent something.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, DeviceError> {
        let entries = self.look()?;
        // Looks before it locks, so that a poll in vain costs little.
        Ok(entries.pop(into))
    }

    /// Gives the processor away if [`Cq::poll_with`] has found nothing for a while: for the time after the caller has
    /// let go of locks that other threads want. [`Cq::poll`] does so by itself.
    #[inline]
    pub fn rest(&self) {
        self.0.device.shared().driver.rest();
    }

    /// As [`Cq::poll`]. When there is none, messages that a peer has sent are offered to `inbox` before they go to
    /// receives; see [`Inbox`]. It is called while the device is locked, and must not use it in any other way
    /// than through what it is given.
    ///
    /// # Errors
    /// As [`Cq::poll`].
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
            shared.driver.poll_for(Some((self.id(), inbox)));
        }
        Ok(inner.entries.pop(into))
    }

    /// As [`Cq::poll`], with the time of each completion; 0 if the queue has no clock.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn poll_stamped(&self, into: &mut [Stamped]) -> Result<usize, DeviceError> {
        Ok(self.look()?.pop_stamped(into))
    }

    /// The entries, after a look at what peers have sent if there were none.
    #[inline(always)]
    fn look(&self) -> Result<&CqShared, DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        shared.lifecycle().check()?;
        if inner.entries.is_empty() {
            shared.driver.poll();
        }
        Ok(&inner.entries)
    }

    /// Waits until a completion can be taken: `false` when `timeout` passed before (`None`: for
    /// ever). Polls for a short while, then sleeps and leaves the engine to its thread.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, DeviceError> {
        self.0.device.check()?;
        let started = Instant::now();
        let deadline = timeout.and_then(|t| started.checked_add(t));
        if self.spin_until(started + self.0.device.config().spin)? {
            return Ok(true);
        }
        let notify = &*self.0.notify;
        notify.waiters.fetch_add(1, Ordering::SeqCst);
        let result = self.sleep_until(deadline);
        notify.waiters.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn spin_until(&self, until: Instant) -> Result<bool, DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        loop {
            for _ in 0..32 {
                if !inner.entries.is_empty() {
                    return Ok(true);
                }
                shared.driver.poll();
                rkey_base::hint::pause();
            }
            shared.lifecycle().check()?;
            if Instant::now() >= until {
                return Ok(!inner.entries.is_empty());
            }
        }
    }

    fn sleep_until(&self, deadline: Option<Instant>) -> Result<bool, DeviceError> {
        let inner = &*self.0;
        let shared = inner.device.shared();
        loop {
            let seen = *inner.notify.times_ready.lock();
            // A device that fails after this look changes what was seen.
            shared.lifecycle().check()?;
            self.arm(false)?;
            shared.driver.hand_over();
            if !inner.entries.is_empty() {
                return Ok(true);
            }
            let mut times_ready = inner.notify.times_ready.lock();
            while *times_ready == seen {
                match deadline {
                    None => inner.notify.readiness.wait(&mut times_ready),
                    Some(until) => {
                        if inner
                            .notify
                            .readiness
                            .wait_until(&mut times_ready, until)
                            .timed_out()
                        {
                            return Ok(!inner.entries.is_empty());
                        }
                    }
                }
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

    /// Asks for one event on the channel when the next completion is added (with `solicited_only`:
    /// the next that the sender asked to announce, or that is an error). Completions that are there
    /// already do not count: poll once more after this call, then wait.
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

    /// Lets a channel hear of the next completion that its sender asked to announce, or that is an error, and of the end of
    /// a peer ([`Cq::peers_gone`]): once for each call, whatever else is asked for and told to others. It is the same
    /// channel in all calls. Completions that are there already do not count, as with [`Cq::req_notify`].
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`]; [`DeviceError::Unknown`]: the channel is another device's.
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

    /// How many sends are on their way that will complete here. The engine's thread sees to them meanwhile.
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

    /// Changes how many completions it can hold.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`]; more completions wait in it than it shall hold.
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
        let channel = self.channel.as_ref().map(Channel::queue);
        for events in channel.into_iter().chain(self.notify.watcher.get()) {
            events.forget(|&event| event == id);
        }
        // Queue pairs hold their completion queues, so nothing uses it any more.
        if let Err(error) = shared.driver.command(|engine| engine.destroy_cq(id)) {
            tracing::debug!(%error, "destroying a completion queue");
        }
    }
}

//! The endpoint behind its handles: progress, and waiting for it.
//!
//! One of the waiting threads at a time leads: it waits for the device and makes progress for all. The others sleep until
//! the leader has made progress or stops leading.

use super::host::EndpointHost;
use crate::device::handle::Device;
use crate::error::{Error, Result};
use crate::memory::owned::LocalMemory;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rkey_device::time;
use rkey_endpoint::{Driver, Holder, State};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a leader sleeps at most: a thread that polls without waiting may take the completion that would have woken
/// it.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// The pause between two attempts to post.
const PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Inner {
    driver: OnceLock<Driver<EndpointHost>>,
    /// Whether a thread leads.
    led: Mutex<bool>,
    /// Signalled when the leader has made progress or stopped leading.
    changed: Condvar,
    /// Outlives the driver, which uses it.
    memory: Arc<LocalMemory>,
    device: Device,
}

impl Holder for Inner {
    type Front = EndpointHost;

    fn driver(&self) -> Option<&Driver<EndpointHost>> {
        self.driver.get()
    }
}

impl Inner {
    pub(super) fn new(device: &Device, memory: Arc<LocalMemory>) -> Self {
        Self {
            driver: OnceLock::new(),
            led: Mutex::new(false),
            changed: Condvar::new(),
            memory,
            device: device.clone(),
        }
    }

    /// Sets the driver, once.
    pub(super) fn set(&self, driver: Driver<EndpointHost>) -> &Driver<EndpointHost> {
        self.driver.get_or_init(|| driver)
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn memory(&self) -> &LocalMemory {
        &self.memory
    }

    /// The driver of an open endpoint.
    pub(super) fn open(&self) -> Result<&Driver<EndpointHost>> {
        self.driver
            .get()
            .ok_or_else(|| Error::Object("the endpoint is not open".into()))
    }

    /// The state of the endpoint after progress was made.
    pub(super) fn advanced(&self) -> Result<MutexGuard<'_, State<EndpointHost>>> {
        let driver = self.open()?;
        let mut state = driver.state.lock();
        driver.advance(&mut state);
        Ok(state)
    }

    /// Makes progress, and wakes threads whose operations may have ended as a result.
    pub(super) fn progress(&self) -> Result<()> {
        drop(self.advanced()?);
        self.wake();
        Ok(())
    }

    /// Like [`Driver::post_backlog`], for the listeners' thread.
    pub(super) fn post_backlog(&self) -> bool {
        let waits = self.driver.get().is_some_and(Driver::post_backlog);
        self.wake();
        waits
    }

    /// Wakes waiting threads, which then check again.
    pub(super) fn wake(&self) {
        // A waiting thread holds this lock from its check until it sleeps, so taking the lock once ensures that the
        // notification reaches it.
        drop(self.led.lock());
        self.changed.notify_all();
    }

    /// Makes progress until `check` returns a result. `what` says in the error what the call waited for.
    pub(super) fn wait<T>(
        &self,
        timeout: Duration,
        what: &'static str,
        mut check: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let started = time::now();
        // A time limit beyond the clock's range means no limit.
        let deadline = started.checked_add(timeout);
        self.progress()?;
        loop {
            let mut led = self.led.lock();
            if let Some(result) = check() {
                return Ok(result);
            }
            if deadline.is_some_and(|at| time::now() >= at) {
                let after = timeout;
                return Err(Error::Timeout { what, after });
            }
            if *led {
                self.sleep(&mut led, deadline);
                continue;
            }
            *led = true;
            drop(led);
            let lead = Lead(self);
            let waited = self.lead(deadline);
            drop(lead);
            waited?;
        }
    }

    fn sleep(&self, led: &mut MutexGuard<'_, bool>, deadline: Option<Instant>) {
        match deadline {
            Some(at) => drop(self.changed.wait_until(led, at)),
            None => self.changed.wait(led),
        }
    }

    /// Waits for the device once, and makes progress.
    fn lead(&self, deadline: Option<Instant>) -> Result<()> {
        let left = deadline.map_or(SLEEP_MAX, |at| at.saturating_duration_since(time::now()));
        let driver = self.open()?;
        driver.cq.wait(Some(left.min(SLEEP_MAX)))?;
        drop(self.advanced()?);
        Ok(())
    }

    /// Waits briefly for a connection that another thread makes, or for room on one, and makes progress while it waits.
    pub(super) fn pause(&self) -> Result<()> {
        let until = time::now() + PAUSE;
        let mut led = self.led.lock();
        if *led {
            self.changed.wait_until(&mut led, until);
            return Ok(());
        }
        *led = true;
        drop(led);
        let _lead = Lead(self);
        self.lead(Some(until))
    }
}

/// The thread that owns this value leads until it drops the value.
struct Lead<'a>(&'a Inner);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        *self.0.led.lock() = false;
        self.0.changed.notify_all();
    }
}

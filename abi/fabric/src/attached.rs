//! The endpoints that a queue or a counter drives when the program reads it or waits for it.

use crate::errno::Result;
use crate::wait::Set;
use parking_lot::{RwLock, RwLockReadGuard};
use std::os::fd::RawFd;
use std::sync::Arc;

/// What queues and counters need from an endpoint. `ep/driven.rs` implements it.
pub(crate) trait Driven: Send + Sync {
    /// Handles completions of the device and arrived messages.
    fn progress(&self);

    /// Sends the responses that are waiting for room in the endpoint's completion queue.
    fn send_owed_answers(&self);

    /// Prepares a thread to wait for one of the endpoint's completion queues: the endpoint's descriptor becomes
    /// readable when there is something to do.
    fn arm(&self, cq: CqId) -> Result<Armed>;

    /// Checks whether the connection has ended. Returns whether there was anything to do.
    fn check_for_end(&self) -> bool;

    /// Like [`Driven::arm`], but for the end of the connection only.
    fn arm_for_end(&self) -> Result<()>;
}

/// Identifies a completion queue by its address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CqId(pub(crate) usize);

/// What an endpoint reports to a thread that is about to wait.
#[derive(Clone, Copy, Default)]
pub(crate) struct Armed {
    /// Whether a call that returned `FI_EAGAIN` may be repeated.
    pub(crate) may_retry: bool,
    /// Whether the endpoint waits for something that wakes no thread.
    pub(crate) needs_polling: bool,
}

/// A list of endpoints without duplicates.
#[derive(Default)]
pub(crate) struct Attached(RwLock<Vec<Arc<dyn Driven>>>);

/// Whether both are the same endpoint. Compares only addresses, because one type can have several vtables.
fn is_same<A: ?Sized, B: ?Sized>(one: &Arc<A>, other: &Arc<B>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

impl Attached {
    /// All endpoints of the list, which stays unchanged while the guard exists.
    pub(crate) fn all(&self) -> RwLockReadGuard<'_, Vec<Arc<dyn Driven>>> {
        self.0.read()
    }

    /// Whether an endpoint is in the list.
    pub(crate) fn has(&self, endpoint: &Arc<dyn Driven>) -> bool {
        self.0.read().iter().any(|known| is_same(known, endpoint))
    }

    pub(crate) fn add(&self, endpoint: &Arc<impl Driven + 'static>) {
        let mut all = self.0.write();
        if !all.iter().any(|known| is_same(known, endpoint)) {
            all.push(endpoint.clone());
        }
    }

    pub(crate) fn remove(&self, endpoint: &Arc<impl Driven>) {
        self.0.write().retain(|known| !is_same(known, endpoint));
    }

    /// Adds an endpoint, and its descriptor to the set that a program waits on.
    pub(crate) fn join(
        &self,
        endpoint: &Arc<impl Driven + 'static>,
        set: Option<&Set>,
        fd: Option<RawFd>,
    ) -> Result<()> {
        if let (Some(set), Some(fd)) = (set, fd) {
            set.add(fd)?;
        }
        self.add(endpoint);
        Ok(())
    }

    /// Undoes [`Attached::join`].
    pub(crate) fn leave(&self, endpoint: &Arc<impl Driven>, set: Option<&Set>, fd: Option<RawFd>) {
        if let (Some(set), Some(fd)) = (set, fd) {
            set.remove(fd);
        }
        self.remove(endpoint);
    }
}

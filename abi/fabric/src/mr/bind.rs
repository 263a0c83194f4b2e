//! `fi_mr_bind`: the counters and the endpoint of a region.

#![allow(unsafe_code)]
// UNSAFETY: queries the protection table; keeps a list of regions without reference counts.

use super::region::{Mr, State};
use crate::cntr::Counter;
use crate::domain::Domain;
use crate::errno::{FiError, Result};
use crate::lenient;
use crate::sys::*;
use crate::watched::Watched;
use rkey_device::core::RegionId;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Binds a counter of remote accesses (FI-179 to FI-181, FI-183, FI-I37).
pub(crate) fn bind_counter(mr: &Mr, counter: &Arc<Counter>, flags: u64) -> Result<()> {
    if flags != FI_REMOTE_WRITE || !mr.is_of(&counter.domain) {
        return Err(FiError::INVAL);
    }
    if !mr.domain.rma_events {
        tracing::warn!(
            "remote accesses are counted only in domains that were opened with the capability FI_RMA_EVENT"
        );
        return Err(FiError::NOSYS);
    }
    // FI-070, FI-071: the program says at registration that it will bind a counter.
    if mr.domain.has(FI_MR_RMA_EVENT) && !mr.rma_event {
        rkey_device::denials::refused(
            "in an FI_MR_RMA_EVENT domain, a counter can be bound to a region only if it was registered with FI_RMA_EVENT",
        );
        return Err(FiError::INVAL);
    }
    watch(mr);
    let mut state = mr.state.lock();
    if state.sealed {
        return Err(FiError::OPBADSTATE);
    }
    if let Some(bound) = &state.counter {
        return if Arc::ptr_eq(bound, counter) {
            Ok(())
        } else {
            Err(FiError::BUSY)
        };
    }
    stop_counting(mr, &mut state);
    for region in mr.everywhere() {
        mr.domain.device.bind_counter(region.id, counter.number())?;
    }
    state.counter = Some(Arc::clone(counter));
    Ok(())
}

/// Binds the endpoint that the region serves (FI-076, FI-182).
pub(crate) fn bind_endpoint(mr: &Mr, number: u32, flags: u64) -> Result<()> {
    if flags != 0 {
        return Err(FiError::INVAL);
    }
    watch(mr);
    let mut state = mr.state.lock();
    if state.sealed {
        return Err(FiError::OPBADSTATE);
    }
    for region in mr.everywhere() {
        mr.domain.device.bind_endpoint(region.id, number)?;
    }
    state.endpoint = Some(number);
    Ok(())
}

/// Adds the region to the list that counters and endpoints search. Must not be called under the lock of a region's
/// state.
pub(super) fn watch(mr: &Mr) {
    mr.watched.store(true, Ordering::Relaxed);
    // SAFETY: a region is removed from the list before its object is freed (`unwatch`), and its object does not move.
    unsafe { mr.domain.watched.add(mr) };
}

/// Undoes [`watch`].
pub(super) fn unwatch(mr: &Mr) {
    mr.domain.watched.remove(mr);
}

impl Watched for Mr {
    fn counter_closes(&self, counter: u32) {
        let mut state = self.state.lock();
        let is_bound = |bound: &Arc<Counter>| bound.number() == counter;
        if state.counter.as_ref().is_some_and(is_bound) {
            state.counter = None;
            unbind(self, |table, id| table.unbind_counter(id));
            count(self, &mut state);
        }
    }

    fn endpoint_closes(&self, endpoint: u32) {
        let mut state = self.state.lock();
        if state.endpoint == Some(endpoint) {
            state.endpoint = None;
            unbind(self, |table, id| table.unbind_endpoint(id));
        }
    }

    fn count_for_endpoints(&self) {
        let mut state = self.state.lock();
        if !state.unconfigured {
            count(self, &mut state);
        }
    }
}

/// Starts counting for regions without a counter: an endpoint now has a counter of remote accesses.
pub(crate) fn count_for_endpoints(domain: &Domain) {
    domain.remote_counted.get_or_init(crate::domain::number);
    if domain.rma_events {
        domain
            .watched
            .for_each(|region| region.count_for_endpoints());
    }
}

/// Counts remote accesses to a region without a counter, if an endpoint has a counter for them. For a
/// sealed region, to which nothing more can be bound, counting cannot begin.
pub(super) fn count(mr: &Mr, state: &mut State) {
    let Some(&number) = mr.domain.remote_counted.get() else {
        return;
    };
    if state.counter.is_some() || state.counted || !mr.access.is_remote() {
        return;
    }
    state.counted = true;
    for region in mr.everywhere() {
        if let Err(error) = mr.domain.device.bind_counter(region.id, number) {
            tracing::debug!(%error, "cannot count accesses to {}", region.id);
            return stop_counting(mr, state);
        }
    }
}

fn stop_counting(mr: &Mr, state: &mut State) {
    if std::mem::take(&mut state.counted) {
        unbind(mr, |table, id| table.unbind_counter(id));
    }
}

/// Unbinds a region that is being closed from its counter and its endpoint, if it may be closed before them;
/// otherwise returns `FI_EBUSY` and changes nothing.
pub(super) fn release(mr: &Mr) -> Result<()> {
    let mut state = mr.state.lock();
    if state.counter.is_some() {
        lenient::unless_strict(&lenient::BOUND_COUNTER, FiError::BUSY)?;
    }
    if state.endpoint.is_some() && mr.domain.version < version(2, 0) {
        lenient::unless_strict(&lenient::BOUND_ENDPOINT, FiError::BUSY)?;
    }
    if state.counter.take().is_some() {
        unbind(mr, |table, id| table.unbind_counter(id));
    }
    if state.endpoint.take().is_some() {
        unbind(mr, |table, id| table.unbind_endpoint(id));
    }
    stop_counting(mr, &mut state);
    Ok(())
}

fn unbind(
    mr: &Mr,
    how: impl Fn(
        &rkey_device::core::Protection,
        RegionId,
    ) -> std::result::Result<(), rkey_device::core::CoreError>,
) {
    // SAFETY: registers and deregisters nothing.
    let table = unsafe { mr.domain.device.protection() };
    for region in mr.everywhere() {
        // A region that was closed meanwhile is bound to nothing.
        let _ = how(table, region.id);
    }
}

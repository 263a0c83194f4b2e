//! `fi_mr_bind`: the counters and the endpoint of a region.

#![allow(unsafe_code)]
// UNSAFETY: C functions; a list of regions without reference counts.

use super::attr::AvKeys;
use super::region::{Mr, MrObject, State};
use crate::cntr::{CntrObject, Counter};
use crate::domain::Domain;
use crate::ep::object::EpObject;
use crate::errno::{FiError, Result};
use crate::lenient;
use crate::object::{find, input, status};
use crate::sys::*;
use rkey_device::core::RegionId;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller promises the rest; every handle
        // begins with a `fid`.
        let (object, class) =
            unsafe { (find::<MrObject, _>(fid)?, input(bound.cast_const())?.fclass) };
        let mr = &object.inner;
        match class {
            FI_CLASS_CNTR => {
                // SAFETY: `find` validates the handle.
                let counter = unsafe { find::<CntrObject, _>(bound)? };
                bind_counter(mr, &counter.inner, flags)
            }
            FI_CLASS_EP => {
                // SAFETY: `find` validates the handle.
                let ep = unsafe { find::<EpObject, _>(bound)? };
                if !mr.is_of(&ep.inner.domain) {
                    return Err(FiError::INVAL);
                }
                // FI-210.
                let foreign = |keys: &AvKeys| {
                    ep.inner
                        .bound_av()
                        .is_none_or(|av| !Arc::ptr_eq(&av, &keys.av))
                };
                if mr
                    .copies
                    .as_ref()
                    .is_some_and(|copies| foreign(&copies.keys))
                {
                    tracing::warn!(
                        "a region and its endpoint must have their authorization keys from the same address vector"
                    );
                    return Err(FiError::INVAL);
                }
                bind_endpoint(mr, ep.inner.number, flags)
            }
            // FI-I37, FI-183.
            _ => Err(FiError::NOSYS),
        }
    })
}

/// Binds a counter of remote accesses (FI-179 to FI-181, FI-183, FI-I37).
fn bind_counter(mr: &Mr, counter: &Arc<Counter>, flags: u64) -> Result<()> {
    if flags != FI_REMOTE_WRITE || !mr.is_of(&counter.domain) {
        return Err(FiError::INVAL);
    }
    if !mr.domain.rma_events {
        tracing::warn!(
            "remote accesses are counted only in domains that were opened with the capability FI_RMA_EVENT"
        );
        return Err(FiError::NOSYS);
    }
    // FI-070, FI-071.
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
fn bind_endpoint(mr: &Mr, number: u32, flags: u64) -> Result<()> {
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

/// A region that must be found when a counter or an endpoint is bound or closed.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Watched(NonNull<Mr>);

// SAFETY: stands for a reference, and threads share regions.
unsafe impl Send for Watched {}

/// Makes the region findable. Must not be called under the lock of a region's state.
pub(super) fn watch(mr: &Mr) {
    let mut watched = mr.domain.watched.lock();
    watched.insert(Watched(NonNull::from(mr)));
    mr.watched.store(true, Ordering::Relaxed);
}

/// Ends [`watch`].
pub(super) fn unwatch(mr: &Mr) {
    let mut watched = mr.domain.watched.lock();
    watched.remove(&Watched(NonNull::from(mr)));
}

fn for_each_watched(domain: &Domain, mut then: impl FnMut(&Mr)) {
    for mr in &*domain.watched.lock() {
        // SAFETY: a region is removed before it is freed, under the lock that is held here.
        then(unsafe { mr.0.as_ref() });
    }
}

/// Stops counting for the regions of a counter that is being closed (FI-267, FI-I06).
pub(crate) fn detach_counter(counter: &Arc<Counter>) {
    for_each_watched(&counter.domain, |mr| {
        let mut state = mr.state.lock();
        if state
            .counter
            .as_ref()
            .is_some_and(|bound| Arc::ptr_eq(bound, counter))
        {
            state.counter = None;
            untie(mr, |table, id| table.unbind_counter(id));
            count(mr, &mut state);
        }
    });
}

/// Starts counting for regions without a counter: an endpoint has got a counter of remote accesses.
pub(crate) fn count_for_endpoints(domain: &Arc<Domain>) {
    domain.remote_counted.get_or_init(crate::domain::number);
    if !domain.rma_events {
        return;
    }
    for_each_watched(domain, |mr| {
        let mut state = mr.state.lock();
        if !state.unconfigured {
            count(mr, &mut state);
        }
    });
}

/// Counts remote accesses to a region without a counter, if an endpoint wants to know. Once enabled under a
/// mode that seals it, a region is no longer counted.
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
            tracing::debug!(%error, "cannot count a region");
            return stop_counting(mr, state);
        }
    }
}

fn stop_counting(mr: &Mr, state: &mut State) {
    if std::mem::take(&mut state.counted) {
        untie(mr, |table, id| table.unbind_counter(id));
    }
}

/// Unbinds regions from an endpoint that is being closed: they serve no peer any more (FI-267).
pub(crate) fn detach_endpoint(domain: &Domain, number: u32) {
    for_each_watched(domain, |mr| {
        let mut state = mr.state.lock();
        if state.endpoint == Some(number) {
            state.endpoint = None;
            untie(mr, |table, id| table.unbind_endpoint(id));
        }
    });
}

/// Unbinds a region that is being closed from its counter and its endpoint, if it may be closed before them;
/// otherwise changes nothing.
pub(super) fn release(mr: &Mr) -> Result<()> {
    let mut state = mr.state.lock();
    if state.counter.is_some() {
        lenient::unless_strict(&lenient::TIED_COUNTER, FiError::BUSY)?;
    }
    if state.endpoint.is_some() && mr.domain.version < version(2, 0) {
        lenient::unless_strict(&lenient::TIED_ENDPOINT, FiError::BUSY)?;
    }
    if state.counter.take().is_some() {
        untie(mr, |table, id| table.unbind_counter(id));
    }
    if state.endpoint.take().is_some() {
        untie(mr, |table, id| table.unbind_endpoint(id));
    }
    stop_counting(mr, &mut state);
    Ok(())
}

fn untie(
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

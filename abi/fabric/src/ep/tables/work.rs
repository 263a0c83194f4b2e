//! Triggered operations and the deferred work queue (fi_trigger(3)): turns the program's structures into queued work.

#![allow(unsafe_code)]
// UNSAFETY: reads the program's structures.

use super::deferred::Job;
use crate::cntr::{CntrObject, Counter};
use crate::domain::Domain;
use crate::errno::{FiError, Result};
use crate::object::{find, input};
use crate::sys::*;
use crate::work::Action;
use std::ffi::c_void;
use std::sync::Arc;

/// The counter behind a handle; `FI_EINVAL` if it belongs to another domain.
///
/// # Safety
/// The handle may be invalid; a live object stays alive during the call.
unsafe fn counter_of<'a>(domain: &Arc<Domain>, handle: *mut FidCntr) -> Result<&'a Arc<Counter>> {
    // SAFETY: guaranteed by the caller.
    let counter = &unsafe { find::<CntrObject, _>(handle)? }.inner;
    if !Arc::ptr_eq(&counter.domain, domain) {
        return Err(FiError::INVAL);
    }
    Ok(counter)
}

/// A change of a counter.
enum Count {
    Set(Arc<Counter>, u64),
    Add(Arc<Counter>, u64),
}

impl Action for Count {
    fn run(&self) -> Result<()> {
        match self {
            Self::Set(counter, value) => counter.set(*value),
            Self::Add(counter, value) => counter.add(*value),
        }
        Ok(())
    }

    fn failed(&self, _: FiError) {}

    fn endpoint(&self) -> Option<u32> {
        None
    }

    fn is_work(&self) -> bool {
        true
    }
}

fn add(
    domain: &Domain,
    counter: &Arc<Counter>,
    threshold: u64,
    id: usize,
    action: Box<dyn Action>,
) {
    let counter: Arc<Counter> = Arc::clone(counter);
    domain
        .work
        .add(&domain.device, counter, threshold, id, action);
}

/// Queues an operation that was posted with `FI_TRIGGER`.
///
/// # Safety
/// `context` is null or a `fi_triggered_context`.
pub(super) unsafe fn trigger(domain: &Arc<Domain>, context: *mut c_void, job: Job) -> Result<()> {
    // SAFETY: guaranteed by the caller.
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
    add(domain, counter, threshold, id, Box::new(job));
    domain.work.run();
    Ok(())
}

/// `FI_QUEUE_WORK`.
///
/// # Safety
/// `work` is null or a complete `fi_deferred_work`.
pub(crate) unsafe fn queue(domain: &Arc<Domain>, work: *const DeferredWork) -> Result<()> {
    // SAFETY: `input` refuses null; `counter_of` validates the handle; the caller guarantees the rest.
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
    let action: Box<dyn Action> = match request.op_type {
        FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
            if done.is_some() {
                return Err(FiError::INVAL);
            }
            // SAFETY: the caller guarantees the structure of this operation.
            let (op, target) = unsafe {
                let op = input(request.op.cast::<DeferredCount>())?;
                (op, Arc::clone(counter_of(domain, op.cntr)?))
            };
            match request.op_type {
                FI_OP_CNTR_SET => Box::new(Count::Set(target, op.value)),
                _ => Box::new(Count::Add(target, op.value)),
            }
        }
        _ => {
            // SAFETY: the caller guarantees the structure of this operation.
            let job = unsafe { Job::of_work(domain, request, done.clone())? };
            if let Some(done) = &done {
                // Reading the completion counter makes the endpoint progress.
                job.attach(done);
            }
            Box::new(job)
        }
    };
    add(domain, counter, request.threshold, work as usize, action);
    domain.work.run();
    Ok(())
}

/// `FI_CANCEL_WORK`: returns `FI_ENOENT` for work that is not waiting.
pub(crate) fn cancel(domain: &Domain, work: *const DeferredWork) -> Result<()> {
    match domain.work.cancel_work(work as usize) {
        true => Ok(()),
        false => Err(FiError::NOENT),
    }
}

/// `FI_FLUSH_WORK`: cancels all deferred work, or all that waits for one counter.
///
/// # Safety
/// The counter may be null or invalid; a live one stays open during the call.
pub(crate) unsafe fn flush(domain: &Arc<Domain>, counter: *mut FidCntr) -> Result<()> {
    if counter.is_null() {
        domain.work.flush(None);
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let counter = unsafe { counter_of(domain, counter)? };
    domain.work.flush(Some(&**counter));
    Ok(())
}

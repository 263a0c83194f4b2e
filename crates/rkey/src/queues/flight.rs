//! Operations in flight on one queue, numbered as they are posted and finished in the same order.
//!
//! A queue pair completes each of its queues in posting order, so one number describes the progress of a
//! queue. After the first failure, everything posted later is flushed.

use crate::error::{Error, Result};
use crate::queues::completion::{Cause, CompletionQueue};
use parking_lot::{Mutex, MutexGuard};
use rkey_device::time;
use rkey_engine::Completion;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The operations of one send or receive queue.
pub(crate) struct Flight {
    queue: CompletionQueue,
    depth: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the next operation.
    posted: u64,
    /// Operations below this number are finished.
    finished: u64,
    failure: Option<Failure>,
    /// Results that a caller still waits for, by number.
    results: HashMap<u64, Completion>,
}

/// The first operation that failed, and why.
#[derive(Clone)]
struct Failure {
    number: u64,
    cause: Cause,
    /// Whether the failure has been reported to the program.
    told: bool,
}

impl Flight {
    pub(crate) fn new(queue: CompletionQueue, depth: u32) -> Self {
        Self {
            queue,
            depth,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Posts one operation when there is room, and returns its number, which is passed to `post`.
    pub(crate) fn post(
        &self,
        timeout: Duration,
        wants_result: bool,
        post: impl FnOnce(u64) -> Result<()>,
    ) -> Result<u64> {
        let started = time::now();
        loop {
            let mut state = self.lock();
            self.take_completions(&mut state)?;
            if let Some(failure) = &mut state.failure {
                // The first call after an unreported failure reports it.
                let told = std::mem::replace(&mut failure.told, true);
                let error = failure.cause.to_error();
                return Err(if told {
                    Error::Flushed {
                        first: error.to_string(),
                    }
                } else {
                    error
                });
            }
            if state.posted - state.finished < u64::from(self.depth) {
                let number = state.posted;
                post(number)?;
                state.posted += 1;
                if wants_result {
                    state.results.insert(number, Completion::default());
                }
                return Ok(number);
            }
            drop(state);
            self.pause(started, timeout, "room in the send queue")?;
        }
    }

    /// How the operation ended, if it has ended.
    pub(crate) fn outcome(&self, number: u64) -> Option<Result<Completion>> {
        let mut state = self.lock();
        if let Err(error) = self.take_completions(&mut state) {
            return Some(Err(error));
        }
        if let Some(failure) = &mut state.failure {
            if number == failure.number {
                failure.told = true;
                return Some(Err(failure.cause.to_error()));
            }
            if number > failure.number {
                let first = failure.cause.to_error().to_string();
                return Some(Err(Error::Flushed { first }));
            }
        }
        (number < state.finished).then(|| Ok(state.results.remove(&number).unwrap_or_default()))
    }

    /// Waits for one operation.
    pub(crate) fn wait(
        &self,
        number: u64,
        timeout: Duration,
        what: &'static str,
    ) -> Result<Completion> {
        let started = time::now();
        loop {
            if let Some(outcome) = self.outcome(number) {
                return outcome;
            }
            self.pause(started, timeout, what)?;
        }
    }

    /// Waits until nothing is in flight; reports a failure that was not reported yet.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<()> {
        let started = time::now();
        loop {
            let mut state = self.lock();
            self.take_completions(&mut state)?;
            if let Some(failure) = &mut state.failure {
                let told = std::mem::replace(&mut failure.told, true);
                return if told {
                    Ok(())
                } else {
                    Err(failure.cause.to_error())
                };
            }
            if state.finished == state.posted {
                return Ok(());
            }
            drop(state);
            self.pause(started, timeout, "the operations in flight to complete")?;
        }
    }

    /// Records that the result of this operation is no longer needed.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().results.remove(&number);
    }

    /// Whether the operation is finished, with or without an error.
    pub(crate) fn is_finished(&self, number: u64) -> bool {
        let mut state = self.lock();
        let broken = self.take_completions(&mut state).is_err();
        broken || number < state.finished || state.failure.is_some()
    }

    fn take_completions(&self, state: &mut State) -> Result<()> {
        let mut batch = [Completion::default(); 16];
        loop {
            let count = self.queue.poll(&mut batch)?;
            for completion in &batch[..count] {
                state.take(&self.queue, completion);
            }
            if count < batch.len() {
                return Ok(());
            }
        }
    }

    /// Sleeps until something completes or the time has passed.
    fn pause(&self, started: Instant, timeout: Duration, what: &'static str) -> Result<()> {
        let left = timeout.saturating_sub(time::since(started));
        if left.is_zero() {
            return Err(Error::Timeout {
                what,
                after: timeout,
            });
        }
        // Another thread may take the completion that we sleep for, so callers check again regularly.
        self.queue
            .wait(left.min(Duration::from_millis(20)))
            .map(|_| ())
    }
}

impl State {
    fn take(&mut self, queue: &CompletionQueue, completion: &Completion) {
        let number = completion.id;
        if !completion.status.is_success() {
            let failed_before = self.failure.as_ref().is_some_and(|f| f.number <= number);
            if !failed_before {
                let cause = Cause::of(queue, completion);
                self.failure = Some(Failure {
                    number,
                    cause,
                    told: false,
                });
            }
            return;
        }
        self.finished = self.finished.max(number + 1);
        if let Some(result) = self.results.get_mut(&number) {
            *result = *completion;
        }
    }
}

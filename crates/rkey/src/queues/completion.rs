//! Completion queues, for programs that post operations and poll for their results themselves.

use crate::device::domain::Domain;
use crate::device::handle::Device;
use crate::error::{Error, Result};
use rkey_core::Denial;
use rkey_engine::{Completion, Status};
use std::time::Duration;

/// A queue in which finished operations are reported. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    raw: rkey_device::Cq,
}

impl CompletionQueue {
    pub(crate) fn create(device: &Device, depth: u32) -> Result<Self> {
        Ok(Self {
            raw: device.raw().create_cq(depth, None)?,
        })
    }

    pub(crate) fn raw(&self) -> &rkey_device::Cq {
        &self.raw
    }

    /// Takes finished operations, oldest first, and returns how many it wrote to `into`. Never blocks. A program that
    /// polls drives the device on its own core; meanwhile, the device's thread sleeps.
    ///
    /// # Errors
    /// The device is broken, or this is a forked child.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize> {
        Ok(self.raw.poll(into)?)
    }

    /// Waits up to `timeout` until a completion can be polled; returns `false` if there is none by then. Polls for a few
    /// microseconds and then sleeps.
    ///
    /// # Errors
    /// Same as [`CompletionQueue::poll`].
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        Ok(self.raw.wait(Some(timeout))?)
    }

    /// Waits for the next completion and takes it; `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// Same as [`CompletionQueue::poll`].
    pub fn next(&self, timeout: Duration) -> Result<Option<Completion>> {
        let mut one = [Completion::default()];
        loop {
            if self.poll(&mut one)? == 1 {
                return Ok(Some(one[0]));
            }
            // If another thread took the completion, wait again: this call can take longer than `timeout` only while
            // that happens.
            if !self.wait(timeout)? {
                return Ok(None);
            }
        }
    }

    /// The denial that made a completion's operation fail, if it is one of the last few hundred, which the device keeps.
    #[must_use]
    pub fn denial(&self, completion: &Completion) -> Option<Box<Denial>> {
        self.raw
            .device()
            .denial(completion.vendor)
            .map(|report| Box::new(report.denial))
    }

    /// The error of a completion, if the operation failed.
    ///
    /// # Errors
    /// [`Error::Denied`] and others, as `Pending::wait` returns them.
    pub fn check(&self, completion: &Completion) -> Result<()> {
        if completion.status.is_success() {
            return Ok(());
        }
        Err(Cause::of(self, completion).to_error())
    }
}

/// Why an operation failed, in a form that can be reported more than once.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    Denied(Box<Denial>),
    Refused(&'static str, Status),
    PeerGone(&'static str),
    NotReceiving,
    Flushed,
    Other(Status),
}

impl Cause {
    pub(crate) fn of(queue: &CompletionQueue, completion: &Completion) -> Self {
        let denial = || queue.denial(completion);
        match completion.status {
            Status::RetryExceeded => Self::PeerGone("it did not answer in time"),
            Status::RnrRetryExceeded => Self::NotReceiving,
            Status::Flushed => Self::Flushed,
            status @ (Status::RemoteAccess
            | Status::RemoteInvalidRequest
            | Status::RemoteOperation) => {
                denial().map_or(Self::Refused("peer", status), Self::Denied)
            }
            status @ (Status::LocalProtection | Status::LocalAccess | Status::WindowBind) => {
                denial().map_or(Self::Refused("local device", status), Self::Denied)
            }
            status => Self::Other(status),
        }
    }

    pub(crate) fn to_error(&self) -> Error {
        match self {
            Self::Denied(denial) => Error::Denied(denial.clone()),
            Self::Refused(side, status) => Error::Refused {
                side,
                status: in_words(*status).into(),
            },
            Self::PeerGone(how) => Error::PeerGone { how: (*how).into() },
            Self::NotReceiving => Error::NotReceiving,
            Self::Flushed => Error::PeerGone {
                how:
                    "the connection broke: the peer exited, closed it, or was refused an access here"
                        .into(),
            },
            Self::Other(status) => Error::Object(format!(
                "the operation failed: {}",
                in_words(*status)
            )),
        }
    }
}

fn in_words(status: Status) -> &'static str {
    match status {
        Status::Success => "success",
        Status::LocalLength => "the message is longer than the receive",
        Status::LocalQpOperation => "the queue pair does not support the request",
        Status::LocalProtection => "access to local memory was denied, or failed",
        Status::Flushed => "flushed: the queue pair had failed before",
        Status::WindowBind => "the window could not be bound",
        Status::BadResponse => "the peer's response is invalid",
        Status::LocalAccess => "a message was refused while it was being received",
        Status::RemoteInvalidRequest => "the peer found the request invalid",
        Status::RemoteAccess => "the peer refused the access",
        Status::RemoteOperation => "the peer could not execute the request",
        Status::RetryExceeded => "the peer did not answer in time",
        Status::RnrRetryExceeded => "the peer had no receive posted in time",
        Status::RemoteAborted => "the sender abandoned the message",
        Status::Fatal => "the queue pair or its completion queue is broken",
    }
}

impl Domain {
    /// Creates a completion queue for `depth` completions, for programs that post and poll themselves.
    ///
    /// # Errors
    /// The limit of completion queues or of their depth is reached.
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue> {
        CompletionQueue::create(self.device(), depth)
    }
}

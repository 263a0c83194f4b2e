//! Asynchronous events of a device that several front ends share: each front end has a queue for the events of its own objects.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rkey_engine::{AsyncEvent, CqId, QpId, SrqId};

use super::event_queue::EventQueue;
use crate::error::DeviceError;

/// The queue from which an opening of a device takes its events.
pub(crate) type AsyncQueue = EventQueue<AsyncEvent>;

/// An object that events concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EventSource {
    Cq(CqId),
    Qp(QpId),
    Srq(SrqId),
}

impl EventSource {
    /// The object of an event; `None` for an event that this version does not know.
    fn of(event: AsyncEvent) -> Option<Self> {
        Some(match event {
            AsyncEvent::CqOverrun(cq) => Self::Cq(cq),
            AsyncEvent::SrqLimit(srq) => Self::Srq(srq),
            AsyncEvent::QpFatal { qp, .. }
            | AsyncEvent::AccessError { qp, .. }
            | AsyncEvent::RequestError { qp, .. }
            | AsyncEvent::SqDrained { qp, .. }
            | AsyncEvent::LastWqeReached { qp, .. }
            | AsyncEvent::CommEstablished { qp, .. }
            | AsyncEvent::PeerGone { qp, .. } => Self::Qp(qp),
            _ => return None,
        })
    }
}

/// The queues of all openings of a device. Objects of the first opening need no entry.
#[derive(Debug)]
pub(crate) struct AsyncQueues {
    first: Arc<AsyncQueue>,
    others: Mutex<HashMap<EventSource, Arc<AsyncQueue>>>,
}

impl AsyncQueues {
    /// Creates the queue of the first opening.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new() -> Result<Self, DeviceError> {
        Ok(Self {
            first: new_queue()?,
            others: Mutex::default(),
        })
    }

    /// The queue of the first opening.
    pub(crate) fn first(&self) -> &Arc<AsyncQueue> {
        &self.first
    }

    /// Sends the events of a new object to the queue of its opening.
    pub(crate) fn add(&self, source: EventSource, queue: &Arc<AsyncQueue>) {
        if !Arc::ptr_eq(queue, &self.first) {
            self.others.lock().insert(source, Arc::clone(queue));
        }
    }

    /// Forgets a destroyed object.
    pub(crate) fn remove(&self, source: EventSource) {
        self.others.lock().remove(&source);
    }

    /// Adds an event to the queue of its object.
    pub(crate) fn push(&self, event: AsyncEvent) {
        let other =
            EventSource::of(event).and_then(|source| self.others.lock().get(&source).cloned());
        other.as_ref().unwrap_or(&self.first).push(event);
    }
}

/// A queue for an opening. When it is full, each new event replaces the oldest.
///
/// # Errors
/// No descriptor is available.
pub(crate) fn new_queue() -> Result<Arc<AsyncQueue>, DeviceError> {
    Ok(Arc::new(EventQueue::new(4096)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opening_of_a_device_gets_the_events_of_its_own_objects() {
        let queues = AsyncQueues::new().unwrap();
        let second = new_queue().unwrap();
        let (own, other) = (SrqId::from((1, 1)), SrqId::from((2, 1)));
        queues.add(EventSource::Srq(own), queues.first());
        queues.add(EventSource::Srq(other), &second);
        for id in [own, other] {
            queues.push(AsyncEvent::SrqLimit(id));
        }
        assert_eq!(queues.first().try_next(), Some(AsyncEvent::SrqLimit(own)));
        assert_eq!(queues.first().try_next(), None);
        assert_eq!(second.try_next(), Some(AsyncEvent::SrqLimit(other)));
        queues.remove(EventSource::Srq(other));
        queues.push(AsyncEvent::SrqLimit(other));
        assert_eq!(second.try_next(), None);
    }
}

//! Ended operations whose memory a peer may still access: the peer was stopped in the middle of an access, and the
//! operation has timed out or failed. Their end is reported to the program only when it owns its memory again. A peer that
//! takes too long loses its link.

use std::time::{Duration, Instant};

/// How long a peer may keep memory of an ended operation.
pub const STUCK: Duration = Duration::from_secs(1);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(1);

/// An ended operation, and the queue pair that it was posted to.
#[derive(Debug)]
pub struct Ended<T, Q> {
    /// The operation.
    pub operation: T,
    /// The queue pair.
    pub qp: Option<Q>,
    /// When the operation was first checked.
    since: Option<Instant>,
    cut: bool,
}

impl<T, Q> Ended<T, Q> {
    /// The queue pair whose link must be cut now, because the peer has kept the memory for too long. Returned once.
    pub fn cut_off(&mut self, now: Instant) -> Option<&Q> {
        let since = *self.since.get_or_insert(now);
        let late = now.saturating_duration_since(since) > STUCK;
        if self.cut || !late {
            return None;
        }
        self.cut = self.qp.is_some();
        self.qp.as_ref()
    }
}

/// The ended operations.
#[derive(Debug)]
pub struct Draining<T, Q> {
    list: Vec<Ended<T, Q>>,
    next_check: Option<Instant>,
}

impl<T, Q> Default for Draining<T, Q> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            next_check: None,
        }
    }
}

impl<T, Q> Draining<T, Q> {
    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All operations in the list.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.list.iter().map(|ended| &ended.operation)
    }

    /// Adds an ended operation. Its time starts at the next check.
    pub fn push(&mut self, operation: T, qp: Option<Q>) {
        self.list.push(Ended {
            operation,
            qp,
            since: None,
            cut: false,
        });
    }

    /// Takes all operations if a check is due, and none otherwise. The caller puts back those whose memory a peer may
    /// still touch, with [`Self::put_back`].
    pub fn take_due(&mut self, now: Instant) -> Vec<Ended<T, Q>> {
        if self.next_check.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.next_check = Some(now + PAUSE);
        std::mem::take(&mut self.list)
    }

    /// Puts back an operation whose memory the peer has not released yet.
    pub fn put_back(&mut self, ended: Ended<T, Q>) {
        self.list.push(ended);
    }

    /// Takes all operations, for the teardown of their endpoint.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.list.drain(..).map(|ended| ended.operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_of_a_slow_peer_is_cut_once() {
        let (mut draining, now) = (Draining::default(), Instant::now());
        draining.push("send", Some("qp"));
        let mut ended = draining.take_due(now).pop().unwrap();
        assert!(draining.is_empty());
        assert_eq!(
            ended.cut_off(now),
            None,
            "the time starts at the first check"
        );
        assert_eq!(ended.cut_off(now + STUCK), None);
        let late = now + STUCK + PAUSE;
        assert_eq!(ended.cut_off(late), Some(&"qp"));
        assert_eq!(ended.cut_off(late), None);
        draining.put_back(ended);
        assert_eq!(draining.iter().collect::<Vec<_>>(), [&"send"]);
        assert_eq!(draining.drain().collect::<Vec<_>>(), ["send"]);
    }

    #[test]
    fn checks_of_draining_operations_are_spaced_by_a_pause() {
        let (mut draining, now) = (Draining::<_, ()>::default(), Instant::now());
        draining.push("send", None);
        for ended in draining.take_due(now) {
            draining.put_back(ended);
        }
        assert!(draining.take_due(now).is_empty() && !draining.is_empty());
        assert_eq!(draining.take_due(now + PAUSE).len(), 1);
    }
}

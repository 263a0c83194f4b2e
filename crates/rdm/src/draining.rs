//! Operations that are over, but name memory that a peer may still touch: a peer that was stopped in the
//! middle of reaching for it, when the time of the operation was over. The program is told of their end
//! when its memory is its own again. A peer that takes too long loses its link.

use std::time::{Duration, Instant};

/// So long a peer may keep memory of an operation that is over.
pub const STUCK: Duration = Duration::from_secs(1);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// An operation that is over, and the queue pair that it was posted to.
#[derive(Debug)]
pub struct Held<T, Q> {
    /// The operation.
    pub operation: T,
    /// Its queue pair.
    pub qp: Option<Q>,
    /// When it was first looked at.
    since: Option<Instant>,
    cut: bool,
}

impl<T, Q> Held<T, Q> {
    /// The queue pair whose link is cut now, because the peer has kept the memory for too long: told once.
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

/// The operations.
#[derive(Debug)]
pub struct Draining<T, Q> {
    list: Vec<Held<T, Q>>,
    look: Option<Instant>,
}

impl<T, Q> Default for Draining<T, Q> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            look: None,
        }
    }
}

impl<T, Q> Draining<T, Q> {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.list.iter().map(|held| &held.operation)
    }

    /// Adds an operation that is over. Its time begins with the next look.
    pub fn push(&mut self, operation: T, qp: Option<Q>) {
        self.list.push(Held {
            operation,
            qp,
            since: None,
            cut: false,
        });
    }

    /// All of them if it is time to look, which it is after a pause: the caller puts those that are not free yet back with
    /// [`Self::keep`].
    pub fn look(&mut self, now: Instant) -> Vec<Held<T, Q>> {
        if self.look.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.look = Some(now + PAUSE);
        std::mem::take(&mut self.list)
    }

    /// Puts one back whose memory has not been let go.
    pub fn keep(&mut self, held: Held<T, Q>) {
        self.list.push(held);
    }

    /// All of them, to be taken apart with their endpoint.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.list.drain(..).map(|held| held.operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_takes_too_long_is_cut_off_once() {
        let (mut draining, now) = (Draining::default(), Instant::now());
        draining.push("send", Some("qp"));
        let mut held = draining.look(now).pop().unwrap();
        assert!(draining.is_empty());
        assert_eq!(held.cut_off(now), None, "its time begins");
        assert_eq!(held.cut_off(now + STUCK), None);
        let late = now + STUCK + PAUSE;
        assert_eq!(held.cut_off(late), Some(&"qp"));
        assert_eq!(held.cut_off(late), None);
        draining.keep(held);
        assert_eq!(draining.iter().collect::<Vec<_>>(), [&"send"]);
        assert_eq!(draining.drain().collect::<Vec<_>>(), ["send"]);
    }

    #[test]
    fn looks_have_a_pause_between_them() {
        let (mut draining, now) = (Draining::<_, ()>::default(), Instant::now());
        draining.push("send", None);
        for held in draining.look(now) {
            draining.keep(held);
        }
        assert!(draining.look(now).is_empty() && !draining.is_empty());
        assert_eq!(draining.look(now + PAUSE).len(), 1);
    }
}

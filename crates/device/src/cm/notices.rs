//! Warnings for the log. They are collected under the service's lock and written after it is released: a write may block if the
//! log's reader has stopped.

use std::collections::BTreeSet;

use rkey_cm::time::Nanos;

/// How long a repeated warning is suppressed.
const TIME: Nanos = 60_000_000_000;
/// The maximum number of warnings during this time: untrusted processes can cause some of them.
const MAX: usize = 16;

/// Warnings that have not been logged yet, and the recent ones.
#[derive(Debug, Default)]
pub(super) struct Notices {
    given: BTreeSet<String>,
    since: Nanos,
    new: Vec<String>,
}

impl Notices {
    /// Adds a warning, unless the same warning or too many others were added in the last minute.
    pub(super) fn add(&mut self, now: Nanos, text: String) {
        if now.saturating_sub(self.since) >= TIME {
            self.since = now;
            self.given.clear();
        }
        if self.given.len() < MAX && self.given.insert(text.clone()) {
            self.new.push(text);
        }
    }

    /// Removes and returns the new warnings.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_and_excess_warnings_are_suppressed() {
        let mut notices = Notices::default();
        for number in 0..100 {
            notices.add(5, "the same".to_owned());
            notices.add(5, format!("number {number}"));
        }
        let new = notices.take();
        assert_eq!(
            (new.len(), &*new[0], &*new[1]),
            (MAX, "the same", "number 0")
        );
        notices.add(TIME - 1, "the same".to_owned());
        assert!(notices.take().is_empty());
        notices.add(TIME, "the same".to_owned());
        assert_eq!(notices.take(), ["the same"]);
    }
}

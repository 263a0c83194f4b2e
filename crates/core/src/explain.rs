//! The words of a refusal: one sentence, and the longer form with advice.

use crate::Denial;
use std::fmt;

impl fmt::Display for Denial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:?} of {} B at {:#x} refused: {:?}",
            self.attempt, self.len, self.addr, self.reason
        )
    }
}

impl Denial {
    /// The sentence, and what to do about it: several lines.
    #[must_use]
    pub fn explain(&self) -> String {
        self.to_string()
    }
}

impl std::error::Error for Denial {}

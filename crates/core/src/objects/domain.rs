//! Protection domains: a queue pair reaches only memory of its own domain. What a domain still contains.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The objects that a domain still contains.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DomainChildren {
    /// Registered regions.
    pub regions: u32,
    /// Windows, bound or not.
    pub windows: u32,
    /// Queue pairs and shared receive queues, counted by `hold_domain`.
    pub holders: u32,
}

impl DomainChildren {
    /// Whether the domain has no children.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.regions == 0 && self.windows == 0 && self.holders == 0
    }
}

impl fmt::Display for DomainChildren {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count| if count == 1 { "" } else { "s" };
        write!(
            out,
            "{} region{}, {} window{}, {} queue pair{} or shared receive queue{}",
            self.regions,
            plural(self.regions),
            self.windows,
            plural(self.windows),
            self.holders,
            plural(self.holders),
            plural(self.holders),
        )
    }
}

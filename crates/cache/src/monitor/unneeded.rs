//! The monitor of a registrar that needs none.

use super::{Monitor, Sees, TooManyCaches, Verdict};
use crate::table::entries::Entries;
use crate::why::Refusal;
use rkey_base::range::VaRange;
use std::sync::Arc;

/// No monitor, for a registrar that follows addresses: its device reads what is mapped at the time of the transfer, so no
/// change makes an entry stale.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unneeded;

impl Monitor for Unneeded {
    fn name(&self) -> &'static str {
        "none"
    }

    /// Not enough for a registrar that pins.
    fn sees(&self) -> Sees {
        Sees::Some
    }

    fn attach(&self, _: &Arc<Entries>) -> Result<(), TooManyCaches> {
        Ok(())
    }

    fn detach(&self, _: &Arc<Entries>) {}

    fn watch(&self, _: VaRange) -> Result<(), Refusal> {
        Err(Refusal::Stopped)
    }

    fn check(&self, _: VaRange) -> Verdict {
        Verdict::Busy
    }

    fn validate(&self, _: VaRange) -> Verdict {
        Verdict::Busy
    }
}

//! `FI_MR_CACHE_MONITOR=disabled`.

use super::{Monitor, Sees, TooManyCaches, Verdict};
use crate::table::entries::Entries;
use crate::why::Refusal;
use rkey_base::range::VaRange;
use std::sync::Arc;

/// A monitor that watches nothing: it turns the cache off, for any registrar (FI-240).
#[derive(Clone, Copy, Debug, Default)]
pub struct Disabled;

impl Monitor for Disabled {
    fn name(&self) -> &'static str {
        "disabled"
    }

    fn sees(&self) -> Sees {
        Sees::Nothing
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

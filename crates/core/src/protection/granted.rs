//! The memory of a grant.

use rkey_base::foreign::Copier;
use rkey_base::range::VaRange;
use std::sync::Arc;

/// The memory of a grant.
pub(crate) enum Granted {
    One(VaRange),
    /// In an `Arc` only so that its drop is not inlined into the code for the usual case.
    Many(Arc<Several>),
}

/// Several ranges, or ranges with copiers of their own.
pub(crate) struct Several {
    pub(crate) ranges: Box<[VaRange]>,
    /// The copier of each range; empty if the processor copies all ranges.
    pub(crate) copiers: Box<[Copier]>,
}

impl Granted {
    /// Several ranges and their copiers; no copiers if the processor copies all.
    #[cold]
    pub(crate) fn several(ranges: Box<[VaRange]>, copiers: Box<[Copier]>) -> Self {
        Self::Many(Arc::new(Several { ranges, copiers }))
    }
}

//! What a magazine contains: slots that are ready or have ended, and what is prepaid for them. [`crate::Magazine`] says
//! what these are for.

use crate::{DomainId, Key, RegionId};
use rkey_base::biased::SharedLock;
use std::collections::HashMap;

/// The contents of a magazine.
pub(crate) struct Stock {
    /// The domain in which the magazine's slots count as regions.
    pub(crate) domain: DomainId,
    /// Prepaid bytes: the table counts them, but no region has them.
    pub(crate) bytes: u64,
    pub(crate) ready: Vec<ReadySlot>,
    /// Slots with their next generations. Their last keys belong to the generations before those.
    pub(crate) ended: Vec<(u32, u32)>,
}

/// The contents of a magazine, for threads that empty it.
pub(crate) type Stocks = SharedLock<Stock>;

/// A slot that is claimed, and its remote key.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ReadySlot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) key: Key,
}

/// What magazines have prepaid.
#[derive(Debug, Default)]
pub(crate) struct Prepaid {
    pub(crate) regions: HashMap<DomainId, u32>,
    pub(crate) bytes: u64,
}

impl Prepaid {
    /// How many regions of a domain are prepaid.
    pub(crate) fn regions(&self, domain: DomainId) -> u32 {
        self.regions.get(&domain).copied().unwrap_or_default()
    }

    /// How many regions of all domains are prepaid.
    pub(crate) fn all_regions(&self) -> u32 {
        self.regions.values().sum()
    }
}

impl ReadySlot {
    #[inline]
    pub(crate) fn id(&self) -> RegionId {
        RegionId {
            index: self.index,
            generation: self.generation,
        }
    }
}

impl Stock {
    /// How many regions are prepaid.
    pub(crate) fn regions(&self) -> u32 {
        (self.ready.len() + self.ended.len()) as u32
    }
}

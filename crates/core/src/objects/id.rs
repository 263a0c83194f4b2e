//! Ids of objects (domains, regions, windows), keys, and the identity of a requester.
//!
//! Ids are handles for the owner's side and never cross to a peer; keys are what requests carry. Both name a slot and
//! its generation, so an id or key that outlives its object is refused and never reaches a newer object.

use crate::Api;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Generations of a slot of regions and device-chosen window keys.
pub(crate) const GENERATIONS: u32 = 1 << 11;
/// Generations of a slot of a type 2 window.
pub(crate) const TYPE2_GENERATIONS: u32 = 1 << 11;

/// A protection domain of one device. Never 0, and not reused before 8,191 other domains have been opened.
///
/// The top two bits are the API that opened the domain; the next bit says whether it is exclusive.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DomainId(pub u32);

impl DomainId {
    const API_SHIFT: u32 = 30;
    const EXCLUSIVE: u32 = 1 << 29;
    /// How many generations an entry of the table of domains has before its ids repeat.
    pub(crate) const GENERATIONS: u16 = 1 << 13;

    pub(crate) fn new(api: Api, exclusive: bool, generation: u16, number: u32) -> Self {
        let exclusive = if exclusive { Self::EXCLUSIVE } else { 0 };
        Self((api as u32) << Self::API_SHIFT | exclusive | u32::from(generation) << 16 | number)
    }

    /// The API that opened the domain.
    #[must_use]
    pub const fn api(self) -> Api {
        Api::ALL[(self.0 >> Self::API_SHIFT) as usize]
    }

    /// Whether the domain's memory can only be reached through its own API, regardless of [`Protection::across_apis`].
    ///
    /// [`Protection::across_apis`]: crate::Protection::across_apis
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        self.0 & Self::EXCLUSIVE != 0
    }

    /// The number in messages: unique among the open domains of a device.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0 & (Self::EXCLUSIVE - 1)
    }
}

impl fmt::Display for DomainId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "domain {}", self.number())
    }
}

/// The key that this side's own requests use for a region (verbs' lkey, uDAPL's LMR context).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LKey(pub u32);

impl fmt::Display for LKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "lkey {:#010x}", self.0)
    }
}

/// The key that a peer uses for a region or a window (verbs' rkey, uDAPL's RMR context).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Key(pub u32);

impl Key {
    /// The low 8 bits, which the consumer of a type 2 window chooses at each bind.
    #[must_use]
    pub const fn consumer_bits(self) -> u8 {
        self.0 as u8
    }

    /// The same key with other low 8 bits (`ibv_inc_rkey` uses the next number).
    #[must_use]
    pub const fn with_consumer_bits(self, bits: u8) -> Self {
        Self(self.0 & !0xff | bits as u32)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rkey {:#010x}", self.0)
    }
}

/// How an incoming request names memory.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RKey {
    /// A key that the device chose.
    Device(Key),
    /// A key that the target's program chose when it registered (libfabric's requested key); unique in a domain.
    Requested(u64),
}

impl fmt::Display for RKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(key) => key.fmt(out),
            Self::Requested(key) => write!(out, "requested key {key:#x}"),
        }
    }
}

/// The owner's handle of a region. Refused once the region is deregistered.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RegionId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl RegionId {
    /// The number of the region's slot. A later region may have the same one.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.index
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "region {}.{}", self.index, self.generation)
    }
}

/// The owner's handle of a memory window; binds do not change it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct WindowId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl fmt::Display for WindowId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "window {}.{}", self.index, self.generation)
    }
}

macro_rules! handle_bits {
    ($name:ident) => {
        impl $name {
            /// The id as one number, for front ends that keep it in a C structure.
            #[must_use]
            pub const fn to_bits(self) -> u64 {
                (self.generation as u64) << 32 | self.index as u64
            }

            /// The inverse of [`Self::to_bits`]. Accepts any number; one that names nothing is refused when used.
            #[must_use]
            pub const fn from_bits(bits: u64) -> Self {
                Self {
                    index: bits as u32,
                    generation: (bits >> 32) as u32,
                }
            }
        }
    };
}
handle_bits!(RegionId);
handle_bits!(WindowId);

/// The identity of a remote request: the queue pair on this side that it arrived on.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Accessor {
    /// Domain of the queue pair.
    pub domain: DomainId,
    /// Number of the queue pair (24 bits).
    pub qp: u32,
    /// The peer of the queue pair, for regions that serve one peer only; the owner assigns the numbers.
    pub peer: Option<u32>,
}

//! Memory regions: the attributes of a registration, and its result.

use crate::{Access, DomainId, Key, LKey, RegionId, Rules};
use rkey_base::range::VaRange;
use serde::{Deserialize, Serialize};

/// Which addresses requests use for the bytes of a region.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Addressing {
    /// Virtual addresses in the owner's process. With a scatter list, an access can reach any segment but must stay
    /// inside one.
    #[default]
    Virtual,
    /// Offsets from zero; the segments of a scatter list follow each other without gaps.
    Zero,
    /// Offsets from this address; the segments of a scatter list follow each other without gaps.
    Iova(u64),
}

/// Where the memory comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MemoryKind {
    /// The program's own memory.
    #[default]
    User,
    /// Part of a shared segment that a peer can map.
    Shared {
        /// Number of the segment, as its owner counts them.
        segment: u32,
        /// The region's offset in the segment, in bytes.
        offset: u64,
    },
}

/// A request to register memory.
#[derive(Copy, Clone, Debug)]
pub struct RegionSpec<'a> {
    /// The region's domain.
    pub domain: DomainId,
    /// The memory: one range, or the segments of a scatter list in order. No segment may be empty.
    pub ranges: &'a [VaRange],
    /// The allowed access.
    pub access: Access,
    /// How requests address the region's bytes.
    pub addressing: Addressing,
    /// Refuses every access until it is enabled.
    pub disabled: bool,
    /// The remote key that the program requests (libfabric); ignored for regions without remote rights.
    pub requested_key: Option<u64>,
    /// Can be enabled only after an endpoint is bound to it, and serves only that endpoint (FI-076).
    pub needs_endpoint: bool,
    /// Serves only this peer ([`Accessor::peer`](crate::Accessor)).
    pub peer: Option<u32>,
    /// Where the memory comes from.
    pub memory: MemoryKind,
    /// The front end registers it for itself, not for its program: see [`crate::Protection::regions_of_program`].
    pub internal: bool,
    /// The rules of the requesting API.
    pub rules: Rules,
}

impl<'a> RegionSpec<'a> {
    /// A plain region: virtual addressing, enabled, device-chosen key, no API's rules.
    #[must_use]
    pub const fn new(domain: DomainId, ranges: &'a [VaRange], access: Access) -> Self {
        Self {
            domain,
            ranges,
            access,
            addressing: Addressing::Virtual,
            disabled: false,
            requested_key: None,
            needs_endpoint: false,
            peer: None,
            memory: MemoryKind::User,
            internal: false,
            rules: Rules::empty(),
        }
    }
}

/// A registered region: its handle and its keys.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// The owner's handle.
    pub id: RegionId,
    /// The key for this side's own requests.
    pub local_key: LKey,
    /// The key for peers.
    pub key: Key,
    /// The requested key, if there is one; peers may use either key.
    pub requested: Option<u64>,
}

/// What a re-registration changes. `None` keeps the current value.
#[derive(Copy, Clone, Debug, Default)]
pub struct Change<'a> {
    /// Another domain.
    pub domain: Option<DomainId>,
    /// Other memory, and how it is addressed.
    pub ranges: Option<(&'a [VaRange], Addressing)>,
    /// Other rights.
    pub access: Option<Access>,
    /// The API's rules for the new rights.
    pub rules: Rules,
}

//! Memory windows: parts of a region with their own keys, which can be changed and revoked quickly.

use crate::{Access, DomainId, Key, LKey, RegionId, Rules, WindowId};
use rkey_base::range::VaRange;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of windows. The kinds differ in who chooses the keys and which peers may use them.
///
/// In both forms of InfiniBand's type 2, peers can use a window only over the queue pair on which it was bound; form B
/// also compares the domain at each access. This device compares the domain for both forms. A conforming program sees
/// no difference, because window, region and queue pair are in one domain at the bind, and windows of a queue pair are
/// unbound when it is destroyed ([`crate::Protection::forget_endpoint`]).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum WindowKind {
    /// Bound by a verb; the device chooses a new key at each bind; usable over any queue pair of the domain.
    Type1,
    /// Bound by a posted request with a key that the consumer chooses; belongs to one queue pair while bound.
    Type2A,
    /// Like 2A; InfiniBand also compares the domain at each access.
    Type2B,
    /// uDAPL's RMR: like type 1, with uDAPL's rules.
    Dat,
}

impl WindowKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Type1, Self::Type2A, Self::Type2B, Self::Dat];

    /// Whether the kind is one of the two forms of type 2.
    #[must_use]
    pub const fn is_type2(self) -> bool {
        matches!(self, Self::Type2A | Self::Type2B)
    }
}

impl fmt::Display for WindowKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Type1 => "type 1",
            Self::Type2A => "type 2A",
            Self::Type2B => "type 2B",
            Self::Dat => "DAT",
        })
    }
}

/// A new window, not bound to anything yet: its handle and its key.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The owner's handle.
    pub id: WindowId,
    /// Its key, refused until the window is bound.
    pub key: Key,
}

/// How a bind names its region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BindRegion {
    /// By its local key, as posted requests do.
    Key(LKey),
    /// By handle.
    Id(RegionId),
}

/// A request to bind a window.
#[derive(Copy, Clone, Debug)]
pub struct BindRequest {
    /// The window.
    pub window: WindowId,
    /// The region; ignored when the range is empty.
    pub region: BindRegion,
    /// The part of the region, in the addresses that requests to the region use. An empty range unbinds (type 1 and
    /// DAT).
    pub range: VaRange,
    /// The window's rights: remote rights only.
    pub access: Access,
    /// The window is addressed from zero instead of by the region's addresses (type 2 only).
    pub zero_based: bool,
    /// Type 2: the consumer's choice, the window's key with any low 8 bits. Type 1 and DAT: a key reserved by
    /// [`crate::Protection::next_window_key`], or none to get the next one.
    pub new_key: Option<Key>,
    /// The queue pair on which the bind was posted. A type 2 window belongs to it while bound.
    pub qp: Option<u32>,
    /// The domain of that queue pair.
    pub domain: DomainId,
    /// The rules of the requesting API.
    pub rules: Rules,
}

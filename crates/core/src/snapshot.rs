//! The table as a value, for inspection.

use crate::{Access, DomainChildren, DomainId, WindowKind};
use serde::{Deserialize, Serialize};

/// Everything in the table at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Open domains.
    pub domains: Vec<DomainInfo>,
    /// Live regions.
    pub regions: Vec<RegionInfo>,
    /// Live windows.
    pub windows: Vec<WindowInfo>,
    /// Bytes of all live regions together.
    pub total_bytes: u64,
}

/// A domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainInfo {
    /// Its name.
    pub id: DomainId,
    /// What hangs on it.
    pub children: DomainChildren,
}

/// A region. Keys are left out: an inspection may be shown to others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Its handle, as a number.
    pub id: u64,
    /// Its domain.
    pub domain: DomainId,
    /// First address by which requests name it.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Pieces of its scatter list; 1 for a plain region.
    pub pieces: u32,
    /// Rights.
    pub access: Access,
    /// "disabled", "live" or "closing".
    pub state: String,
    /// Windows bound to it.
    pub windows: u32,
    /// Queue pair it is tied to.
    pub endpoint: Option<u32>,
    /// Counter it is tied to.
    pub counter: Option<u32>,
    /// The key the program asked for.
    pub requested: Option<u64>,
}

/// A window.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WindowInfo {
    /// Its handle, as a number.
    pub id: u64,
    /// Its domain.
    pub domain: DomainId,
    /// Its kind.
    pub kind: WindowKind,
    /// The binding, where there is one.
    pub binding: Option<Binding>,
}

/// What a window is bound to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Binding {
    /// Handle of the region, as a number.
    pub region: u64,
    /// First address by which requests name the window.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// Queue pair it belongs to (type 2).
    pub qp: Option<u32>,
}

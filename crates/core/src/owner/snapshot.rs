//! The table as a value, for inspection.

use crate::objects::state::RegionState;
use crate::protection::entry::{Entry, flag};
use crate::protection::table::Protection;
use crate::sync::Ordering;
use crate::{Access, DomainChildren, DomainId, RegionId, WindowKind};
use rkey_base::slab::Pin;
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
    /// The total size of all live regions, in bytes.
    pub total_bytes: u64,
}

/// A domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainInfo {
    /// Its id.
    pub id: DomainId,
    /// The number of objects in the domain.
    pub children: DomainChildren,
}

/// A region, without its keys, because the result of an inspection may be shown to others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// The handle, as a number.
    pub id: u64,
    /// Its domain.
    pub domain: DomainId,
    /// The first address that requests use for it.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
    /// Segments of its scatter list; 1 for a plain region.
    pub segments: u32,
    /// Rights.
    pub access: Access,
    /// "disabled", "live" or "deregistering".
    pub state: String,
    /// The number of windows bound to the region.
    pub windows: u32,
    /// The queue pair that the region is bound to.
    pub endpoint: Option<u32>,
    /// The counter that is bound to the region.
    pub counter: Option<u32>,
}

/// A window.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WindowInfo {
    /// The handle, as a number.
    pub id: u64,
    /// Its domain.
    pub domain: DomainId,
    /// Its kind.
    pub kind: WindowKind,
    /// The binding, if any.
    pub binding: Option<Binding>,
}

/// What a window is bound to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Binding {
    /// Handle of the region, as a number.
    pub region: u64,
    /// The first address that requests use for the window.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// The queue pair that the window belongs to (type 2).
    pub qp: Option<u32>,
}

impl Protection {
    /// Everything in the table, read while the table is in use: each entry is consistent in itself, but a concurrent
    /// change may show in one entry and not in another.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let (domains, windows, total_bytes) = {
            let registry = self.registry.lock();
            let prepaid = registry.prepaid();
            let domains = registry
                .domains
                .iter(&prepaid)
                .map(|(id, children)| DomainInfo { id, children });
            let windows = registry.windows.iter();
            let windows: Vec<WindowInfo> = windows
                .map(|(id, record)| {
                    let slab = if record.kind.is_type2() {
                        &self.type2
                    } else {
                        &self.slots
                    };
                    let entry = slab.get(record.slot.index);
                    let bound = record.bound.zip(entry.and_then(Entry::binding));
                    WindowInfo {
                        id: id.to_bits(),
                        domain: record.domain,
                        kind: record.kind,
                        binding: bound.map(|(bound, (to, _))| Binding {
                            region: bound.region.to_bits(),
                            base: to.base,
                            len: to.len,
                            access: to.access,
                            qp: bound.qp,
                        }),
                    }
                })
                .collect();
            let bytes = registry.bytes - prepaid.bytes;
            (domains.collect(), windows, bytes)
        };
        let regions = self
            .slots
            .iter_live()
            .filter(|pin| pin.rights() & flag::WINDOW == 0);
        let regions = regions.map(|pin| self.region_info(&pin));
        Snapshot {
            domains,
            regions: regions.collect(),
            windows,
            total_bytes,
        }
    }

    fn region_info(&self, pin: &Pin<'_, Entry>) -> RegionInfo {
        let scattered = pin.rights() & flag::SCATTER != 0;
        let list = self
            .scatter
            .get(pin.start.load(Ordering::Relaxed))
            .filter(|_| scattered);
        let state = match crate::owner::registration::state(pin) {
            RegionState::Disabled => "disabled",
            _ if pin.is_retired() => "deregistering",
            _ => "live",
        };
        RegionInfo {
            id: RegionId {
                index: pin.index(),
                generation: pin.generation(),
            }
            .to_bits(),
            domain: pin.domain(),
            base: pin.base.load(Ordering::Relaxed),
            len: pin.len.load(Ordering::Relaxed),
            segments: list.map_or(1, |list| list.count() as u32),
            access: pin.access(),
            state: state.to_owned(),
            windows: pin.link.load(Ordering::Relaxed),
            endpoint: Entry::bound(&pin.endpoint),
            counter: Entry::bound(&pin.counter),
        }
    }
}

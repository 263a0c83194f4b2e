//! The protection table: one slab of slots for regions and device-chosen window keys, one for type 2 windows, and a
//! registry under one lock.
//!
//! Checks read slots without the registry's lock; changes hold it for a short time.

use crate::domain::DomainRecord;
use crate::entry::Entry;
use crate::key::{KeySequence, Keys, Secrets};
use crate::magazine::{ReadySlot, Stocks};
use crate::requested::Requested;
use crate::scatter::ScatterLists;
use crate::slots::Orphan;
use crate::sync::AtomicBool;
use crate::windows::WindowRecord;
use crate::{Api, CoreError, DomainId, Key, Limit, Limits, MemoryKind, RegionId};
use rkey_base::lock::SpinLock;
use rkey_base::slab::{FreeList, Slab};
use std::collections::HashMap;

/// The domains, regions, windows and keys of one device; decides every access.
///
/// All methods take `&self` and may be called from any thread.
pub struct Protection {
    pub(crate) limits: Limits,
    /// The API of domains that are created without naming one.
    pub(crate) api: Api,
    /// Whether peers may reach memory through an API other than its own.
    pub(crate) across_apis: bool,
    pub(crate) keys: Keys,
    /// Regions, and windows whose keys the device chooses.
    pub(crate) slots: Slab<Entry>,
    /// Type 2 windows.
    pub(crate) type2: Slab<Entry>,
    pub(crate) scatter: ScatterLists,
    pub(crate) requested: Requested,
    /// A section exists.
    pub(crate) has_section: AtomicBool,
    pub(crate) registry: SpinLock<Registry>,
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let registry = self.registry.lock();
        let regions = registry.regions - registry.prepaid().all_regions();
        write!(
            out,
            "Protection({regions} regions, {} windows)",
            registry.live_windows
        )
    }
}

/// The state that only the owner's operations need, under the lock.
pub(crate) struct Registry {
    /// The next keys.
    pub(crate) draw: KeySequence,
    /// The last remote key of each slot that was ever used, by slot.
    pub(crate) remote_keys: Vec<Key>,
    /// Claimed slots with keys, outside any magazine.
    pub(crate) ready: Vec<ReadySlot>,
    /// The contents of all magazines. Only a magazine's own thread locks it without holding the registry's lock.
    pub(crate) magazines: Vec<Stocks>,
    /// Free slots of `Protection::slots`.
    pub(crate) free: FreeList,
    /// Free slots of `Protection::type2`.
    pub(crate) free_type2: FreeList,
    pub(crate) domains: Vec<DomainRecord>,
    pub(crate) free_domains: Vec<u32>,
    pub(crate) open_domains: u32,
    /// Regions, and those that magazines have prepaid.
    pub(crate) regions: u32,
    /// Bytes of regions, and those that magazines have prepaid.
    pub(crate) bytes: u64,
    pub(crate) windows: Vec<WindowRecord>,
    pub(crate) free_windows: Vec<u32>,
    pub(crate) live_windows: u32,
    /// Type 2 windows that are bound.
    pub(crate) bound_type2: u32,
    /// The endpoints that regions are bound to.
    pub(crate) endpoints: HashMap<RegionId, u32>,
    /// Regions in shared segments, by slot.
    pub(crate) shared: HashMap<u32, MemoryKind>,
    /// Retired slots that were still pinned when their handle was dropped.
    pub(crate) orphans: Vec<Orphan>,
}

impl Protection {
    /// An empty table. The secrets make its keys unguessable: random numbers that no other table has.
    #[must_use]
    pub fn new(limits: Limits, secrets: Secrets) -> Self {
        let keys = Keys::new(&secrets);
        let draw = keys.draw();
        Self {
            limits,
            api: Api::Native,
            across_apis: false,
            keys,
            slots: Slab::new(limits.key_slots.clamp(1, Limits::KEY_SLOTS)),
            type2: Slab::new(Limits::TYPE2_SLOTS),
            scatter: ScatterLists::default(),
            requested: Requested::new(secrets.number("requested keys")),
            has_section: AtomicBool::new(false),
            registry: SpinLock::new(Registry::new(draw)),
        }
    }

    /// The same table for a program that uses `api`: denials name its access flags.
    #[must_use]
    pub fn for_api(self, api: Api) -> Self {
        Self { api, ..self }
    }

    /// The limits that the table was created with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The same table, in which `across_apis` says whether peers may reach memory through an API other than the one that
    /// registered it. By default they may not: the domains of two APIs are different domains.
    #[must_use]
    pub fn across_apis(self, across_apis: bool) -> Self {
        Self {
            across_apis,
            ..self
        }
    }

    /// Whether a request that arrives in the domain `from` may reach memory of the domain `owner`.
    #[inline]
    pub(crate) fn may_reach(&self, from: DomainId, owner: DomainId) -> bool {
        let other_api = from.api() != owner.api();
        let is_open = !from.is_exclusive() && !owner.is_exclusive();
        from == owner || self.across_apis && other_api && is_open
    }
}
impl Registry {
    fn new(draw: KeySequence) -> Self {
        Self {
            draw,
            remote_keys: Vec::new(),
            ready: Vec::new(),
            magazines: Vec::new(),
            free: FreeList::default(),
            free_type2: FreeList::default(),
            domains: Vec::new(),
            free_domains: Vec::new(),
            open_domains: 0,
            regions: 0,
            bytes: 0,
            windows: Vec::new(),
            free_windows: Vec::new(),
            live_windows: 0,
            bound_type2: 0,
            endpoints: HashMap::new(),
            shared: HashMap::new(),
            orphans: Vec::new(),
        }
    }
}

pub(crate) fn reached(limit: Limit, value: u64) -> CoreError {
    CoreError::LimitReached { limit, value }
}

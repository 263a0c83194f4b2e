//! The protection table: one slab of slots for regions and device-chosen window keys, one for type 2 windows, and a
//! registry under one lock.
//!
//! Checks read slots without the registry's lock; changes hold it for a short time.

use crate::keys::key::{KeySequence, Keys};
use crate::keys::requested::Requested;
use crate::protection::domains::Domains;
use crate::protection::entry::Entry;
use crate::protection::scatter::ScatterLists;
use crate::protection::slots::SlotPool;
use crate::protection::stock::Stocks;
use crate::protection::windows::Windows;
use crate::sync::AtomicBool;
use crate::{Api, CoreError, DomainId, Limit, Limits, MemoryKind, RegionId, Secrets};
use rkey_base::lock::SpinLock;
use rkey_base::slab::Slab;
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
            registry.windows.live()
        )
    }
}

/// The state that only the owner's operations need, under the lock.
pub(crate) struct Registry {
    pub(crate) pool: SlotPool,
    /// The contents of all magazines. Only a magazine's own thread locks it without holding the registry's lock.
    pub(crate) magazines: Vec<Stocks>,
    pub(crate) domains: Domains,
    /// Regions, and those that magazines have prepaid.
    pub(crate) regions: u32,
    /// Bytes of regions, and those that magazines have prepaid.
    pub(crate) bytes: u64,
    pub(crate) windows: Windows,
    /// The endpoints that regions are bound to.
    pub(crate) endpoints: HashMap<RegionId, u32>,
    /// Regions in shared segments, by slot.
    pub(crate) shared: HashMap<u32, MemoryKind>,
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
            pool: SlotPool::new(draw),
            magazines: Vec::new(),
            domains: Domains::default(),
            regions: 0,
            bytes: 0,
            windows: Windows::default(),
            endpoints: HashMap::new(),
            shared: HashMap::new(),
        }
    }
}

/// The error for an operation that would exceed a limit.
pub(crate) fn reached(limit: Limit, value: u64) -> CoreError {
    CoreError::LimitReached { limit, value }
}

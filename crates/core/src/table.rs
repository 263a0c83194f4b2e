//! The protection table: one slab of slots for regions and device-chosen window keys, one for type 2 windows, and a
//! registry under one lock.
//!
//! Checks read slots without the registry's lock; changes hold it for a short time.

use crate::entry::{Entry, flag};
use crate::key::{GENERATIONS, KeySequence, Keys, Named, Secrets, TYPE2_GENERATIONS};
use crate::magazine::{Prepaid, ReadySlot, Stocks};
use crate::requested::Requested;
use crate::scatter::ScatterLists;
use crate::sync::{AtomicBool, Ordering, fence};
use crate::window::WindowRecord;
use crate::{Api, CoreError, DomainChildren, DomainId, Key, Limit, Limits, MemoryKind, RegionId};
use rkey_base::lock::SpinLock;
use rkey_base::slab::{Claimed, FreeList, Retired, Slab, State};
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
    draw: KeySequence,
    /// The last remote key of each slot that was ever used, by slot.
    remote_keys: Vec<Key>,
    /// Claimed slots with keys, outside any magazine.
    pub(crate) ready: Vec<ReadySlot>,
    /// The contents of all magazines. Only a magazine's own thread locks it without holding the registry's lock.
    pub(crate) magazines: Vec<Stocks>,
    /// Free slots of `Protection::slots`.
    pub(crate) free: FreeList,
    /// Free slots of `Protection::type2`.
    pub(crate) free_type2: FreeList,
    domains: Vec<DomainRecord>,
    free_domains: Vec<u32>,
    open_domains: u32,
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
    orphans: Vec<Orphan>,
}

#[derive(Default)]
struct DomainRecord {
    generation: u16,
    /// The domain, while it is open.
    id: Option<DomainId>,
    children: DomainChildren,
    /// The number of regions that the front end registered for itself.
    internal: u32,
}

/// A retired slot that waits for its last pin to be dropped.
struct Orphan {
    type2: bool,
    index: u32,
    generation: u32,
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

    /// Opens a domain of the table's API.
    ///
    /// # Errors
    /// [`CoreError::LimitReached`].
    pub fn create_domain(&self) -> Result<DomainId, CoreError> {
        self.create_domain_for(self.api, false)
    }

    /// Opens a domain of an API. Other APIs cannot reach the memory of an `exclusive` domain.
    ///
    /// # Errors
    /// [`CoreError::LimitReached`].
    pub fn create_domain_for(&self, api: Api, exclusive: bool) -> Result<DomainId, CoreError> {
        let mut registry = self.registry.lock();
        let max = self.limits.max_domains.min(u32::from(u16::MAX));
        if registry.open_domains >= max {
            return Err(reached(Limit::Domains, u64::from(max)));
        }
        let place = match registry.free_domains.pop() {
            Some(place) => place,
            None => {
                registry.domains.push(DomainRecord::default());
                (registry.domains.len() - 1) as u32
            }
        };
        registry.open_domains += 1;
        let record = &mut registry.domains[place as usize];
        let id = DomainId::new(api, exclusive, record.generation, place + 1);
        record.id = Some(id);
        Ok(id)
    }

    /// Closes a domain.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`]; [`CoreError::DomainBusy`] while regions, windows, queue pairs or shared receive
    /// queues are left in it.
    pub fn close_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        if registry.domain(domain)?.children.regions > 0 {
            self.empty_all_magazines(&mut registry);
        }
        let record = registry.domain(domain)?;
        if !record.children.is_empty() {
            return Err(CoreError::DomainBusy {
                domain,
                children: record.children,
            });
        }
        record.id = None;
        record.generation = (record.generation + 1) % DomainId::GENERATIONS;
        registry.open_domains -= 1;
        registry.free_domains.push((domain.0 & 0xffff) - 1);
        Ok(())
    }

    /// Counts a queue pair or a shared receive queue, so that the domain cannot be closed while it is in use.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`].
    pub fn hold_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        self.registry.lock().domain(domain)?.children.holders += 1;
        Ok(())
    }

    /// Releases one [`Self::hold_domain`].
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`], also if the domain is not held.
    pub fn release_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        let children = &mut registry.domain(domain)?.children;
        match children.holders.checked_sub(1) {
            Some(holders) => children.holders = holders,
            None => return Err(CoreError::NoSuchDomain(domain)),
        }
        Ok(())
    }

    /// How many regions are registered in a domain, excluding those that the front end registered for itself.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`].
    pub fn regions_of_program(&self, domain: DomainId) -> Result<u32, CoreError> {
        let mut registry = self.registry.lock();
        let record = registry.domain(domain)?;
        let regions = record.children.regions - record.internal;
        Ok(regions - registry.prepaid().regions(domain))
    }

    /// A free slot with a key, for a region or for a window whose key the device chooses. `None` if there is no room
    /// for another slot or key.
    #[inline]
    pub(crate) fn ready_slot(&self, registry: &mut Registry) -> Option<ReadySlot> {
        match registry.ready.pop() {
            Some(ready) => Some(ready),
            None => self.make_ready(registry),
        }
    }

    /// Like [`Self::ready_slot`], but takes a slot from the magazines if necessary.
    #[inline]
    pub(crate) fn ready_slot_of_all(&self, registry: &mut Registry) -> Option<ReadySlot> {
        if let Some(ready) = self.ready_slot(registry) {
            return Some(ready);
        }
        self.empty_all_magazines(registry);
        self.ready_slot(registry)
    }

    #[inline]
    fn make_ready(&self, registry: &mut Registry) -> Option<ReadySlot> {
        let claimed = self.claim(registry, false)?;
        let (index, generation) = (claimed.index(), claimed.generation());
        match self.give_key(registry, index, generation) {
            Some(key) => Some(ReadySlot {
                index,
                generation,
                key,
            }),
            None => {
                claimed.release_to(&mut registry.free);
                None
            }
        }
    }

    /// The claim of a ready slot that is about to be filled.
    #[inline]
    pub(crate) fn take_up(&self, ready: &ReadySlot) -> Option<Claimed<'_, Entry>> {
        let claimed = self.slots.claimed(ready.index, ready.generation);
        // As in `claim`: the slot may just have been another region's.
        fence(Ordering::Release);
        claimed
    }

    /// A free slot for a region or a window.
    #[inline]
    pub(crate) fn claim(&self, registry: &mut Registry, type2: bool) -> Option<Claimed<'_, Entry>> {
        if !registry.orphans.is_empty() {
            self.sweep(registry);
        }
        let claimed = if type2 {
            self.type2.claim_from(&mut registry.free_type2)
        } else {
            self.slots.claim_from(&mut registry.free)
        };
        // A reader without a pin that sees anything stored into the slot from now on also sees that the slab's word for
        // it has changed.
        fence(Ordering::Release);
        claimed
    }

    /// The remote key of a claimed slot that becomes a region, or a window whose key the device chooses. `None` if
    /// there is no room for another key.
    #[inline]
    pub(crate) fn give_key(
        &self,
        registry: &mut Registry,
        index: u32,
        generation: u32,
    ) -> Option<Key> {
        let key = self
            .keys
            .give_remote(&mut registry.draw, index, generation)?;
        let place = index as usize;
        if place >= registry.remote_keys.len() {
            registry.remote_keys.resize(place + 1, Key(0));
        }
        registry.remote_keys[place] = key;
        Some(key)
    }

    /// The key of a claimed slot that becomes a type 2 window. `None` if there is no room for another key.
    pub(crate) fn give_type2_key(
        &self,
        registry: &mut Registry,
        claimed: &Claimed<'_, Entry>,
    ) -> Option<Key> {
        let (index, generation) = (claimed.index(), claimed.generation());
        self.keys.give_type2(&mut registry.draw, index, generation)
    }

    /// Whether a slot of regions is in use under this generation.
    #[inline]
    fn is_used(&self, index: u32, generation: u32) -> bool {
        matches!(self.slots.peek(index), Some((now, state)) if now == generation && state != State::Free)
    }

    /// What a number names as a key, for denials and invalidations.
    #[cold]
    pub(crate) fn name(&self, key: u32) -> Named {
        let named = self
            .keys
            .open(key, |index, generation| self.is_used(index, generation));
        match named {
            Named::Remote { index, generation }
                if self.slots.peek(index) == Some((generation, State::Claimed))
                    && self.keys.remote.find(key) == Some((index, generation)) =>
            {
                // The key was drawn in advance: no region has had it yet.
                Named::Nothing
            }
            named => named,
        }
    }

    /// Frees a retired slot now or, if it is pinned, when a slot is claimed after its last pin has been dropped.
    pub(crate) fn put_back(
        &self,
        registry: &mut Registry,
        type2: bool,
        retired: Retired<'_, Entry>,
    ) {
        if let Err(busy) = self.try_put_back(registry, type2, retired) {
            registry.orphans.push(Orphan {
                type2,
                index: busy.index(),
                generation: busy.generation(),
            });
        }
    }

    /// Frees a retired slot, unless it is pinned.
    #[inline]
    pub(crate) fn try_put_back<'a>(
        &self,
        registry: &mut Registry,
        type2: bool,
        retired: Retired<'a, Entry>,
    ) -> Result<(), Retired<'a, Entry>> {
        if !retired.is_drained() {
            return Err(retired);
        }
        if retired.rights() & (flag::SCATTER | flag::WINDOW) == flag::SCATTER {
            self.scatter
                .remove(retired.start.load(Ordering::Relaxed) as u32);
            retired.rights.store(0, Ordering::Relaxed);
        }
        let next = retired.generation() + 1;
        let generations = if type2 {
            TYPE2_GENERATIONS
        } else {
            GENERATIONS
        };
        if next == generations {
            self.keys.wrap();
        }
        match (type2, next % generations) {
            (true, next) => retired.release_last_to(&mut registry.free_type2, next),
            (false, 0) => retired.release_last_to(&mut registry.free, 0),
            (false, next) => retired.release_to(&mut registry.free, next),
        }
    }

    /// Frees the orphans whose last pin has been dropped.
    #[cold]
    fn sweep(&self, registry: &mut Registry) {
        for orphan in std::mem::take(&mut registry.orphans) {
            let slab = if orphan.type2 {
                &self.type2
            } else {
                &self.slots
            };
            if let Some(retired) = slab.resume(orphan.index, orphan.generation) {
                self.put_back(registry, orphan.type2, retired);
            }
        }
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

    /// The remote key of a slot that is in use.
    #[inline]
    pub(crate) fn remote_key(&self, index: u32) -> Key {
        self.remote_keys
            .get(index as usize)
            .copied()
            .unwrap_or(Key(0))
    }

    #[inline]
    fn domain(&mut self, domain: DomainId) -> Result<&mut DomainRecord, CoreError> {
        let place = (domain.0 & 0xffff).wrapping_sub(1) as usize;
        match self.domains.get_mut(place) {
            Some(record) if record.id == Some(domain) => Ok(record),
            _ => Err(CoreError::NoSuchDomain(domain)),
        }
    }

    /// The object counts of an open domain, for updating.
    #[inline]
    pub(crate) fn children(&mut self, domain: DomainId) -> Result<&mut DomainChildren, CoreError> {
        Ok(&mut self.domain(domain)?.children)
    }

    /// Counts a new region with these rights and flags in an open domain.
    #[inline]
    pub(crate) fn region_came(&mut self, domain: DomainId, rights: u32) -> Result<(), CoreError> {
        let record = self.domain(domain)?;
        record.children.regions += 1;
        record.internal += u32::from(rights & flag::INTERNAL != 0);
        Ok(())
    }

    /// Removes a region from the counts.
    #[inline]
    pub(crate) fn region_went(&mut self, domain: DomainId, rights: u32) {
        if let Ok(record) = self.domain(domain) {
            record.children.regions -= 1;
            record.internal -= u32::from(rights & flag::INTERNAL != 0);
        }
    }

    /// The open domains.
    pub(crate) fn open_domains(
        &self,
        prepaid: &Prepaid,
    ) -> impl Iterator<Item = (DomainId, DomainChildren)> {
        self.domains
            .iter()
            .filter_map(|record| Some((record, record.id?)))
            .map(|(record, id)| {
                let regions = record.children.regions - prepaid.regions(id);
                (
                    id,
                    DomainChildren {
                        regions,
                        ..record.children
                    },
                )
            })
    }
}

pub(crate) fn reached(limit: Limit, value: u64) -> CoreError {
    CoreError::LimitReached { limit, value }
}

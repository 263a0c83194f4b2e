//! The owner's operations on windows: create, bind, invalidate, deallocate.
//!
//! A **type 1 or DAT window** gets a new key, and with it a new slot of the table, at each bind; its old key becomes
//! stale, like that of a deregistered region. A **type 2 window** keeps its slot, which each bind rewrites in place;
//! its consumer varies the low byte of the key. A failed bind leaves the window unchanged.

use crate::denial::{Attempt, NamedKey, Request};
use crate::entry::{BoundTo, Entry, NONE, flag};
use crate::hold::Held;
use crate::key::Named;
use crate::state::{RegionEvent, WindowEvent, WindowState};
use crate::sync::Ordering;
use crate::table::{Protection, Registry, reached};
use crate::window::{Bound, KeySlot, WindowRecord};
use crate::{
    Access, Accessor, BindError, BindRegion, BindRequest, CoreError, Denial, DomainId, Key, Limit,
    Limits, RKey, Reason, RegionId, SlotNow, Window, WindowId, WindowKind,
};
use rkey_base::range::VaRange;
use rkey_base::slab::State;

/// A window's new binding and its region, or `None` for an unbind.
type Decided<'a> = Option<((Bound, BoundTo), Held<'a>)>;

impl Protection {
    /// Creates a window. Its key is refused until the window is bound.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`], [`CoreError::LimitReached`].
    pub fn create_window(&self, domain: DomainId, kind: WindowKind) -> Result<Window, CoreError> {
        let mut registry = self.registry.lock();
        let max = self.limits.max_windows;
        if registry.live_windows >= max {
            return Err(reached(Limit::Windows, u64::from(max)));
        }
        registry.children(domain)?;
        let index = registry
            .free_windows
            .last()
            .copied()
            .unwrap_or(registry.windows.len() as u32);
        let slot = self
            .window_slot(&mut registry, domain, kind, index)
            .ok_or_else(|| match kind {
                _ if kind.is_type2() => {
                    reached(Limit::Type2Windows, u64::from(Limits::TYPE2_SLOTS))
                }
                _ => reached(Limit::KeySlots, u64::from(self.slots.capacity())),
            })?;
        let record = WindowRecord {
            open: true,
            ..WindowRecord::new(kind, domain, slot)
        };
        let generation = match registry.free_windows.pop() {
            Some(place) => {
                let old = &mut registry.windows[place as usize];
                let generation = old.generation;
                *old = WindowRecord {
                    generation,
                    ..record
                };
                generation
            }
            None => {
                registry.windows.push(record);
                0
            }
        };
        registry.live_windows += 1;
        registry.children(domain)?.windows += 1;
        Ok(Window {
            id: WindowId { index, generation },
            key: slot.key,
        })
    }

    /// Deallocates a window, and unbinds it first if necessary (VB-I16, DA-I06). Its keys are refused from now on.
    ///
    /// # Errors
    /// [`CoreError::NoSuchWindow`].
    pub fn deallocate_window(&self, window: WindowId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        let record = registry
            .window(window)
            .ok_or(CoreError::NoSuchWindow(window))?;
        let (kind, domain, slot) = (record.kind, record.domain, record.slot);
        if record
            .state()
            .step(kind.is_type2(), WindowEvent::Deallocate)
            .is_none()
        {
            return Err(CoreError::NoSuchWindow(window));
        }
        record.open = false;
        record.generation = record.generation.wrapping_add(1);
        record.replaced(slot);
        let bound = record.bound.take();
        let promised = std::mem::take(&mut record.promised);
        self.let_go(&mut registry, kind, bound);
        for slot in promised.into_iter().chain([slot]) {
            self.retire_slot(&mut registry, kind, slot);
        }
        registry.free_windows.push(window.index);
        registry.live_windows -= 1;
        registry.children(domain)?.windows -= 1;
        Ok(())
    }

    /// Reserves the key of a future bind (type 1 and DAT), so that the program knows it before the bind executes; the
    /// bind then names it. A reservation ends with the bind that names it, successful or not, with
    /// [`Self::forfeit_window_key`], or with the window. For type 2: the current key, whose low byte the consumer
    /// varies.
    ///
    /// # Errors
    /// [`BindError::NoSuchWindow`], [`BindError::NoKeySlot`].
    pub fn next_window_key(&self, window: WindowId) -> Result<Key, BindError> {
        let mut registry = self.registry.lock();
        let record = registry
            .window(window)
            .ok_or(BindError::NoSuchWindow(window))?;
        let (kind, domain, current) = (record.kind, record.domain, record.slot);
        if kind.is_type2() {
            return Ok(current.key);
        }
        let slot = self
            .window_slot(&mut registry, domain, kind, window.index)
            .ok_or(BindError::NoKeySlot(self.slots.capacity()))?;
        if let Some(record) = registry.window(window) {
            record.promised.push(slot);
        }
        Ok(slot.key)
    }

    /// The key of a bound window; `None` if the window is unbound or deallocated.
    #[must_use]
    pub fn bound_key(&self, window: WindowId) -> Option<Key> {
        let mut registry = self.registry.lock();
        let record = registry.window(window)?;
        record.bound.is_some().then_some(record.slot.key)
    }

    /// Releases a reserved key whose bind will not execute. Does nothing if the key is not reserved.
    pub fn forfeit_window_key(&self, window: WindowId, key: Key) {
        let mut registry = self.registry.lock();
        if let Some(record) = registry.window(window)
            && let Some(slot) = record.take_promise(key)
        {
            let kind = record.kind;
            self.retire_slot(&mut registry, kind, slot);
        }
    }

    /// Binds a window to part of a region, or unbinds it, and returns its new key. Earlier keys of a type 1 or
    /// DAT window become stale, except that an unbind without a reserved key keeps the current key.
    ///
    /// # Errors
    /// See [`BindError`], checked in this order: the window, a reserved key (type 1 and DAT), the rules of the window's
    /// kind and its key (type 2), the queue pair's domain, the region and its domain, its state, the rights, the range,
    /// a free key slot. On an error, the window is unchanged.
    pub fn bind_window(&self, request: &BindRequest) -> Result<Key, BindError> {
        let mut registry = self.registry.lock();
        let window = request.window;
        let record = registry
            .window(window)
            .ok_or(BindError::NoSuchWindow(window))?;
        let (kind, domain, current) = (record.kind, record.domain, record.slot);
        let promised = match request.new_key {
            Some(key) if !kind.is_type2() => match record.take_promise(key) {
                Some(slot) => Some(slot),
                None => {
                    return Err(BindError::ForeignKey {
                        given: key,
                        current: current.key,
                    });
                }
            },
            _ => None,
        };
        let decided = self.decide_bind(&mut registry, request);
        // Holds the region until the window counts as bound to it.
        let (bound, _region) = match decided {
            Ok(decided) => decided.unzip(),
            Err(error) => {
                if let Some(slot) = promised {
                    self.retire_slot(&mut registry, kind, slot);
                }
                return Err(error);
            }
        };
        if kind.is_type2() {
            self.rebind(&mut registry, window, bound);
            return Ok(request.new_key.unwrap_or(current.key));
        }
        if bound.is_none() && promised.is_none() {
            self.rebind(&mut registry, window, None);
            return Ok(current.key);
        }
        let slot = match promised {
            Some(slot) => slot,
            None => self
                .window_slot(&mut registry, domain, kind, window.index)
                .ok_or(BindError::NoKeySlot(self.slots.capacity()))?,
        };
        if let Some(record) = registry.window(window) {
            record.slot = slot;
            record.replaced(current);
            let old = record.bound.take();
            self.rebind(&mut registry, window, bound);
            self.let_go(&mut registry, kind, old);
            self.retire_slot(&mut registry, kind, current);
        }
        Ok(slot.key)
    }

    /// Invalidates a type 2 window, for its owner or for the peer of its queue pair. Invalidating twice is not an error.
    ///
    /// # Errors
    /// A denial if the key is not the current key of a type 2 window of the domain, or if the window belongs to another
    /// queue pair.
    pub fn invalidate(&self, key: Key, who: &Accessor, remote: bool) -> Result<(), Box<Denial>> {
        let request = Request {
            attempt: Attempt::Invalidate { remote },
            key: NamedKey::Remote(RKey::Device(key)),
            addr: 0,
            len: 0,
            domain: who.domain,
            qp: Some(who.qp),
            peer: who.peer,
        };
        let mut registry = self.registry.lock();
        let window = self
            .to_invalidate(&mut registry, key, who)
            .map_err(|why| self.refuse(&request, why))?;
        self.rebind(&mut registry, window, None);
        Ok(())
    }

    /// Unbinds the type 2 windows of a queue pair that is destroyed and removes it from the regions bound to it.
    /// Returns the number of those windows and regions.
    pub fn forget_endpoint(&self, qp: u32) -> usize {
        let mut registry = self.registry.lock();
        let mut count = 0;
        if registry.bound_type2 > 0 {
            count += self.unbind_windows(&mut registry, |bound| bound.qp == Some(qp));
        }
        let bound = |(region, endpoint): (&RegionId, &u32)| (*endpoint == qp).then_some(*region);
        let regions: Vec<RegionId> = registry.endpoints.iter().filter_map(bound).collect();
        for region in regions {
            registry.endpoints.remove(&region);
            if let Ok(entry) = self.hold(region) {
                entry.endpoint.store(NONE, Ordering::Release);
                count += 1;
            }
        }
        count
    }

    /// Unbinds every window whose binding matches `which`; returns how many.
    pub(crate) fn unbind_windows(
        &self,
        registry: &mut Registry,
        which: impl Fn(&Bound) -> bool,
    ) -> usize {
        let mut count = 0;
        for index in 0..registry.windows.len() {
            let record = &registry.windows[index];
            let type2 = record.kind.is_type2();
            let may = record.state().step(type2, WindowEvent::Revoke).is_some();
            if may && record.bound.as_ref().is_some_and(&which) {
                let generation = record.generation;
                self.rebind(
                    registry,
                    WindowId {
                        index: index as u32,
                        generation,
                    },
                    None,
                );
                count += 1;
            }
        }
        count
    }

    /// Checks a bind.
    fn decide_bind(
        &self,
        registry: &mut Registry,
        request: &BindRequest,
    ) -> Result<Decided<'_>, BindError> {
        let record = registry
            .window(request.window)
            .ok_or(BindError::NoSuchWindow(request.window))?;
        let (kind, type2, state) = (record.kind, record.kind.is_type2(), record.state());
        let current = record.slot.key;
        let not_remote = request.access.difference(Access::REMOTE);
        let unbind = request.range.is_empty();
        if unbind && state.step(type2, WindowEvent::BindNothing).is_none() {
            return Err(BindError::ZeroLength);
        }
        let other = |what, other| BindError::OtherDomain {
            window: record.domain,
            what,
            other,
        };
        if !unbind {
            if !not_remote.is_empty() {
                return Err(BindError::NotRemote(not_remote));
            }
            if request.zero_based && !type2 {
                return Err(BindError::ZeroBased(kind));
            }
            if type2 {
                let (Some(key), Some(_)) = (request.new_key, request.qp) else {
                    return Err(BindError::KeyAndQpNeeded);
                };
                if key.with_consumer_bits(0) != current.with_consumer_bits(0) {
                    return Err(BindError::ForeignKey {
                        given: key,
                        current,
                    });
                }
            }
            if state.step(type2, WindowEvent::Bind).is_none() {
                return Err(BindError::StillBound(current));
            }
        }
        if request.domain != record.domain {
            return Err(other("queue pair", request.domain));
        }
        if unbind {
            return Ok(None);
        }
        let region = self.region_to_bind(request.region)?;
        if region.domain() != record.domain {
            return Err(other("region", region.domain()));
        }
        let bound = self.bind_to(request, type2, region.id, &region)?;
        Ok(Some((bound, region)))
    }

    /// Checks the region of a bind.
    fn bind_to(
        &self,
        request: &BindRequest,
        type2: bool,
        id: RegionId,
        region: &Entry,
    ) -> Result<(Bound, BoundTo), BindError> {
        if crate::registry::state(region)
            .step(RegionEvent::BindWindow)
            .is_none()
        {
            return Err(BindError::Disabled);
        }
        let (asked, range, rules) = (request.access, request.range, request.rules);
        rules
            .check_window(asked, region.access())
            .map_err(|missing| BindError::RegionLacks { asked, missing })?;
        let base = region.base.load(Ordering::Relaxed);
        if base == 0 && rules.contains(crate::Rules::NO_WINDOW_ON_ZERO_BASED) {
            return Err(BindError::ZeroBasedRegion);
        }
        let offset =
            self.offset_in(region, range.start(), range.len())
                .map_err(|why| match why {
                    Reason::CrossesSegments => BindError::CrossesSegments(range),
                    _ => {
                        let len = region.len.load(Ordering::Relaxed);
                        let region = VaRange::new(base, len).unwrap_or(range);
                        BindError::OutOfRange {
                            asked: range,
                            region,
                        }
                    }
                })?;
        let qp = request.qp.filter(|_| type2);
        let to = BoundTo {
            offset,
            len: range.len(),
            base: if request.zero_based { 0 } else { range.start() },
            access: asked,
            qp,
            consumer_bits: request.new_key.map_or(0, Key::consumer_bits),
            region: id.index,
            region_generation: id.generation,
        };
        Ok((Bound { region: id, qp }, to))
    }

    fn region_to_bind(&self, region: BindRegion) -> Result<Held<'_>, BindError> {
        let (id, error) = match region {
            BindRegion::Id(id) => (id, BindError::RegionGone(id)),
            BindRegion::Key(key) => match self.keys.open_local(key) {
                Some((index, generation)) => {
                    (RegionId { index, generation }, BindError::NoSuchRegion(key))
                }
                None => return Err(BindError::NoSuchRegion(key)),
            },
        };
        self.hold(id).map_err(|_| error)
    }

    /// The window that an invalidation names.
    fn to_invalidate(
        &self,
        registry: &mut Registry,
        key: Key,
        who: &Accessor,
    ) -> Result<WindowId, Reason> {
        let named = self.name(key.0);
        let (Named::Type2 { index, generation }
        | Named::Remote { index, generation }
        | Named::Local { index, generation }) = named
        else {
            return Err(self.why_key_is_refused(named, true));
        };
        let slab = if matches!(named, Named::Type2 { .. }) {
            &self.type2
        } else {
            &self.slots
        };
        let entry = match slab.get(index) {
            Some(entry) if slab.peek(index) == Some((generation, State::Live)) => entry,
            _ => return Err(self.why_key_is_refused(named, true)),
        };
        if entry.domain() != who.domain {
            return Err(Reason::OtherDomain {
                owner: entry.domain(),
            });
        }
        if entry.rights() & flag::WINDOW == 0 {
            return Err(Reason::NotAWindow);
        }
        let place = entry.window.load(Ordering::Relaxed);
        let record = registry
            .windows
            .get(place as usize)
            .ok_or(Reason::UnknownKey)?;
        let window = WindowId {
            index: place,
            generation: record.generation,
        };
        if record
            .state()
            .step(record.kind.is_type2(), WindowEvent::Invalidate)
            .is_none()
        {
            return Err(Reason::WindowKind(record.kind));
        }
        if record.slot.key != key {
            return Err(Reason::StaleKey {
                now: SlotNow::Rebound,
            });
        }
        match record.bound {
            Some(Bound { qp, .. }) if qp != Some(who.qp) => {
                Err(Reason::WrongEndpoint { bound: qp })
            }
            _ => Ok(window),
        }
    }

    /// Writes a binding into a window's slot, and updates the registry.
    fn rebind(&self, registry: &mut Registry, window: WindowId, to: Option<(Bound, BoundTo)>) {
        let Some(record) = registry.window(window) else {
            return;
        };
        let (kind, slot) = (record.kind, record.slot);
        let slab = if kind.is_type2() {
            &self.type2
        } else {
            &self.slots
        };
        let Some(entry) = slab.get(slot.index) else {
            return;
        };
        let old = record.bound.take();
        if let Some((bound, to)) = &to {
            record.bound = Some(*bound);
            if kind.is_type2() {
                record.slot.key = slot.key.with_consumer_bits(to.consumer_bits);
                registry.bound_type2 += 1;
            }
            if let Some(region) = self.slots.get(to.region) {
                region.link.fetch_add(1, Ordering::Relaxed);
            }
        }
        entry.rebind(to.as_ref().map(|(_, to)| to));
        self.let_go(registry, kind, old);
    }

    /// Releases a window's hold on its region.
    fn let_go(&self, registry: &mut Registry, kind: WindowKind, bound: Option<Bound>) {
        let Some(bound) = bound else { return };
        if kind.is_type2() {
            registry.bound_type2 -= 1;
        }
        if let Some(region) = self.slots.get(bound.region.index) {
            region.link.fetch_sub(1, Ordering::Relaxed);
            self.end_hold(bound.region);
        }
    }

    /// A slot for an unbound window, with its key.
    fn window_slot(
        &self,
        registry: &mut Registry,
        domain: DomainId,
        kind: WindowKind,
        place: u32,
    ) -> Option<KeySlot> {
        let (claimed, key) = if kind.is_type2() {
            let claimed = self.claim(registry, true)?;
            match self.give_type2_key(registry, &claimed) {
                Some(key) => (claimed, key),
                None => {
                    claimed.release_to(&mut registry.free_type2);
                    return None;
                }
            }
        } else {
            let ready = self.ready_slot_of_all(registry)?;
            (self.take_up(&ready)?, ready.key)
        };
        let (index, generation) = (claimed.index(), claimed.generation());
        // A region may have stored part of its requested key here.
        claimed.version.store(0, Ordering::Relaxed);
        claimed.rebind(None);
        claimed.domain.store(domain.0, Ordering::Relaxed);
        claimed.endpoint.store(NONE, Ordering::Relaxed);
        claimed.window.store(place, Ordering::Relaxed);
        claimed.publish_held();
        Some(KeySlot {
            key,
            index,
            generation,
        })
    }

    fn retire_slot(&self, registry: &mut Registry, kind: WindowKind, slot: KeySlot) {
        let type2 = kind.is_type2();
        let (slab, keys, key) = if type2 {
            (
                &self.type2,
                &self.keys.type2,
                slot.key.with_consumer_bits(0),
            )
        } else {
            (&self.slots, &self.keys.remote, slot.key)
        };
        keys.end(key.0, slot.index, slot.generation);
        if let Some(retired) = slab.retire(slot.index, slot.generation) {
            self.put_back(registry, type2, retired);
        }
    }
}

impl WindowRecord {
    fn new(kind: WindowKind, domain: DomainId, slot: KeySlot) -> Self {
        let (open, promised) = (false, Vec::new());
        Self {
            generation: 0,
            open,
            kind,
            domain,
            slot,
            promised,
            bound: None,
            recent: [None; 4],
        }
    }

    /// Records an ended key, for the text of denials.
    fn replaced(&mut self, slot: KeySlot) {
        self.recent.rotate_right(1);
        self.recent[0] = Some((slot.index, slot.generation));
    }

    pub(crate) fn state(&self) -> WindowState {
        match self.bound {
            _ if !self.open => WindowState::Deallocated,
            Some(_) => WindowState::Bound,
            None => WindowState::Unbound,
        }
    }

    fn take_promise(&mut self, key: Key) -> Option<KeySlot> {
        let place = self.promised.iter().position(|slot| slot.key == key)?;
        Some(self.promised.swap_remove(place))
    }
}

impl Registry {
    fn window(&mut self, window: WindowId) -> Option<&mut WindowRecord> {
        self.windows
            .get_mut(window.index as usize)
            .filter(|record| record.open && record.generation == window.generation)
    }
}

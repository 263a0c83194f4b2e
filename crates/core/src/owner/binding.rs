//! The owner's operations on windows: create, bind, invalidate, deallocate.
//!
//! A **type 1 or DAT window** gets a new key, and with it a new slot of the table, at each bind; its old key becomes
//! stale, like that of a deregistered region. A **type 2 window** keeps its slot, which each bind rewrites in place;
//! its consumer varies the low byte of the key. A failed bind leaves the window unchanged.

use crate::objects::state::{RegionEvent, WindowEvent};
use crate::protection::entry::{BoundTo, Entry};
use crate::protection::hold::Held;
use crate::protection::table::{Protection, Registry};
use crate::protection::windows::{Bound, WindowRecord};
use crate::sync::Ordering;
use crate::{
    Access, BindError, BindRegion, BindRequest, Key, Reason, RegionId, WindowId, WindowKind,
};
use rkey_base::range::VaRange;

/// A window's new binding and its region, or `None` for an unbind.
type Decided<'a> = Option<((Bound, BoundTo), Held<'a>)>;

impl Protection {
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
            .windows
            .find(window)
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
        if let Some(record) = registry.windows.find(window) {
            record.slot = slot;
            record.replaced(current);
            let old = record.bound.take();
            self.rebind(&mut registry, window, bound);
            self.let_go(&mut registry, kind, old);
            self.retire_slot(&mut registry, kind, current);
        }
        Ok(slot.key)
    }

    /// Unbinds every window whose binding matches `which`; returns how many.
    pub(crate) fn unbind_windows(
        &self,
        registry: &mut Registry,
        which: impl Fn(&Bound) -> bool,
    ) -> usize {
        let may_revoke = |record: &WindowRecord| {
            let type2 = record.kind.is_type2();
            record.state().step(type2, WindowEvent::Revoke).is_some()
        };
        let matching: Vec<WindowId> = registry
            .windows
            .iter()
            .filter(|(_, record)| may_revoke(record) && record.bound.as_ref().is_some_and(&which))
            .map(|(window, _)| window)
            .collect();
        for window in &matching {
            self.rebind(registry, *window, None);
        }
        matching.len()
    }

    /// Checks a bind.
    fn decide_bind(
        &self,
        registry: &mut Registry,
        request: &BindRequest,
    ) -> Result<Decided<'_>, BindError> {
        let record = registry
            .windows
            .find(request.window)
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
        if crate::owner::registration::state(region)
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

    /// Writes a binding into a window's slot, and updates the registry.
    pub(crate) fn rebind(
        &self,
        registry: &mut Registry,
        window: WindowId,
        to: Option<(Bound, BoundTo)>,
    ) {
        let Some(record) = registry.windows.find(window) else {
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
                registry.windows.bound_type2 += 1;
            }
            if let Some(region) = self.slots.get(to.region) {
                region.link.fetch_add(1, Ordering::Relaxed);
            }
        }
        entry.rebind(to.as_ref().map(|(_, to)| to));
        self.let_go(registry, kind, old);
    }

    /// Releases a window's hold on its region.
    pub(crate) fn let_go(&self, registry: &mut Registry, kind: WindowKind, bound: Option<Bound>) {
        let Some(bound) = bound else { return };
        if kind.is_type2() {
            registry.windows.bound_type2 -= 1;
        }
        if let Some(region) = self.slots.get(bound.region.index) {
            region.link.fetch_sub(1, Ordering::Relaxed);
            self.end_hold(bound.region);
        }
    }
}

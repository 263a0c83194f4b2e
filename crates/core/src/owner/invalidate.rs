//! Bindings that end because their key is invalidated, or because their queue pair is destroyed.

use crate::denials::denial::{Attempt, NamedKey, Request};
use crate::keys::key::Named;
use crate::objects::state::WindowEvent;
use crate::protection::entry::{NONE, flag};
use crate::protection::table::{Protection, Registry};
use crate::protection::windows::Bound;
use crate::sync::Ordering;
use crate::{Accessor, Denial, Key, RKey, Reason, RegionId, SlotNow, WindowId};
use rkey_base::slab::State;

impl Protection {
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
        let index = entry.window.load(Ordering::Relaxed);
        let record = registry.windows.at(index).ok_or(Reason::UnknownKey)?;
        let window = WindowId {
            index,
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

    /// Unbinds the type 2 windows of a queue pair that is destroyed and removes it from the regions bound to it.
    /// Returns the number of those windows and regions.
    pub fn forget_endpoint(&self, qp: u32) -> usize {
        let mut registry = self.registry.lock();
        let mut count = 0;
        if registry.windows.bound_type2 > 0 {
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
}

//! Sections: checks under a lock that the caller holds anyway. Such checks write no memory that other threads read.
//!
//! A pin and its release are two atomic read-modify-writes, several times the cost of the rest of a check. An engine
//! makes all its checks and copies under its own lock, so it needs no pins: it keeps a [`Section`] behind that lock.
//!
//! A grant of a section holds nothing in the table; it only borrows the section. So an owner that takes memory back
//! must prove that no such grant is left: by exclusive access to the section ([`Section::drain_section`]), or by taking
//! and releasing the lock that guards the section ([`SectionLock::drain_section`]). After a region is deregistered or
//! begins to change, until one of these has happened, [`Deregistering::finish`](crate::Deregistering::finish) and
//! [`Changing::finish`](crate::Changing::finish) refuse. A section is not `Sync`, so threads share it through a
//! [`SectionLock`].

use crate::checks::check::check_plain_region;
use crate::denials::denial::{NamedKey, Request};
use crate::protection::drained::SectionDrained;
use crate::protection::entry::{Entry, flag};
use crate::protection::grant::{Grant, KeptBy};
use crate::protection::granted::Granted;
use crate::protection::table::Protection;
use crate::sync::{Ordering, fence};
use crate::{
    Access, Accessor, Changing, Denial, Deregistering, DomainId, LKey, LocalUse, Operation, RKey,
    Region, RegionId,
};
use rkey_base::lock::{Guard, SpinLock};
use rkey_base::range::VaRange;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// The permission to check without pins. A table has at most one at a time ([`Protection::section`]).
#[derive(Debug)]
pub struct Section {
    table: Arc<Protection>,
    /// Slots of recently used keys, one cell per key hash.
    lately: [Cell<RecentSlot>; LATELY],
}

const LATELY: usize = 8;

/// A key and its slot. The entry is valid while keys come from the same permutation and no slot's generations have
/// wrapped.
#[derive(Clone, Copy, Debug)]
struct RecentSlot {
    /// The permutation that the key came from.
    of: u32,
    /// How many times generations had wrapped when the entry was stored.
    wraps: u32,
    key: u32,
    slot: (u32, u32),
}

impl Protection {
    /// The section of this table. `None` if it already has one.
    #[must_use]
    pub fn section(self: &Arc<Self>) -> Option<Section> {
        // This store and the end of a region are totally ordered (`SeqCst`): either the region ends before the section
        // exists, and the section's checks see that, or the end of the region waits for the section.
        let had_one = self.has_section.swap(true, Ordering::SeqCst);
        let nothing = RecentSlot {
            of: 0,
            wraps: 0,
            key: 0,
            // There is no such slot.
            slot: (u32::MAX, 0),
        };
        (!had_one).then(|| Section {
            table: Arc::clone(self),
            lately: std::array::from_fn(|_| Cell::new(nothing)),
        })
    }

    /// Whether one of this side's requests may name this memory of a region at this moment, as a check before posting.
    /// The result does not permit access to the memory, because no grant holds the region.
    ///
    /// # Errors
    /// Same as [`Self::check_region`].
    #[inline]
    pub fn allows(
        &self,
        domain: DomainId,
        region: RegionId,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<(), Box<Denial>> {
        let request = Request::local(domain, NamedKey::Region(region), addr, len, want);
        let slot = (region.index, region.generation);
        if self
            .check_without_pin(slot, &request, want.needs(), 0)
            .is_some()
        {
            return Ok(());
        }
        self.check_region(domain, region, addr, len, want).map(drop)
    }

    /// The fast path without a pin: the memory, as it is at this moment, and the region's counter.
    #[inline]
    fn check_without_pin(
        &self,
        (index, generation): (u32, u32),
        request: &Request,
        needs: Access,
        alignment: u64,
    ) -> Option<(VaRange, Option<u32>)> {
        let look = self.slots.look(index)?;
        let range = check_plain_region(look.value(), request, needs, alignment)?;
        let counter = Entry::bound(&look.value().counter);
        // The slot may have been reused while it was read. If it is live under this generation now, it was live throughout
        // or was changed in place. `Entry::begin_change` says why a check never sees half of such a change.
        fence(Ordering::Acquire);
        look.is_live(generation).then_some((range, counter))
    }
}

impl Section {
    /// The table that the section uses for checks.
    #[inline]
    #[must_use]
    pub fn protection(&self) -> &Arc<Protection> {
        &self.table
    }

    /// States that no grant of this section is left, which exclusive access proves.
    pub fn drain_section(&mut self, pending: &mut impl Draining) {
        pending.section_drained(&self.table);
    }

    /// Like [`Protection::check_remote`], without a pin.
    ///
    /// # Errors
    /// The denial, with the complete reason.
    #[inline]
    pub fn check_remote(
        &self,
        who: &Accessor,
        key: RKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Result<Grant<'_>, Box<Denial>> {
        match self.find_remote(who, key, addr, len, want) {
            Some((slot, range, counter)) => Ok(granted(slot, range, counter)),
            None => self.table.check_remote(who, key, addr, len, want),
        }
    }

    /// The fast path of [`Self::check_remote`] alone. `None` is no denial: only [`Self::check_remote`] decides about all other
    /// keys, regions and ranges.
    #[inline(always)]
    #[must_use]
    pub fn fast_check_remote(
        &self,
        who: &Accessor,
        key: RKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Option<FastGrant<'_>> {
        let (_, memory, counter) = self.find_remote(who, key, addr, len, want)?;
        Some(FastGrant {
            memory,
            counter,
            _section: PhantomData,
        })
    }

    /// The slot, the memory and the counter of an access that the fast path grants.
    #[inline(always)]
    fn find_remote(
        &self,
        who: &Accessor,
        key: RKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Option<((u32, u32), VaRange, Option<u32>)> {
        let wraps = self.table.keys.wraps();
        let slot = match key {
            RKey::Device(device) => self.find(device.0, wraps)?,
            RKey::Requested(requested) => self.table.requested.find(who.domain, requested)?,
        };
        if len == 0 {
            return None;
        }
        let request = Request::remote(who, key, addr, len, want);
        let (range, counter) =
            self.table
                .check_without_pin(slot, &request, want.needs(), want.alignment())?;
        // The slot's generations may have wrapped to this one since the lookup; in that case this count has changed.
        fence(Ordering::Acquire);
        (self.table.keys.wraps() == wraps).then_some((slot, range, counter))
    }

    /// Like [`Protection::check_local`], without a pin.
    ///
    /// # Errors
    /// Same as [`Protection::check_remote`].
    #[inline]
    pub fn check_local(
        &self,
        domain: DomainId,
        key: LKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Grant<'_>, Box<Denial>> {
        match self.find_local(domain, key, addr, len, want) {
            Some((slot, range, counter)) => Ok(granted(slot, range, counter)),
            None => self.table.check_local(domain, key, addr, len, want),
        }
    }

    /// The fast path of [`Self::check_local`] alone. `None` is no denial: only [`Self::check_local`] decides about all other
    /// keys, regions and ranges.
    #[inline(always)]
    #[must_use]
    pub fn fast_check_local(
        &self,
        domain: DomainId,
        key: LKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Option<FastGrant<'_>> {
        let (_, memory, counter) = self.find_local(domain, key, addr, len, want)?;
        Some(FastGrant {
            memory,
            counter,
            _section: PhantomData,
        })
    }

    /// The slot, the memory and the counter of a local use that the fast path grants.
    #[inline(always)]
    fn find_local(
        &self,
        domain: DomainId,
        key: LKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Option<((u32, u32), VaRange, Option<u32>)> {
        if len == 0 {
            return None;
        }
        let slot = self.table.keys.open_local(key)?;
        let request = Request::local(domain, NamedKey::Local(key), addr, len, want);
        let (range, counter) = self
            .table
            .check_without_pin(slot, &request, want.needs(), 0)?;
        Some((slot, range, counter))
    }

    /// Like [`Self::check_remote`], for an owner that lets a peer make accesses without further checks: the whole region that
    /// grants this access. `None` if later accesses need checks of their own, because the key names a window or the region is
    /// not plain: scattered, for one endpoint or peer, with a counter, in a shared segment, or foreign.
    ///
    /// The result holds nothing, like a grant: see [`Section`].
    ///
    /// # Errors
    /// Same as [`Protection::check_remote`].
    pub fn whole_region(
        &self,
        who: &Accessor,
        key: RKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Result<Option<PlainRegion>, Box<Denial>> {
        let grant = self.check_remote(who, key, addr, len, want)?;
        let KeptBy::Section {
            region,
            counter: None,
        } = grant.kept_by
        else {
            return Ok(None);
        };
        Ok(self.plain_region(region))
    }

    fn plain_region(&self, region: RegionId) -> Option<PlainRegion> {
        let look = self.table.slots.look(region.index)?;
        let entry = look.value();
        if entry.rights() & (flag::UNUSUAL | flag::NULL | flag::SHARED) != 0 {
            return None;
        }
        let (start, len) = (&entry.start, &entry.len);
        let memory = VaRange::new(start.load(Ordering::Relaxed), len.load(Ordering::Relaxed))?;
        let base = entry.base.load(Ordering::Relaxed);
        // As in `check_without_pin`.
        fence(Ordering::Acquire);
        look.is_live(region.generation).then_some(PlainRegion {
            region,
            base,
            memory,
        })
    }

    /// The slot of a key that is live, or was when it was last looked up.
    #[inline]
    fn find(&self, key: u32, wraps: u32) -> Option<(u32, u32)> {
        let cell = &self.lately[key as usize % LATELY];
        let last = cell.get();
        let of = self.table.keys.permutation();
        if last.key == key && last.of == of && last.wraps == wraps {
            return Some(last.slot);
        }
        let slot = self.table.keys.remote.find(key)?;
        cell.set(RecentSlot {
            of,
            wraps,
            key,
            slot,
        });
        Some(slot)
    }
}

/// The grant of an access on the fast path.
#[inline(always)]
fn granted<'a>((index, generation): (u32, u32), range: VaRange, counter: Option<u32>) -> Grant<'a> {
    Grant {
        kept_by: KeptBy::Section {
            region: RegionId { index, generation },
            counter,
        },
        memory: Granted::One(range),
        through_window: false,
    }
}

/// A grant of the fast path: the bytes are one range that the processor copies. Like every grant of a section, it holds
/// nothing: see [`Section`].
#[derive(Debug)]
#[must_use]
pub struct FastGrant<'a> {
    /// The memory. Addresses are those of this process.
    pub memory: VaRange,
    /// The counter of accesses to the region, if one is bound to it.
    pub counter: Option<u32>,
    _section: PhantomData<&'a Section>,
}

/// A region whose every byte a peer may access in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRegion {
    /// The region.
    pub region: RegionId,
    /// The address that requests use for its first byte.
    pub base: u64,
    /// Its memory.
    pub memory: VaRange,
}

impl Drop for Section {
    fn drop(&mut self) {
        self.table.has_section.store(false, Ordering::SeqCst);
    }
}

impl AsRef<Self> for Section {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// A lock around a value that owns a [`Section`] and makes its checks there. The value must keep that section: debug
/// builds check this whenever the lock is taken.
#[derive(Debug)]
pub struct SectionLock<T> {
    lock: SpinLock<T>,
    table: Arc<Protection>,
}

impl<T: AsRef<Section>> SectionLock<T> {
    /// An unlocked lock around `value`.
    #[must_use]
    pub fn new(value: T) -> Self {
        let table = Arc::clone(value.as_ref().protection());
        let lock = SpinLock::new(value);
        Self { lock, table }
    }

    /// Waits until the lock is free, and takes it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let guard = self.lock.lock();
        debug_assert!(Arc::ptr_eq(guard.as_ref().protection(), &self.table));
        guard
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let guard = self.lock.try_lock()?;
        debug_assert!(Arc::ptr_eq(guard.as_ref().protection(), &self.table));
        Some(guard)
    }

    /// Waits until the current holder has unlocked; if the lock is free, this costs only a load. The section's earlier
    /// grants have then ended, and its later checks see the end or change of the region.
    #[inline]
    pub fn drain_section(&self, pending: &mut impl Draining) {
        // The end of a region is a sequentially consistent read-modify-write, and checks read it with a sequentially
        // consistent load, as `SpinLock::wait_for_holder` requires.
        self.lock.wait_for_holder();
        pending.section_drained(&self.table);
    }
}

/// The end of a region, or a change of one, that waits for earlier grants.
pub trait Draining: SectionDrained + Sized {
    /// The result.
    type Done;

    /// Finishes the end or the change: the old memory belongs to the owner.
    ///
    /// # Errors
    /// Returns itself while a grant still holds the region, or while nothing has shown that the section's grants have
    /// ended.
    fn finish(self) -> Result<Self::Done, Self>;
}

impl Draining for Deregistering<'_> {
    type Done = ();

    #[inline]
    fn finish(self) -> Result<(), Self> {
        Deregistering::finish(self)
    }
}

impl Draining for Changing<'_> {
    type Done = Region;

    fn finish(self) -> Result<Region, Self> {
        Changing::finish(self)
    }
}

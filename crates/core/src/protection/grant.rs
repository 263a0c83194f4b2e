//! Grants, each the permission to access some bytes until it is dropped, and the end of a region, which waits for its
//! grants.
//!
//! A region ends in one of three ways. Each first makes checks refuse its keys, and returns a [`Deregistering`]:
//!
//! | call | how the region ends |
//! | --- | --- |
//! | `deregister` (`registry.rs`) | under the table's lock; refused while windows or bindings exist; `end` retires the slot, which is freed once no pin is left |
//! | `revoke_and_deregister` (`registry.rs`) | the same, after unbinding the windows and removing the bindings |
//! | `deregister_into`, `revoke_and_deregister_into` (`magazine.rs`) | `end_idle` puts the slot of a region without pins, windows and bindings into the thread's magazine, without the table's lock; any other region ends as above |
//!
//! [`Deregistering::finish`] succeeds once both kinds of grants have ended: those with a pin, which the slot counts, and
//! those of the [section](crate::Section), which are not counted, so the caller must call
//! [`drain_section`](crate::SectionLock::drain_section).

use crate::RegionId;
use crate::protection::drained::{Awaited, SectionDrained};
use crate::protection::entry::Entry;
use crate::protection::granted::Granted;
use crate::protection::table::Protection;
use rkey_base::foreign::{Copier, Span};
use rkey_base::range::VaRange;
use rkey_base::slab::{Pin, Retired};

/// Permission to access some bytes of registered memory, until it is dropped.
///
/// While a grant lives, deregistering its region does not finish. Hold it only during a copy, and never across anything
/// that waits.
#[must_use]
pub struct Grant<'a> {
    pub(crate) kept_by: KeptBy<'a>,
    pub(crate) memory: Granted,
    pub(crate) through_window: bool,
}

/// What keeps a grant's region from ending.
pub(crate) enum KeptBy<'a> {
    /// Nothing: a request of no bytes touches no region.
    Nothing,
    /// A pin of its slot.
    Pinned(Pin<'a, Entry>),
    /// The section that returned the grant.
    Section {
        region: RegionId,
        counter: Option<u32>,
    },
}

impl Grant<'_> {
    /// The grant for a request of no bytes.
    pub(crate) const NOTHING: Self = Self {
        kept_by: KeptBy::Nothing,
        memory: match VaRange::new(0, 0) {
            Some(nothing) => Granted::One(nothing),
            None => unreachable!(),
        },
        through_window: false,
    };

    /// The memory, if it is one range that the processor copies, as it always is for a plain region. Addresses are
    /// those of this process.
    #[inline]
    #[must_use]
    pub fn single(&self) -> Option<VaRange> {
        match &self.memory {
            Granted::One(range) => Some(*range),
            Granted::Many(_) => None,
        }
    }

    /// The memory, range by range, in order; nothing for a request of no bytes.
    pub fn spans(&self) -> Spans<'_> {
        let (ranges, copiers): (&[VaRange], &[Copier]) = match &self.memory {
            Granted::One(range) if range.is_empty() => (&[], &[]),
            Granted::One(range) => (std::slice::from_ref(range), &[]),
            Granted::Many(several) => (&several.ranges, &several.copiers),
        };
        Spans {
            ranges: ranges.iter(),
            copiers: copiers.iter(),
        }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spans().map(|span| span.len()).sum()
    }

    /// Whether the request has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counter of accesses to the region, if one is bound to it.
    #[inline]
    #[must_use]
    pub fn counter(&self) -> Option<u32> {
        match &self.kept_by {
            KeptBy::Nothing => None,
            KeptBy::Pinned(region) => Entry::bound(&region.counter),
            KeptBy::Section { counter, .. } => *counter,
        }
    }

    /// Whether the key named a window of the region and not the region itself.
    #[must_use]
    pub fn through_window(&self) -> bool {
        self.through_window
    }

    /// The region; `None` for a request of no bytes.
    #[must_use]
    pub fn region(&self) -> Option<RegionId> {
        match &self.kept_by {
            KeptBy::Nothing => None,
            KeptBy::Pinned(region) => Some(RegionId {
                index: region.index(),
                generation: region.generation(),
            }),
            KeptBy::Section { region, .. } => Some(*region),
        }
    }
}

impl std::fmt::Debug for Grant<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = self.spans().map(|span| span.range());
        out.debug_list().entries(ranges).finish()
    }
}

/// The ranges of a grant, in order.
#[derive(Clone, Debug)]
pub struct Spans<'a> {
    ranges: std::slice::Iter<'a, VaRange>,
    copiers: std::slice::Iter<'a, Copier>,
}

impl<'a> Iterator for Spans<'a> {
    type Item = Span<'a>;

    #[inline]
    fn next(&mut self) -> Option<Span<'a>> {
        let range = *self.ranges.next()?;
        Some(match self.copiers.next() {
            None => Span::system(range),
            Some(copier) => Span::new(range, copier),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ranges.size_hint()
    }
}

impl ExactSizeIterator for Spans<'_> {}

/// The end of a region: its keys are already refused, and its memory belongs to the owner again when no grant is left.
/// Grants of a section are not counted: the owner must show that they have ended, as [`crate::Section`] describes.
///
/// The value may be dropped while grants are left: the table frees the region later, but the owner does not learn when
/// accesses to the memory have ended.
#[must_use = "the memory is in use until the region is drained"]
pub struct Deregistering<'a> {
    table: &'a Protection,
    /// The retired slot, if it was still pinned.
    waiting: Option<Retired<'a, Entry>>,
    leasable: bool,
    section: Awaited<'a>,
}

impl<'a> Deregistering<'a> {
    /// Call it after the region has ended: it reads whether a section exists that may still have seen the region.
    #[inline]
    pub(crate) fn new(
        table: &'a Protection,
        waiting: Option<Retired<'a, Entry>>,
        leasable: bool,
    ) -> Self {
        Self {
            table,
            waiting,
            leasable,
            section: Awaited::new(table),
        }
    }

    /// Whether the memory of the region was part of a shared segment, so that peers may have leases on it.
    #[inline]
    #[must_use]
    pub fn was_leasable(&self) -> bool {
        self.leasable
    }

    /// Whether no grant still holds the region and the section's grants are known to have ended. Once true, it stays
    /// true.
    #[inline]
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.section.is_over() && self.waiting.as_ref().is_none_or(Retired::is_drained)
    }

    /// Finishes deregistering: the memory belongs to the owner.
    ///
    /// # Errors
    /// Returns itself while it is not drained.
    #[inline]
    pub fn finish(self) -> Result<(), Self> {
        // A finished region needs nothing more; a drained one is freed when this is dropped.
        if self.is_drained() { Ok(()) } else { Err(self) }
    }
}

impl SectionDrained for Deregistering<'_> {
    #[inline]
    fn section_drained(&mut self, table: &Protection) {
        self.section.section_drained(table);
    }
}

impl Drop for Deregistering<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(retired) = self.waiting.take() {
            let mut registry = self.table.registry.lock();
            self.table.put_back(&mut registry, false, retired);
        }
    }
}

impl std::fmt::Debug for Deregistering<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Deregistering(drained: {})", self.is_drained())
    }
}

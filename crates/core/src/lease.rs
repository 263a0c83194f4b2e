//! Leases: the right to touch some bytes until it is given back, and the end of a region that waits for them.

use crate::RegionId;
use crate::entry::Entry;
use crate::table::{Orphan, Protection};
use rkey_base::range::VaRange;
use rkey_base::slab::{Pin, Retired};

/// The right to touch some bytes of registered memory, until it is dropped.
///
/// While a lease lives, closing its region does not finish. Hold it for the length of a copy and no longer, and
/// never across anything that waits.
#[must_use]
pub struct Lease<'a> {
    pub(crate) region: Option<Pin<'a, Entry>>,
    pub(crate) memory: Granted,
    pub(crate) through_window: bool,
}

/// The memory of a lease.
pub(crate) enum Granted {
    One(VaRange),
    Many(Box<[VaRange]>),
}

impl Lease<'_> {
    /// The answer to a request of no bytes: nothing to touch.
    pub(crate) const NOTHING: Self = Self {
        region: None,
        memory: match VaRange::new(0, 0) {
            Some(nothing) => Granted::One(nothing),
            None => unreachable!(),
        },
        through_window: false,
    };

    /// The memory, when it is one range, as it always is for a plain region. Addresses are those of this process.
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
        let ranges = match &self.memory {
            Granted::One(range) if range.is_empty() => &[],
            Granted::One(range) => std::slice::from_ref(range),
            Granted::Many(ranges) => ranges,
        };
        Spans(ranges.iter())
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spans().map(|span| span.len()).sum()
    }

    /// True for a request of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counter that counts accesses to the region, if one is tied to it.
    #[inline]
    #[must_use]
    pub fn counter(&self) -> Option<u32> {
        self.region
            .as_ref()
            .and_then(|region| Entry::tied(&region.counter))
    }

    /// True when the key named a window of the region and not the region itself.
    #[must_use]
    pub fn through_window(&self) -> bool {
        self.through_window
    }

    /// The region; none for a request of no bytes, which needs none.
    #[must_use]
    pub fn region(&self) -> Option<RegionId> {
        let region = self.region.as_ref()?;
        Some(RegionId {
            index: region.index(),
            generation: region.generation(),
        })
    }
}

impl std::fmt::Debug for Lease<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.spans()).finish()
    }
}

/// The ranges of a lease, in order.
#[derive(Clone, Debug)]
pub struct Spans<'a>(std::slice::Iter<'a, VaRange>);

impl Iterator for Spans<'_> {
    type Item = VaRange;

    #[inline]
    fn next(&mut self) -> Option<VaRange> {
        self.0.next().copied()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Spans<'_> {}

/// The end of a region: its keys are refused already; its memory is the owner's again when no lease is left.
///
/// Dropping it before that is allowed; the table then forgets the region later, but the owner does not learn when
/// the memory is free of accesses.
#[must_use = "the memory is in use until the close is drained"]
pub struct Closing<'a> {
    pub(crate) table: &'a Protection,
    pub(crate) retired: Option<Retired<'a, Entry>>,
}

impl Closing<'_> {
    /// True when no access holds the region any more. It stays so.
    #[inline]
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.retired.as_ref().is_none_or(Retired::is_drained)
    }

    /// Ends the close: the memory is the owner's.
    ///
    /// # Errors
    /// Itself, while an access still holds the region.
    #[inline]
    pub fn finish(mut self) -> Result<(), Self> {
        if let Some(retired) = self.retired.take()
            && let Err(busy) = self.table.try_put_back(false, retired)
        {
            self.retired = Some(busy);
            return Err(self);
        }
        Ok(())
    }
}

impl Drop for Closing<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(retired) = self.retired.take()
            && let Err(busy) = self.table.try_put_back(false, retired)
        {
            let orphan = Orphan::left_by(false, busy);
            self.table.books.lock().adopt(orphan);
        }
    }
}

impl std::fmt::Debug for Closing<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Closing(drained: {})", self.is_drained())
    }
}

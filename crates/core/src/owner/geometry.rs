//! Where a region's memory is, and which addresses requests use for it.

use crate::protection::entry::{Entry, flag};
use crate::protection::scatter::ScatterList;
use crate::protection::table::{Protection, reached};
use crate::sync::Ordering;
use crate::{Addressing, CoreError, Limit};
use rkey_base::range::VaRange;

/// A region's address and addressing, after the checks.
pub(crate) struct Geometry {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) base: u64,
    pub(crate) flags: u32,
    pub(crate) segments: Option<ScatterList>,
}

impl Protection {
    /// Checks the ranges of a registration.
    #[inline]
    pub(crate) fn geometry(
        &self,
        ranges: &[VaRange],
        addressing: Addressing,
    ) -> Result<Geometry, CoreError> {
        let [range] = ranges else {
            return self.scattered(ranges, addressing);
        };
        let len = range.len();
        if len == 0 {
            return Err(CoreError::Empty);
        }
        self.bounded(len)?;
        let (base, flags) = based(addressing, range.start(), len)?;
        Ok(Geometry {
            start: range.start(),
            len,
            base,
            flags,
            segments: None,
        })
    }

    /// [`Self::geometry`] for any number of ranges.
    #[cold]
    pub(crate) fn scattered(
        &self,
        ranges: &[VaRange],
        addressing: Addressing,
    ) -> Result<Geometry, CoreError> {
        if ranges.iter().any(VaRange::is_empty) {
            return Err(CoreError::Empty);
        }
        let max = self.limits.max_segments;
        if ranges.len() > max as usize {
            return Err(reached(Limit::Segments, u64::from(max)));
        }
        let Some(segments) = ScatterList::new(ranges) else {
            // No segment, or more bytes than 64 bits can count.
            return Err(match ranges {
                [] => CoreError::Empty,
                _ => reached(Limit::RegionBytes, self.limits.max_region_bytes),
            });
        };
        self.bounded(segments.len())?;
        let (base, flags) = match addressing {
            Addressing::Virtual => (segments.hull().start(), flag::VIRTUAL),
            other => based(other, 0, segments.len())?,
        };
        let flags = flags | flag::SCATTER;
        Ok(Geometry {
            start: 0,
            len: segments.len(),
            base,
            flags,
            segments: Some(segments),
        })
    }

    /// A live region's current address and addressing.
    pub(crate) fn geometry_of(&self, entry: &Entry) -> Geometry {
        let rights = entry.rights();
        let start = entry.start.load(Ordering::Relaxed);
        let scattered = rights & flag::SCATTER != 0;
        Geometry {
            start,
            len: entry.len.load(Ordering::Relaxed),
            base: entry.base.load(Ordering::Relaxed),
            flags: rights & (flag::SCATTER | flag::VIRTUAL),
            segments: match self.scatter.get(start) {
                Some(list) if scattered => list.again(),
                _ => None,
            },
        }
    }

    /// Checks a region's length against the limit.
    #[inline]
    pub(crate) fn bounded(&self, len: u64) -> Result<(), CoreError> {
        let max = self.limits.max_region_bytes;
        if len > max {
            Err(reached(Limit::RegionBytes, max))
        } else {
            Ok(())
        }
    }
}

/// The address that requests use for the first byte, and the flag of the addressing.
#[inline]
pub(crate) fn based(addressing: Addressing, start: u64, len: u64) -> Result<(u64, u32), CoreError> {
    let (base, flags) = match addressing {
        Addressing::Virtual => (start, flag::VIRTUAL),
        Addressing::Zero => (0, 0),
        Addressing::Iova(base) => (base, 0),
    };
    match VaRange::new(base, len) {
        Some(_) => Ok((base, flags)),
        None => Err(CoreError::Wraps { base, len }),
    }
}

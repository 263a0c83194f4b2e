//! Scatter lists: regions of several memory segments, and the side table that stores them.
//!
//! Few regions have a scatter list, so a region's slot holds only the list's number. Regions of foreign memory always
//! have one, even with a single segment, because it names the copier of each segment.

use crate::protection::granted::Granted;
use rkey_base::foreign::Copier;
use rkey_base::lock::SpinLock;
use rkey_base::range::VaRange;
use std::sync::Arc;

/// The segments of a region, in order, each with its offset in the region.
#[derive(Debug)]
pub(crate) struct ScatterList {
    segments: Box<[(u64, VaRange)]>,
    hull: VaRange,
    len: u64,
    /// The copier of each segment; empty if the processor copies all.
    copiers: Box<[Copier]>,
}

impl ScatterList {
    /// `None` if there is no segment, or if the lengths overflow.
    pub(crate) fn new(ranges: &[VaRange]) -> Option<Self> {
        let mut len = 0u64;
        let mut segments = Vec::with_capacity(ranges.len());
        for range in ranges {
            segments.push((len, *range));
            len = len.checked_add(range.len())?;
        }
        let start = ranges.iter().map(VaRange::start).min()?;
        let end = ranges.iter().map(VaRange::end).max()?;
        let hull = VaRange::new(start, end - start)?;
        Some(Self {
            segments: segments.into(),
            hull,
            len,
            copiers: Box::default(),
        })
    }

    /// The same segments with these copiers.
    pub(crate) fn copied_by(self, copiers: &[Copier]) -> Self {
        Self {
            copiers: copiers.into(),
            ..self
        }
    }

    /// A copy of the list.
    pub(crate) fn again(&self) -> Option<Self> {
        Some(Self::new(&self.ranges())?.copied_by(&self.copiers))
    }

    pub(crate) fn count(&self) -> usize {
        self.segments.len()
    }

    pub(crate) fn ranges(&self) -> Vec<VaRange> {
        self.segments.iter().map(|(_, range)| *range).collect()
    }

    /// The range from the lowest to the highest address of any segment.
    pub(crate) fn hull(&self) -> VaRange {
        self.hull
    }

    /// The total length of all segments, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The offset in the region of a range of virtual addresses, if one segment contains it.
    pub(crate) fn offset_of(&self, range: &VaRange) -> Option<u64> {
        let (offset, segment) = self
            .segments
            .iter()
            .find(|(_, segment)| segment.contains(range))?;
        offset.checked_add(range.start() - segment.start())
    }

    /// The memory of `len` bytes at `offset`, in order; `None` unless they are all inside.
    pub(crate) fn memory(&self, offset: u64, len: u64) -> Option<Granted> {
        let (first, spans) = self.spans(offset, len)?;
        if self.copiers.is_empty() {
            return Some(match spans[..] {
                [one] => Granted::One(one),
                _ => Granted::several(spans.into(), Box::default()),
            });
        }
        let copiers = self.copiers.get(first..first + spans.len())?;
        Some(Granted::several(spans.into(), copiers.into()))
    }

    /// The ranges of `len` bytes at `offset`, and the index of the segment in which they begin.
    fn spans(&self, offset: u64, len: u64) -> Option<(usize, Vec<VaRange>)> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        let first = self
            .segments
            .partition_point(|(at, segment)| at + segment.len() <= offset);
        let mut spans = Vec::new();
        for (at, segment) in &self.segments[first..] {
            if *at >= end {
                break;
            }
            let skip = offset.saturating_sub(*at);
            let take = segment.len().min(end - at) - skip;
            spans.push(segment.slice(skip, take)?);
        }
        Some((first, spans))
    }
}

/// The scatter lists of a table.
#[derive(Default)]
pub(crate) struct ScatterLists {
    lists: SpinLock<Lists>,
}

#[derive(Default)]
struct Lists {
    lists: Vec<Option<Arc<ScatterList>>>,
    free: Vec<u32>,
}

impl ScatterLists {
    /// Stores a list; returns its number.
    pub(crate) fn add(&self, segments: ScatterList) -> u32 {
        let segments = Some(Arc::new(segments));
        let mut lists = self.lists.lock();
        if let Some(number) = lists.free.pop() {
            lists.lists[number as usize] = segments;
            return number;
        }
        lists.lists.push(segments);
        (lists.lists.len() - 1) as u32
    }

    /// The list with that number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<ScatterList>> {
        let lists = self.lists.lock();
        lists.lists.get(usize::try_from(number).ok()?)?.clone()
    }

    /// Removes a list.
    pub(crate) fn remove(&self, number: u32) {
        let removed = {
            let mut lists = self.lists.lock();
            let removed = lists.lists.get_mut(number as usize).and_then(Option::take);
            if removed.is_some() {
                lists.free.push(number);
            }
            removed
        };
        drop(removed); // frees memory, outside the lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, len: u64) -> VaRange {
        VaRange::new(start, len).unwrap()
    }

    fn segments() -> ScatterList {
        ScatterList::new(&[range(100, 10), range(50, 5), range(200, 1)]).unwrap()
    }

    #[test]
    fn spans_run_through_the_segments_in_order() {
        let segments = segments();
        assert_eq!(segments.spans(0, 16).unwrap(), (0, segments.ranges()));
        assert_eq!(
            segments.spans(8, 4).unwrap(),
            (0, vec![range(108, 2), range(50, 2)])
        );
        assert_eq!(segments.spans(10, 5).unwrap(), (1, vec![range(50, 5)]));
        assert_eq!(segments.spans(15, 1).unwrap(), (2, vec![range(200, 1)]));
        assert_eq!(segments.spans(15, 2), None);
        assert_eq!(segments.spans(u64::MAX, 2), None);
        assert_eq!(segments.hull(), range(50, 151));
    }

    #[test]
    fn a_virtual_range_must_lie_in_one_segment() {
        let segments = segments();
        assert_eq!(segments.offset_of(&range(102, 8)), Some(2));
        assert_eq!(segments.offset_of(&range(52, 3)), Some(12));
        assert_eq!(segments.offset_of(&range(102, 9)), None);
        assert_eq!(segments.offset_of(&range(54, 2)), None);
    }

    #[test]
    fn segments_whose_total_length_overflows_are_refused() {
        assert!(ScatterList::new(&[range(0, u64::MAX), range(0, 1)]).is_none());
    }
}

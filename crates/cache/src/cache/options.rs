//! The options of a cache: limits and policies.

use crate::registrar::Follows;
use rkey_base::process::page_size;
use rkey_base::range::VaRange;

/// How much more than the buffer is registered, so that lookups of neighbouring buffers hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// Nothing.
    Exact,
    /// Whole pages, which are mapped if the buffer is.
    #[default]
    Pages,
    /// Multiples of this power of two. If such a range cannot be registered, only the buffer is. Registrars that pin
    /// cannot use more than a page, because each page of their entries must contain a byte of the buffer.
    Multiples(u64),
}

/// The options of a [`Cache`](super::Cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The maximum number of entries (`FI_MR_CACHE_MAX_COUNT`). 0 turns the cache off. Values greater than 1,048,576 are treated
    /// as 1,048,576.
    pub max_count: usize,
    /// The maximum total size of the entries in bytes, beyond which idle entries are evicted (`FI_MR_CACHE_MAX_SIZE`); `None`: no
    /// limit.
    pub max_size: Option<u64>,
    /// How much more than the buffer is registered.
    pub rounding: Rounding,
    /// Whether an entry serves only lookups of exactly its rights, and not those of fewer rights. Set this if peers get
    /// keys of entries: a peer must not get more rights than the lookup requested.
    pub exact_rights: bool,
    /// Whether a registrar that pins may use a monitor that does not see every change. Entries can then be stale.
    pub accept_partial: bool,
    /// Whether memory is watched even if the registrar does not need that, so that entries end as soon as their memory is unmapped,
    /// instead of staying until they are evicted.
    pub watch: bool,
    /// Whether no address of accelerator memory equals one of host memory or of another accelerator (unified virtual
    /// addressing). If not, only host memory is cached (FI-232).
    pub unified_addresses: bool,
    /// How many lookups are recorded for [`Cache::trace`](super::Cache::trace). If it is not 0, all lookups take one
    /// lock.
    pub trace: usize,
}

impl Default for Options {
    /// 1024 entries of any size, whole pages; entries serve lookups of fewer rights; unified addresses.
    fn default() -> Self {
        Self {
            max_count: 1024,
            max_size: None,
            rounding: Rounding::default(),
            exact_rights: false,
            accept_partial: false,
            watch: false,
            unified_addresses: true,
            trace: 0,
        }
    }
}

/// Options that contradict each other or the registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The size is not a power of two.
    #[error("entries cannot be rounded to multiples of {0} bytes: choose a power of two")]
    Rounding(u64),
    /// The registrar pins pages, and the size is larger than a page.
    #[error(
        "entries of a registrar that pins cannot be rounded to multiples of {0} bytes: choose pages ({1} bytes)"
    )]
    TooLarge(u64, u64),
}

impl Rounding {
    pub(super) fn validate(self, follows: Follows) -> Result<(), Invalid> {
        let page = page_size() as u64;
        match self {
            Self::Multiples(size) if !size.is_power_of_two() => Err(Invalid::Rounding(size)),
            Self::Multiples(size) if size > page && follows == Follows::Pages => {
                Err(Invalid::TooLarge(size, page))
            }
            _ => Ok(()),
        }
    }

    /// The range to register for a buffer: the rounded one, or the buffer's own if rounding would reach the end of the
    /// address space.
    pub(super) fn round(self, range: VaRange) -> VaRange {
        let size = match self {
            Self::Exact => return range,
            Self::Pages => page_size() as u64,
            Self::Multiples(size) => size,
        };
        let start = range.start() & !(size - 1);
        let end = range.end().checked_next_multiple_of(size);
        end.and_then(|end| VaRange::new(start, end - start))
            .unwrap_or(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_covers_the_buffer_and_no_more_than_needed() {
        let buffer = VaRange::new(0x12345, 0x1000).unwrap();
        assert_eq!(Rounding::Exact.round(buffer), buffer);
        let large = Rounding::Multiples(0x10000).round(buffer);
        assert_eq!((large.start(), large.end()), (0x10000, 0x20000));
        let pages = Rounding::Pages.round(buffer);
        assert!(pages.contains(&buffer) && pages.len() <= 0x1000 + 2 * page_size() as u64);
        let last = VaRange::new(u64::MAX - 10, 10).unwrap();
        assert_eq!(Rounding::Pages.round(last), last);
    }

    #[test]
    fn rounding_beyond_pages_is_refused_for_pinned_entries() {
        let large = Rounding::Multiples(1 << 21);
        assert!(large.validate(Follows::Addresses).is_ok());
        let error = large.validate(Follows::Pages).unwrap_err();
        assert_eq!(error, Invalid::TooLarge(1 << 21, page_size() as u64));
        let odd = Rounding::Multiples(3000).validate(Follows::Addresses);
        assert_eq!(odd, Err(Invalid::Rounding(3000)));
    }
}

//! Memory that outlives the process (`FI_RMA_PMEM`): shared mappings of files, and how their bytes become
//! durable.

#![allow(unsafe_code)]
// UNSAFETY: asks the kernel to write pages to their file.

use crate::errno::{FiError, Result};
use rkey_device::base::range::VaRange;

const PAGE: u64 = 4096;

/// Whether the memory of a line of `/proc/self/maps` outlives the process: it is shared, and of a file that
/// has a name. The answer is its range.
fn persistent(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let named = fields.next().is_some_and(|path| path.starts_with('/'));
    if !rights.ends_with('s') || inode == "0" || !named || line.ends_with(" (deleted)") {
        return None;
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

/// Whether every byte of a range is in one of these mappings, which are in order.
fn covered(range: &VaRange, mappings: &[(u64, u64)]) -> bool {
    let mut at = range.start();
    for &(start, end) in mappings {
        if start <= at && at < end {
            at = end;
        }
    }
    at >= range.end()
}

/// Refuses memory that is in no shared mapping of a file.
pub(crate) fn check<'a>(ranges: impl IntoIterator<Item = &'a VaRange>) -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| FiError::IO)?;
    let mappings: Vec<_> = maps.lines().filter_map(persistent).collect();
    if ranges.into_iter().all(|range| covered(range, &mappings)) {
        return Ok(());
    }
    tracing::warn!(
        "FI_RMA_PMEM is for shared mappings (MAP_SHARED) of files that have a name; this memory is none"
    );
    Err(FiError::INVAL)
}

/// Returns when these bytes are where the file is.
pub(crate) fn sync(range: &VaRange) -> Result<()> {
    let start = range.start() / PAGE * PAGE;
    let len = (range.end() - start) as usize;
    // SAFETY: the kernel writes pages to their file; memory stays as it is, and what is not mapped is an error.
    match unsafe { libc::msync(start as *mut _, len, libc::MS_SYNC) } {
        0 => Ok(()),
        _ => Err(rkey_kit::Errno::last().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mappings_of_files_with_a_name_stay() {
        let line = |rights: &str, inode: &str, path: &str| {
            format!("1000-3000 {rights} 00000000 fe:00 {inode}   {path}")
        };
        assert_eq!(
            persistent(&line("rw-s", "77", "/data/a b")),
            Some((0x1000, 0x3000))
        );
        for (rights, inode, path) in [
            ("rw-p", "77", "/data/a"),
            ("rw-s", "0", ""),
            ("rw-s", "77", "/memfd:x (deleted)"),
            ("rw-s", "77", "/data/a (deleted)"),
            ("rw-s", "77", "anon_inode:[x]"),
        ] {
            assert_eq!(persistent(&line(rights, inode, path)), None, "{path}");
        }
    }

    #[test]
    fn a_range_may_lie_in_mappings_that_touch() {
        let range = VaRange::new(0x1800, 0x2000).unwrap();
        assert!(covered(&range, &[(0x1000, 0x3000), (0x3000, 0x4000)]));
        assert!(!covered(&range, &[(0x1000, 0x3000), (0x3001, 0x4000)]));
        assert!(!covered(&range, &[(0x2000, 0x4000)]));
        assert!(!covered(&range, &[]));
    }
}

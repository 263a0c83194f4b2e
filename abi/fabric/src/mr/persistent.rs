//! Memory that outlives the process (`FI_RMA_PMEM`): checking for shared mappings of files, and making their bytes durable.

#![allow(unsafe_code)]
// UNSAFETY: asks the kernel to write pages to their file.

use super::mappings::{self, Mapping};
use crate::errno::{FiError, Result};
use rkey_device::base::VaRange;

const PAGE: u64 = 4096;

/// Whether the memory of a mapping outlives the process: a shared mapping of a file with a name.
fn persistent(it: &Mapping<'_>) -> bool {
    let named = it.name.starts_with('/') && !it.name.ends_with(" (deleted)");
    it.rights.ends_with('s') && it.inode != "0" && named
}

/// Whether a file is on storage: on a disk, or in persistent memory under a DAX file system. Device files,
/// and files on file systems in memory, cannot be made durable.
fn is_stored(path: &str) -> bool {
    const IN_MEMORY: [i64; 3] = [libc::TMPFS_MAGIC, 0x8584_58f6, 0x9584_58f6]; // tmpfs, ramfs, hugetlbfs
    let Ok(path) = std::ffi::CString::new(path) else {
        return false;
    };
    // SAFETY: a C string, and a result that is valid for writes.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &raw mut about) == 0 && !IN_MEMORY.contains(&about.f_type)
    }
}

/// Refuses memory outside shared mappings of files on storage, and all memory that a runtime or driver copies (`foreign`).
pub(crate) fn check<'a>(
    ranges: impl IntoIterator<Item = &'a VaRange>,
    foreign: bool,
) -> Result<()> {
    let stored = |it: &Mapping<'_>| persistent(it) && is_stored(it.name);
    if !foreign && mappings::cover(ranges, stored)? {
        return Ok(());
    }
    tracing::warn!(
        "FI_RMA_PMEM needs a shared mapping (MAP_SHARED) of a file that has a name, on a file system with storage (not tmpfs)"
    );
    Err(FiError::INVAL)
}

/// Writes these bytes to the file and returns when they are durable.
pub(crate) fn sync(range: &VaRange) -> Result<()> {
    let start = range.start() / PAGE * PAGE;
    let len = (range.end() - start) as usize;
    // SAFETY: the kernel writes pages to their file; memory stays unchanged, and an unmapped page is an error.
    match unsafe { libc::msync(start as *mut _, len, libc::MS_SYNC) } {
        0 => Ok(()),
        _ => Err(rkey_kit::Errno::last().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_a_missing_file_are_not_storage() {
        assert!(!is_stored("/dev/null") && !is_stored("/there/is/no/such/file"));
    }

    #[test]
    fn only_shared_mappings_of_named_files_are_persistent() {
        let line = |rights: &str, inode: &str, path: &str| {
            format!("1000-3000 {rights} 00000000 fe:00 {inode}   {path}")
        };
        let stays = |line: &str| Mapping::read(line).map(|it| persistent(&it));
        assert_eq!(stays(&line("rw-s", "77", "/data/a b")), Some(true));
        for (rights, inode, path) in [
            ("rw-p", "77", "/data/a"),
            ("rw-s", "0", ""),
            ("rw-s", "77", "/memfd:x (deleted)"),
            ("rw-s", "77", "/data/a (deleted)"),
            ("rw-s", "77", "anon_inode:[x]"),
        ] {
            assert_eq!(stays(&line(rights, inode, path)), Some(false), "{path}");
        }
    }
}

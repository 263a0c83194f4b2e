//! Queries the kernel for the mappings of the process.

#![allow(unsafe_code)]
// UNSAFETY: a system call with a structure.

use crate::errno::{FiError, Result};
use rkey_device::base::VaRange;
use std::fs::File;
use std::os::fd::AsRawFd;

/// A line of `/proc/self/maps`.
pub(super) struct Mapping<'a> {
    start: u64,
    end: u64,
    /// Permissions, such as `rw-p`.
    pub(super) rights: &'a str,
    pub(super) inode: &'a str,
    /// The file or another description; may be empty.
    pub(super) name: &'a str,
}

impl<'a> Mapping<'a> {
    pub(super) fn read(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?;
        let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: number(start)?,
            end: number(end)?,
            rights,
            inode,
            name: fields.next().unwrap_or_default().trim_start(),
        })
    }
}

/// `struct procmap_query` of Linux 6.11.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    sizes: [u32; 2],
    addresses: [u64; 2],
}

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const QUERY: libc::Ioctl = (3 << 30 | (size_of::<Query>() << 16) as u32 | 0x66 << 8 | 17) as _;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// Whether every byte of these ranges is in readable or writable memory: mapped, and not only reserved
/// (`PROT_NONE`).
pub(super) fn back(ranges: &[VaRange]) -> Result<bool> {
    let maps = File::open("/proc/self/maps").map_err(|_| FiError::IO)?;
    for range in ranges {
        match backs(&maps, range) {
            Some(true) => {}
            Some(false) => return Ok(false),
            // A fallback for kernels without the query: producing the whole list takes long.
            None => return cover(ranges, |it| it.rights.contains(['r', 'w'])),
        }
    }
    Ok(true)
}

/// Like [`back`], for one range; `None` if the kernel lacks the query.
fn backs(maps: &File, range: &VaRange) -> Option<bool> {
    let mut at = range.start();
    while at < range.end() {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_addr: at,
            ..Query::default()
        };
        // SAFETY: the structure has the length that it and the request state, and requests no name.
        let code = unsafe { libc::ioctl(maps.as_raw_fd(), QUERY, &raw mut query) };
        if code != 0 {
            let error = std::io::Error::last_os_error();
            return (error.raw_os_error() == Some(libc::ENOENT)).then_some(false);
        }
        if query.vma_flags & (READABLE | WRITABLE) == 0 {
            return Some(false);
        }
        // A mapping that contains the address ends past it.
        at = query.vma_end.max(at + 1);
    }
    Some(true)
}

/// Whether every byte of these ranges is in a mapping that `wanted` accepts.
pub(super) fn cover<'a>(
    ranges: impl IntoIterator<Item = &'a VaRange>,
    wanted: impl Fn(&Mapping<'_>) -> bool,
) -> Result<bool> {
    let maps = std::fs::read("/proc/self/maps").map_err(|_| FiError::IO)?;
    // File names may be any bytes.
    let maps = String::from_utf8_lossy(&maps);
    let lines = maps.lines().filter_map(Mapping::read);
    let mappings: Vec<_> = lines.filter(wanted).map(|it| (it.start, it.end)).collect();
    Ok(ranges.into_iter().all(|range| covered(range, &mappings)))
}

/// Whether every byte of a range is in one of these sorted mappings.
fn covered(range: &VaRange, mappings: &[(u64, u64)]) -> bool {
    let mut at = range.start();
    for &(start, end) in mappings {
        if start <= at && at < end {
            at = end;
        }
    }
    at >= range.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_self_maps_are_parsed() {
        let it = Mapping::read("7f00-8000 rw-s 00001000 fe:00 77                 /a b (deleted)");
        let it = it.unwrap();
        assert_eq!((it.start, it.end), (0x7f00, 0x8000));
        assert_eq!((it.rights, it.inode), ("rw-s", "77"));
        assert_eq!(it.name, "/a b (deleted)");
        assert_eq!(
            Mapping::read("1000-3000 ---p 00000000 00:00 0 ").map(|it| it.name.is_empty()),
            Some(true)
        );
        assert!(Mapping::read("").is_none());
        assert!(Mapping::read("1000 rw-p").is_none());
    }

    #[test]
    fn the_mapping_query_and_proc_self_maps_agree() {
        const PAGE: usize = 4096;
        assert_eq!(size_of::<Query>(), 104);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new pages at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                5 * PAGE,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at as usize;
        // One page each: read and write, read only, write only, reserved only.
        let rights = [
            libc::PROT_READ | libc::PROT_WRITE,
            libc::PROT_READ,
            libc::PROT_WRITE,
        ];
        for (page, rights) in rights.into_iter().enumerate() {
            // SAFETY: a page of ours.
            let code = unsafe { libc::mprotect((at + page * PAGE) as *mut _, PAGE, rights) };
            assert_eq!(code, 0);
        }
        let maps = File::open("/proc/self/maps").unwrap();
        for (start, len, wanted) in [
            (0, 1, true),
            (PAGE - 1, 2, true),
            (0, 3 * PAGE, true),
            (100, 3 * PAGE - 100, true),
            (0, 3 * PAGE + 1, false),
            (3 * PAGE, 1, false),
            (2 * PAGE, 2 * PAGE, false),
        ] {
            let range = VaRange::new((at + start) as u64, len as u64).unwrap();
            let list = cover([&range], |it| it.rights.contains(['r', 'w'])).unwrap();
            assert_eq!(list, wanted, "{start} {len}");
            assert_eq!(back(&[range]).unwrap(), wanted, "{start} {len}");
            assert!(backs(&maps, &range).is_none_or(|one| one == wanted));
        }
        // Nothing is mapped at the lowest addresses.
        let nothing = VaRange::new(16, 16).unwrap();
        assert!(!back(&[nothing]).unwrap());
        assert!(!cover([&nothing], |_| true).unwrap());
        // SAFETY: the pages from above.
        assert_eq!(unsafe { libc::munmap(at as *mut _, 5 * PAGE) }, 0);
    }

    #[test]
    fn a_range_may_span_adjacent_mappings() {
        let range = VaRange::new(0x1800, 0x2000).unwrap();
        assert!(covered(&range, &[(0x1000, 0x3000), (0x3000, 0x4000)]));
        assert!(!covered(&range, &[(0x1000, 0x3000), (0x3001, 0x4000)]));
        assert!(!covered(&range, &[(0x2000, 0x4000)]));
        assert!(!covered(&range, &[]));
    }
}

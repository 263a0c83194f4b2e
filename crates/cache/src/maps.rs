//! Asks the kernel what is mapped at an address.

// UNSAFETY: the ioctl `PROCMAP_QUERY`, which rustix does not wrap.
#![allow(unsafe_code)]

use rkey_base::range::VaRange;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater, opcode};
use std::io;

/// `struct procmap_query` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const PROCMAP_QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);
const SHARED: u64 = 8;
/// If nothing is mapped at the address, return the next mapping.
const NEXT: u64 = 16;
/// Room for the name of a mapping; only its beginning matters.
const NAME: usize = 256;

/// The object that is mapped at an address, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The device of the file, major and minor.
    pub device: (u32, u32),
    /// The file's inode. 0: private anonymous memory.
    pub inode: u64,
    /// The offset of the range's first byte in the file.
    pub offset: u64,
    /// Whether writes reach the file.
    pub shared: bool,
}

/// One mapping of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: VaRange,
    pub(crate) backing: Backing,
    pub(crate) name: String,
}

/// Asks for mappings.
#[derive(Debug)]
pub(crate) struct Maps(OwnedFd);

impl Maps {
    /// # Errors
    /// There is no `/proc`.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(
            "/proc/self/maps",
            flags,
            Mode::empty(),
        )?))
    }

    /// Whether the kernel has `PROCMAP_QUERY` (Linux 6.11).
    pub(crate) fn answers(&self) -> bool {
        let here = std::ptr::from_ref(self).addr() as u64;
        self.mapping(here).is_ok()
    }

    /// Calls `each` with the range of every mapping. Mappings may change during the call.
    pub(crate) fn each(&self, mut each: impl FnMut(&VaRange)) {
        let mut address = 0;
        while let Ok(range) = self
            .query(address, NEXT, &mut [])
            .and_then(|query| range_of(&query))
        {
            each(&range);
            address = range.end();
        }
    }

    fn query(&self, address: u64, flags: u64, name: &mut [u8]) -> Result<Query, Errno> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags,
            address,
            name_size: name.len() as u32,
            name: if name.is_empty() {
                0
            } else {
                name.as_mut_ptr().expose_provenance() as u64
            },
            ..Query::default()
        };
        // SAFETY: the opcode is the one of `PROCMAP_QUERY`, whose argument is this structure. The kernel writes it, and at most
        // `name_size` bytes to `name`, which is a buffer of that size (or null and 0).
        unsafe {
            ioctl::ioctl(&self.0, Updater::<PROCMAP_QUERY, Query>::new(&mut query))?;
        }
        Ok(query)
    }

    /// The mapping that contains an address. One system call, 0.3 µs.
    ///
    /// # Errors
    /// `NOENT` if nothing is mapped there; other errors if the kernel does not answer.
    pub(crate) fn mapping(&self, address: u64) -> Result<Mapping, Errno> {
        let mut name = [0; NAME];
        let query = self.query(address, 0, &mut name)?;
        let len = (query.name_size as usize).saturating_sub(1).min(NAME);
        Ok(Mapping {
            range: range_of(&query)?,
            backing: backing_of(&query, query.start),
            name: String::from_utf8_lossy(&name[..len]).into_owned(),
        })
    }

    /// The end of the mapping that contains an address. One system call, 0.25 µs.
    ///
    /// # Errors
    /// As [`Maps::mapping`].
    pub(crate) fn end_of_mapping(&self, address: u64) -> Result<u64, Errno> {
        Ok(range_of(&self.query(address, 0, &mut [])?)?.end())
    }

    /// The object behind a range, if one mapping contains all of it. One system call, 0.25 µs.
    ///
    /// # Errors
    /// As [`Maps::mapping`]; `FAULT` if no single mapping contains the range.
    pub(crate) fn backing(&self, range: &VaRange) -> Result<Backing, Errno> {
        let query = self.query(range.start(), 0, &mut [])?;
        if range_of(&query)?.contains(range) {
            Ok(backing_of(&query, range.start()))
        } else {
            Err(Errno::FAULT)
        }
    }
}

fn range_of(query: &Query) -> Result<VaRange, Errno> {
    let len = query.end.checked_sub(query.start).ok_or(Errno::INVAL)?;
    VaRange::new(query.start, len).ok_or(Errno::INVAL)
}

fn backing_of(query: &Query, address: u64) -> Backing {
    Backing {
        device: (query.dev_major, query.dev_minor),
        inode: query.inode,
        offset: query.offset.wrapping_add(address - query.start),
        shared: query.vma_flags & SHARED != 0,
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn mappings_are_reported_with_their_files() {
        let maps = Maps::open().unwrap();
        if !maps.answers() {
            println!("skipped: the kernel has no PROCMAP_QUERY");
            return;
        }
        let file = rustix::fs::memfd_create("maps", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 0x3000).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is large enough.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                0x2000,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0x1000,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start.addr() as u64;
        let inode = rustix::fs::fstat(&file).unwrap().st_ino;
        let mapping = maps.mapping(start + 0x1800).unwrap();
        assert_eq!(mapping.range, VaRange::new(start, 0x2000).unwrap());
        assert_eq!(mapping.backing.inode, inode);
        assert!(mapping.name.contains("memfd:maps"), "{mapping:?}");
        let part = VaRange::new(start + 0x800, 0x1000).unwrap();
        let backing = maps.backing(&part).unwrap();
        assert_eq!((backing.offset, backing.shared), (0x1800, true));
        let beyond = VaRange::new(start + 0x800, 0x2000).unwrap();
        assert_eq!(maps.backing(&beyond), Err(Errno::FAULT));
        assert_eq!(maps.mapping(0x10), Err(Errno::NOENT));
    }
}

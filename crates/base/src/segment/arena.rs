//! Program memory that peers may map.

use super::mapping::{Children, Mapping, Rights, create, inspect, seal};
use parking_lot::Mutex;
use rustix::fs::SealFlags;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// How a peer with the descriptor of an arena can access its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Read the bytes. (A descriptor opened for reading would not be enough: a process can reopen it for writing through
    /// `/proc`. So such an arena is sealed against further writable mappings.)
    ReadOnly,
    /// Read and write the bytes.
    ReadWrite,
}

impl From<Sharing> for Rights {
    fn from(sharing: Sharing) -> Self {
        match sharing {
            Sharing::ReadOnly => Self::Read,
            Sharing::ReadWrite => Self::ReadWrite,
        }
    }
}

/// Memory for a program, in a memfd that can neither shrink nor grow.
///
/// A forked child inherits the mapping like all memory, and shares it with its parent.
#[derive(Debug)]
pub struct Arena {
    fd: OwnedFd,
    program: Mapping,
    /// The access that peers have to the arena, once it is fixed.
    sharing: OnceLock<Sharing>,
    /// The detached ranges: whole pages, no page twice.
    detached: Mutex<Vec<Range<usize>>>,
}

impl Arena {
    /// An arena of at least `len` bytes, rounded up to whole pages, all zero. `name` appears in `/proc/*/maps`.
    /// `sharing` is the most that peers can do; see [`Arena::fix_sharing`].
    ///
    /// # Errors
    ///
    /// When the process cannot get more descriptors or memory; before Linux 5.1 if `sharing` is read-only.
    pub fn create(name: &str, len: usize, sharing: Sharing) -> io::Result<Self> {
        let (fd, size) = create(name, len)?;
        let program = Mapping::new(&fd, 0, size, Rights::ReadWrite, Children::Inherit)?;
        seal(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let arena = Self {
            fd,
            program,
            sharing: OnceLock::new(),
            detached: Mutex::new(Vec::new()),
        };
        if sharing == Sharing::ReadOnly {
            arena.fix_sharing(sharing)?;
        }
        Ok(arena)
    }

    /// Fixes permanently what peers can do, unless that is already fixed; returns what is fixed. Call it before a peer
    /// gets the descriptor, because the peer can map the whole arena for writing unless it is fixed as read-only.
    ///
    /// # Errors
    ///
    /// Before Linux 5.1 if `sharing` is read-only.
    pub fn fix_sharing(&self, sharing: Sharing) -> io::Result<Sharing> {
        // Two threads must not seal at once: the second would fail, because the first also forbids further seals.
        let _detached = self.detached.lock();
        if let Some(fixed) = self.sharing.get() {
            return Ok(*fixed);
        }
        // The program's own mapping stays writable.
        seal(
            &self.fd,
            match sharing {
                Sharing::ReadOnly => SealFlags::FUTURE_WRITE | SealFlags::SEAL,
                Sharing::ReadWrite => SealFlags::SEAL,
            },
        )?;
        Ok(*self.sharing.get_or_init(|| sharing))
    }

    /// The descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Another descriptor for the same memory, for example for a peer.
    ///
    /// # Errors
    ///
    /// When the process cannot get more descriptors.
    pub fn duplicate_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// The size in bytes, a multiple of the page size.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.program.len()
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The access that peers have to the arena, once it is fixed.
    #[must_use]
    pub fn sharing(&self) -> Option<Sharing> {
        self.sharing.get().copied()
    }

    /// The program's mapping, at the start of a page.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.program.as_ptr()
    }

    /// Detaches pages from every other process that has them mapped: this process keeps the bytes, in private pages
    /// at the same addresses, and does not see what others write to the old pages from now on. Detaching cannot be undone.
    /// Pages that are already detached stay as they are.
    ///
    /// No store of this process is lost, not even a concurrent one. Concurrent stores of others may be lost. A forked
    /// child is one of the others. So is a device, or another process, that had the kernel pin a page for a transfer
    /// in progress (`O_DIRECT`, `process_vm_writev`).
    ///
    /// Detaching takes about 0.2 ms per MiB, and as much memory as the pages.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the bytes are not whole pages of the arena. Another error when the process cannot get more
    /// memory; then others may still see the pages.
    pub fn detach(&self, offset: usize, len: usize) -> io::Result<()> {
        let mut detached = self.detached.lock();
        // The sum cannot overflow if the range lies inside the arena, which is checked before any change.
        for rest in without(offset..offset.wrapping_add(len), &detached) {
            self.program
                .make_private(&self.fd, rest.start, rest.len())?;
            detached.push(rest);
        }
        self.program.populate(offset, len)
    }
}

/// The parts of `range` that are in none of `others`.
fn without(range: Range<usize>, others: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut rest = vec![range];
    for other in others {
        let parts = rest.iter().flat_map(|part| {
            let before = part.start..part.end.min(other.start);
            let behind = part.start.max(other.end)..part.end;
            [before, behind]
        });
        rest = parts.filter(|part| !part.is_empty()).collect();
    }
    rest
}

/// A part of a peer's arena, mapped into this process.
#[derive(Debug)]
pub struct PeerArena {
    mapping: Mapping,
    sharing: Sharing,
}

impl PeerArena {
    /// Maps `len` bytes, from `offset` on, of the arena behind a descriptor that came from a peer. `len` and `offset` must
    /// be multiples of the page size.
    ///
    /// # Errors
    ///
    /// `InvalidData` when `fd` is not a memfd of ordinary pages, is not sealed against shrinking, or does not have those
    /// bytes; `InvalidInput` when the bytes are not whole pages; `PermissionDenied` when the arena is read-only.
    pub fn map(fd: OwnedFd, offset: u64, len: u64, sharing: Sharing) -> io::Result<Self> {
        let page = crate::process::page_size() as u64;
        if len == 0 || !len.is_multiple_of(page) || !offset.is_multiple_of(page) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "only whole pages of an arena can be mapped",
            ));
        }
        let size = inspect(&fd)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        let (true, Ok(len)) = (inside, usize::try_from(len)) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the peer's arena has {size} bytes, too few for {len} at offset {offset}"),
            ));
        };
        let mapping = Mapping::new(&fd, offset, len, sharing.into(), Children::DoNot)?;
        Ok(Self { mapping, sharing })
    }

    /// The size of the mapped part in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The access that [`as_ptr`](Self::as_ptr) allows.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The address of the mapped part. A write crashes the process if it is mapped read-only.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }
}

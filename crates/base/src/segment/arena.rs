//! Memory for programs that peers may map.

use super::mapping::{Children, Mapping, Rights, create, inspect, seal};
use rustix::fs::SealFlags;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a peer that is given the descriptor of an arena can do with its bytes, whichever of them it was given it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Read them. (A descriptor opened for reading would not be enough: it can be opened again, for writing, through
    /// `/proc`. So such an arena is sealed against further writable mappings.)
    ReadOnly,
    /// Read and write them.
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
    /// What peers can do, once that is settled.
    sharing: OnceLock<Sharing>,
    /// What has been detached: whole pages, no page twice.
    detached: Mutex<Vec<Range<usize>>>,
}

impl Arena {
    /// An arena of at least `len` bytes, rounded up to whole pages, all zero. `name` appears in `/proc/*/maps`. What
    /// peers can do at most is `sharing`; see [`Arena::settle`].
    ///
    /// # Errors
    ///
    /// When the process may not have more descriptors or memory; before Linux 5.1 if `sharing` is read-only.
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
            arena.settle(sharing)?;
        }
        Ok(arena)
    }

    /// Settles what peers can do, for good, if it is not settled yet; the answer is what they can. Has to be called
    /// before a peer is given the descriptor: whoever has that can map all of an arena for writing, unless it is
    /// settled that it is for reading.
    ///
    /// # Errors
    ///
    /// Before Linux 5.1 if `sharing` is read-only.
    pub fn settle(&self, sharing: Sharing) -> io::Result<Sharing> {
        // Of two threads at once one finds that it may not seal any more what the other has sealed.
        let _one = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settled) = self.sharing.get() {
            return Ok(*settled);
        }
        // The mapping that the program has stays writable.
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

    /// A descriptor of its own for the same memory, for example to be passed to a peer.
    ///
    /// # Errors
    ///
    /// When the process may not have more descriptors.
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

    /// What peers can do, once it is settled.
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

    /// Parts some pages from everybody else who has them: this process keeps the bytes, in pages of its own at the same
    /// addresses, and whatever others do to the old pages from now on is not seen here. There is no way back. Pages that
    /// are detached already stay as they are.
    ///
    /// No store of this process is lost, not even one that is made meanwhile. What others store meanwhile may be. A
    /// forked child is one of the others. So is a device, or another process, that had the kernel pin a page for a
    /// transfer which is still under way (`O_DIRECT`, `process_vm_writev`).
    ///
    /// Costs about 0.2 ms for each MiB, and that much memory.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the bytes are not whole pages of the arena. When the process may not have more memory; then
    /// the pages may still be seen by others.
    pub fn detach(&self, offset: usize, len: usize) -> io::Result<()> {
        // Nothing panics in the middle of a change.
        let mut detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
        // Without an overflow only if it lies inside, which is checked before anything is done.
        for rest in without(offset..offset.wrapping_add(len), &detached) {
            self.program
                .make_private(&self.fd, rest.start, rest.len())?;
            detached.push(rest);
        }
        self.program.populate(offset, len)
    }
}

/// What is left of a range without some others.
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

/// A window onto an arena of a peer.
#[derive(Debug)]
pub struct PeerArena {
    mapping: Mapping,
    sharing: Sharing,
}

impl PeerArena {
    /// Maps `len` bytes, from `offset` on, of the arena behind a descriptor that came from a peer. Both must be
    /// multiples of the page size.
    ///
    /// # Errors
    ///
    /// `InvalidData` when it is not a memfd of ordinary pages, is not sealed against shrinking, or does not have those
    /// bytes; `InvalidInput` when they are not whole pages; `PermissionDenied` when the arena may not be written.
    pub fn map(fd: OwnedFd, offset: u64, len: u64, sharing: Sharing) -> io::Result<Self> {
        let page = crate::process::page_size() as u64;
        if len == 0 || !len.is_multiple_of(page) || !offset.is_multiple_of(page) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "only whole pages can be mapped",
            ));
        }
        let size = inspect(&fd)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        let (true, Ok(len)) = (inside, usize::try_from(len)) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the peer's arena has {size} bytes, so not {len} from {offset} on"),
            ));
        };
        let mapping = Mapping::new(&fd, offset, len, sharing.into(), Children::DoNot)?;
        Ok(Self { mapping, sharing })
    }

    /// The size of the window in bytes.
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

    /// What may be done through [`as_ptr`](Self::as_ptr).
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Where the window is mapped. A write crashes the process if it is mapped for reading only.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }
}

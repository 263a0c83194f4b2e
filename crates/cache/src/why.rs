//! Why a lookup was a hit or a miss, and why entries ended.

use crate::request::Rights;
use rkey_base::range::VaRange;
use rustix::io::Errno;
use std::fmt;

/// Why entries ended before the cache evicted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The memory was unmapped, or other memory was mapped over it.
    Unmapped,
    /// The memory moved to another address, or other memory moved there.
    Moved,
    /// The pages were returned to the system (`madvise`), but the addresses stayed mapped.
    Discarded,
    /// The memory was freed to the allocator, which may return it to the system at any time.
    Freed,
    /// A check at a hit, or before a registration, found other memory at the address.
    Replaced,
    /// The program, or an imported monitor, announced a change.
    Told,
    /// The monitor did not understand an event, or stopped: all entries ended.
    Unknown,
}

impl Cause {
    pub(crate) const ALL: [Self; 7] = [
        Self::Unmapped,
        Self::Moved,
        Self::Discarded,
        Self::Freed,
        Self::Replaced,
        Self::Told,
        Self::Unknown,
    ];
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "the memory was unmapped or mapped over",
            Self::Moved => "the memory moved",
            Self::Discarded => "the pages were returned to the system (madvise)",
            Self::Freed => "the memory was freed",
            Self::Replaced => "other memory was found at the address",
            Self::Told => "the program or an imported monitor announced a change",
            Self::Unknown => "the monitor stopped or did not understand an event",
        })
    }
}

/// Why memory cannot be watched or checked, so that it is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Part of the range is not mapped.
    NotMapped,
    /// A file, or shared memory with a name: another process can punch holes in it or truncate it, and no monitor sees that.
    File,
    /// Shared memory without a name: a forked child can remove its pages, and no monitor sees that.
    Shared,
    /// System V shared memory, which can be detached and mapped over without an event.
    SystemV,
    /// Another user of userfaultfd, such as another library's cache, watches the memory.
    Foreign,
    /// The limit of mappings (`vm.max_map_count`) does not allow another split.
    TooManyMappings,
    /// The monitor has stopped.
    Stopped,
    /// The source of the imported monitor refused the memory.
    Source,
    /// The registrar follows objects, and the memory is private, or in several mappings.
    NoObject,
    /// A system call to watch or check the memory failed.
    System(Errno),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMapped => f.write_str("part of the range is not mapped"),
            Self::File => f.write_str(
                "the memory is a file or named shared memory, which another process can truncate unnoticed",
            ),
            Self::SystemV => {
                f.write_str("this is System V shared memory: userfaultfd does not report shmdt")
            }
            Self::Shared => {
                f.write_str("the memory is shared: a forked child can remove its pages unnoticed")
            }
            Self::Foreign => f.write_str("another library watches the memory with userfaultfd"),
            Self::TooManyMappings => {
                f.write_str("the process has too many mappings: raise vm.max_map_count")
            }
            Self::Stopped => f.write_str("the monitor has stopped"),
            Self::Source => f.write_str("the imported monitor refused to watch the memory"),
            Self::NoObject => f.write_str("the memory is private, or consists of several mappings"),
            Self::System(errno) => write!(f, "watching or checking the memory failed: {errno}"),
        }
    }
}

/// Why a cache returns no entries at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Off {
    /// The limit of entries is 0 (`FI_MR_CACHE_MAX_COUNT=0`).
    NoEntries,
    /// The monitor is `disabled` (`FI_MR_CACHE_MONITOR=disabled`).
    Disabled,
    /// The registrar pins, the monitor does not see every change, and the options do not accept that.
    Partial,
    /// This process is a forked child: entries and monitor belong to the parent.
    Forked,
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoEntries => "the limit of entries is 0",
            Self::Disabled => "the monitor is disabled",
            Self::Partial => "the registrar pins memory and the monitor does not see every change",
            Self::Forked => "this process was forked from the one that created the cache",
        })
    }
}

/// Why a lookup was a hit or a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// An entry covers the range.
    Hit,
    /// No entry overlaps the range, and the registration became an entry. Or the rounded range could not be registered:
    /// then the range itself was registered, but did not become an entry.
    Absent,
    /// An entry overlaps only this part of the range. The registration became an entry.
    Partly(VaRange),
    /// An entry covers the range, but has other rights. The registration became an entry.
    OtherRights(Rights),
    /// An entry covered the range until it ended for this reason. The registration became an entry.
    Ended(Cause),
    /// The memory was changing during every attempt. The registration is not an entry.
    Busy,
    /// A change overtook each attempt to register. The registration is not an entry.
    Overtaken,
    /// Another thread registered the range at the same time. The registration is not an entry.
    Raced,
    /// The memory cannot be watched or checked. The registration is not an entry.
    Unwatched(Refusal),
    /// Every entry is in use. The registration is not an entry.
    Full,
    /// The range is empty. The registration is not an entry.
    Empty,
    /// The cache does not hold this kind of memory. The registration is not an entry.
    OtherKind,
    /// The caller wanted a registration of its own ([`Cache::register_once`](crate::Cache::register_once)). The
    /// registration is not an entry.
    Once,
    /// The cache is off. The registration is not an entry.
    Off(Off),
}

impl Why {
    /// Whether the lookup was a hit.
    #[must_use]
    pub const fn is_hit(&self) -> bool {
        matches!(self, Self::Hit)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hit => f.write_str("hit"),
            Self::Absent => f.write_str("miss: no entry overlaps the range"),
            Self::Partly(part) => write!(f, "miss: an entry covers only {part}"),
            Self::OtherRights(rights) => {
                write!(f, "miss: the range's entry has other rights: {rights}")
            }
            Self::Ended(cause) => write!(f, "miss: the entry ended because {cause}"),
            Self::Busy => f.write_str("not cached: memory is changing"),
            Self::Overtaken => f.write_str("not cached: memory changed during the registration"),
            Self::Raced => f.write_str("not cached: another thread registered it first"),
            Self::Unwatched(refusal) => write!(f, "not cached: {refusal}"),
            Self::Full => f.write_str("not cached: every entry is in use"),
            Self::Empty => f.write_str("not cached: the range is empty"),
            Self::OtherKind => {
                f.write_str("not cached: accelerator memory needs a cache of its own")
            }
            Self::Once => f.write_str("not cached: the caller requested a registration of its own"),
            Self::Off(off) => write!(f, "not cached: {off}"),
        }
    }
}

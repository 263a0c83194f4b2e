//! The system calls of userfaultfd.

// UNSAFETY: makes system calls that have no safe wrapper. None of them changes the contents of this program's memory.
#![allow(unsafe_code)]

use linux_raw_sys::general as raw;
use rkey_base::range::VaRange;
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, Updater, opcode};
use rustix::mm::UserfaultfdFlags;
use std::ffi::c_void;

const TYPE: u8 = raw::UFFDIO as u8;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(TYPE, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(TYPE, raw::_UFFDIO_REGISTER as u8);
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(TYPE, raw::_UFFDIO_UNREGISTER as u8);
const WRITEPROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(TYPE, raw::_UFFDIO_WRITEPROTECT as u8);
const CONTINUE: Opcode =
    opcode::read_write::<raw::uffdio_continue>(TYPE, raw::_UFFDIO_CONTINUE as u8);
const NEW: Opcode = opcode::none(TYPE, 0);

/// The events that we need, and write protection of memory of any kind. A kernel with `WP_ASYNC` (Linux 6.7) also
/// counts the changes in progress, while older ones have a flag that the first change to finish clears.
const FEATURES: u32 = raw::UFFD_FEATURE_EVENT_UNMAP
    | raw::UFFD_FEATURE_EVENT_REMAP
    | raw::UFFD_FEATURE_EVENT_REMOVE
    | raw::UFFD_FEATURE_WP_ASYNC
    | raw::UFFD_FEATURE_WP_UNPOPULATED;

/// The size of an event in bytes (`struct uffd_msg`).
pub(super) const EVENT: usize = size_of::<raw::uffd_msg>();

/// A method to get a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMethod {
    /// `userfaultfd(UFFD_USER_MODE_ONLY)`: open to all users unless a seccomp filter refuses it.
    UserModeOnly,
    /// `userfaultfd(0)`: needs `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd=1`.
    SystemCall,
    /// `/dev/userfaultfd`: available to users that its permissions allow.
    Device,
}

impl OpenMethod {
    /// All methods, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::UserModeOnly, Self::SystemCall, Self::Device];
}

impl std::fmt::Display for OpenMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UserModeOnly => "userfaultfd(UFFD_USER_MODE_ONLY)",
            Self::SystemCall => "userfaultfd(0)",
            Self::Device => "/dev/userfaultfd",
        })
    }
}

/// `USERFAULTFD_IOC_NEW`.
struct New(u32);

// SAFETY: the opcode takes flags in place of a pointer, reads and writes no memory, and returns a new descriptor.
unsafe impl Ioctl for New {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the call succeeded, so it returned a new descriptor, which has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

/// A nonblocking descriptor with the features that the monitor needs.
pub(super) fn open(method: OpenMethod) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let user_mode_only = UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY);
    let fd = match method {
        // SAFETY: the descriptor has no effect on memory by itself; see `register` for what it is used for.
        OpenMethod::UserModeOnly => unsafe { rustix::mm::userfaultfd(flags | user_mode_only)? },
        // SAFETY: as above.
        OpenMethod::SystemCall => unsafe { rustix::mm::userfaultfd(flags)? },
        OpenMethod::Device => {
            let device = rustix::fs::open(
                "/dev/userfaultfd",
                OFlags::RDWR | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let new = New(flags.bits() | raw::UFFD_USER_MODE_ONLY);
            // SAFETY: see the implementation of `Ioctl`.
            unsafe { ioctl::ioctl(&device, new)? }
        }
    };
    let mut api = raw::uffdio_api {
        api: raw::UFFD_API.into(),
        features: FEATURES.into(),
        ioctls: 0,
    };
    // SAFETY: the opcode belongs to this structure, which the kernel reads and writes.
    unsafe { ioctl::ioctl(&fd, Updater::<API, _>::new(&mut api))? };
    Ok(fd)
}

fn raw_range(range: &VaRange) -> raw::uffdio_range {
    raw::uffdio_range {
        start: range.start(),
        len: range.len(),
    }
}

/// Watches what is mapped in the range. The range is registered for write protection only, and this module never protects
/// a page, so no access to the memory faults because of the registration.
pub(super) fn register(fd: impl AsFd, range: &VaRange) -> Result<(), Errno> {
    let mut argument = raw::uffdio_register {
        range: raw_range(range),
        mode: raw::UFFDIO_REGISTER_MODE_WP.into(),
        ioctls: 0,
    };
    // SAFETY: the opcode belongs to this structure. The mapping gets an attribute; its contents and its accesses stay as they
    // are (see above).
    unsafe { ioctl::ioctl(fd, Updater::<REGISTER, _>::new(&mut argument)) }
}

/// Stops watching the range.
pub(super) fn unregister(fd: impl AsFd, range: &VaRange) -> Result<(), Errno> {
    let mut argument = raw_range(range);
    // SAFETY: the opcode belongs to this structure, which the kernel only reads.
    unsafe { ioctl::ioctl(fd, Updater::<UNREGISTER, _>::new(&mut argument)) }
}

/// Asks whether the whole range is watched, by removing a protection that no page has. `AGAIN`: a change of watched
/// memory is in progress somewhere. `NOENT`: a part of the range is not watched.
pub(super) fn is_watched(fd: impl AsFd, range: &VaRange) -> Result<(), Errno> {
    let mut argument = raw::uffdio_writeprotect {
        range: raw_range(range),
        mode: 0,
    };
    // SAFETY: the opcode belongs to this structure. No page is protected, so no access changes.
    unsafe { ioctl::ioctl(fd, Updater::<WRITEPROTECT, _>::new(&mut argument)) }
}

/// The answer to the quick question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// One mapping contains the whole range and is watched, and no change is in progress.
    Watched,
    /// A change of watched memory is in progress somewhere.
    Changing,
    /// Perhaps all of the range is watched, perhaps not.
    Unknown,
}

/// Asks whether one mapping contains the whole range and is watched. Takes half as long as [`is_watched`] for one page, as long for many
/// pages as for one, and does not take the lock of all mappings. The range consists of whole pages, and each of them is
/// mapped or was once.
///
/// The question is a request to resolve a fault of shared memory, which the kernel refuses for private memory: `EINVAL`. It
/// checks the mapping and the count of changes before (Linux 6.9 to 6.18); see [`probe`](super::probe). The answer does not say which
/// descriptor watches.
pub(super) fn ask(fd: impl AsFd, range: &VaRange) -> Answer {
    let mut argument = raw::uffdio_continue {
        range: raw_range(range),
        mode: 0,
        mapped: 0,
    };
    // SAFETY: the opcode belongs to this structure. The kernel refuses the request for anonymous private memory. If the program has mapped a
    // memory object there, which some other descriptor watches, the kernel may put pages that the object already has into the page table. No
    // byte changes. An access would do the same, unless that descriptor reports such accesses: then they no longer wait for its owner.
    match unsafe { ioctl::ioctl(fd, Updater::<CONTINUE, _>::new(&mut argument)) } {
        Err(Errno::INVAL) => Answer::Watched,
        Err(Errno::AGAIN) => Answer::Changing,
        _ => Answer::Unknown,
    }
}

/// Blocks all signals of this thread, until the value is dropped, except those that the thread's own faults raise. If
/// signals were not blocked, a signal handler of the program could run in this thread, release watched memory, and wait
/// forever for the thread that it interrupted.
pub(super) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub(super) fn new() -> Self {
        // SAFETY: the sets live on this stack; `sigfillset` and `pthread_sigmask` initialise them.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            let mut before = std::mem::zeroed::<libc::sigset_t>();
            libc::sigfillset(&raw mut set);
            for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
                libc::sigdelset(&raw mut set, fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that `new` saved.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

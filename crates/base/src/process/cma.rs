//! Copies between our memory and that of another process, by the kernel.
//!
//! Whether the kernel allows it depends on both processes, may differ by direction, and may change at any time (see
//! `ptrace(2)`, "Ptrace access mode checking"). The only way to determine that is to try.

// UNSAFETY: the system calls write to addresses that the caller vouches for.
#![allow(unsafe_code)]

use crate::segment::PeerPermit;
use std::io;
use thiserror::Error;

/// Why a copy from or to another process failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum CmaError {
    /// The kernel does not allow the copy (`EPERM`), does not offer it (`ENOSYS`), or cannot do it now (`ENOMEM`).
    #[error("the kernel refuses access to the other process's memory: {}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// The error number.
        errno: i32,
    },
    /// The permit was revoked.
    #[error("the other process has revoked its permit")]
    Revoked,
    /// The process no longer exists (`ESRCH`).
    #[error("the other process no longer exists")]
    Gone,
    /// A byte on our side cannot be accessed.
    #[error("our memory at {address:#x} cannot be accessed")]
    LocalFault {
        /// The first byte that was not transferred.
        address: u64,
    },
    /// A byte on the other side cannot be accessed.
    #[error("the other process's memory at {address:#x} cannot be accessed")]
    RemoteFault {
        /// The first byte that was not transferred.
        address: u64,
    },
}

/// Copies `len` bytes at address `remote` of process `pid` to `local`. On an error some bytes before the faulting one
/// may have been copied. `local` need not be valid: that is an error, not a crash.
///
/// # Errors
///
/// See [`CmaError`].
///
/// # Safety
///
/// The bytes at `local` that can be written must be bytes that the caller may overwrite.
pub unsafe fn cma_read(pid: u32, local: *mut u8, remote: u64, len: usize) -> Result<(), CmaError> {
    // SAFETY: the caller vouches for it.
    unsafe { copy_all(Direction::Read, None, pid, local as u64, remote, len) }
}

/// Like [`cma_read`], until the process that issued `permit` revokes it.
///
/// # Errors
///
/// See [`CmaError`].
///
/// # Safety
///
/// Same as for [`cma_read`].
pub unsafe fn cma_read_with(
    permit: &PeerPermit,
    pid: u32,
    local: *mut u8,
    remote: u64,
    len: usize,
) -> Result<(), CmaError> {
    // SAFETY: the caller vouches for it.
    unsafe {
        copy_all(
            Direction::Read,
            Some(permit),
            pid,
            local as u64,
            remote,
            len,
        )
    }
}

/// Copies `len` bytes at `local` to address `remote` of process `pid`. On an error some bytes before the faulting one
/// may have been copied. `local` need not be valid: that is an error, not a crash.
///
/// # Errors
///
/// See [`CmaError`].
///
/// # Safety
///
/// The caller must be entitled to overwrite those bytes of the other process, and must know that `pid` still names it.
pub unsafe fn cma_write(
    pid: u32,
    local: *const u8,
    remote: u64,
    len: usize,
) -> Result<(), CmaError> {
    // SAFETY: the caller vouches for it.
    unsafe { copy_all(Direction::Write, None, pid, local as u64, remote, len) }
}

/// Like [`cma_write`], until the process that issued `permit` revokes it.
///
/// # Errors
///
/// See [`CmaError`].
///
/// # Safety
///
/// Same as for [`cma_write`].
pub unsafe fn cma_write_with(
    permit: &PeerPermit,
    pid: u32,
    local: *const u8,
    remote: u64,
    len: usize,
) -> Result<(), CmaError> {
    // SAFETY: the caller vouches for it.
    unsafe {
        copy_all(
            Direction::Write,
            Some(permit),
            pid,
            local as u64,
            remote,
            len,
        )
    }
}

type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// A direction of copying.
#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// One end of a copy: a process, an address in it, and the permit for it.
#[derive(Clone, Copy)]
struct CopyEnd<'a> {
    pid: u32,
    permit: Option<&'a PeerPermit>,
    address: u64,
}

/// # Safety
///
/// The caller must be allowed to overwrite what this direction writes.
unsafe fn copy_all(
    way: Direction,
    permit: Option<&PeerPermit>,
    pid: u32,
    local: u64,
    remote: u64,
    len: usize,
) -> Result<(), CmaError> {
    let call: Call = match way {
        Direction::Read => libc::process_vm_readv,
        Direction::Write => libc::process_vm_writev,
    };
    let mut done = 0;
    while done < len {
        let ours = CopyEnd {
            pid: std::process::id(),
            permit: None,
            address: local.wrapping_add(done as u64),
        };
        let theirs = CopyEnd {
            pid,
            permit,
            address: remote.wrapping_add(done as u64),
        };
        // SAFETY: a part of what the caller vouches for; validity of both sides is checked by the kernel.
        match unsafe { transfer(call, ours.address, theirs, len - done) } {
            Ok(n) => done += n,
            Err(libc::EFAULT) => {
                // SAFETY: the next byte of what the caller vouches for.
                done += unsafe { one_byte(way, ours, theirs) }.map_err(|error| {
                    let revoked = permit.is_some_and(|permit| permit.put([NOWHERE]).is_err());
                    if revoked { CmaError::Revoked } else { error }
                })?;
            }
            Err(errno) => return Err(other(errno)),
        }
    }
    Ok(())
}

pub(super) const NOWHERE: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// Makes one system call for `len` bytes at our address and at another end; returns how many were copied (not 0), or
/// the error number. `EFAULT` can also mean that the permit is revoked.
///
/// # Safety
///
/// The caller must be entitled to overwrite the bytes that the call writes.
unsafe fn transfer(call: Call, local: u64, remote: CopyEnd<'_>, len: usize) -> Result<usize, i32> {
    let part = |start: u64| libc::iovec {
        iov_base: start as *mut libc::c_void,
        iov_len: len,
    };
    let (local, list) = (part(local), part(remote.address));
    let pid = libc::pid_t::try_from(remote.pid).map_err(|_| libc::ESRCH)?;
    let list = match remote.permit {
        None => &raw const list,
        Some(permit) => permit.put([list]).map_err(|_| libc::EFAULT)?,
    };
    // SAFETY: the local list is valid for the call; the remote one is valid or lies in a page that may have vanished,
    // in which case the call fails. The kernel checks the addresses in both. The owner of the permit may change the
    // list during the call, but it names only the owner's memory, and the local list limits how much is copied.
    let n = unsafe { call(pid, &raw const local, 1, list, 1, 0) };
    match usize::try_from(n) {
        Ok(0) => Err(libc::EFAULT), // `len` is not 0, so nothing was accessible
        Ok(n) => Ok(n),
        Err(_) => Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)),
    }
}

pub(super) fn other(errno: i32) -> CmaError {
    match errno {
        libc::ESRCH => CmaError::Gone,
        errno => CmaError::Refused { errno },
    }
}

/// Copies one byte through a local variable; returns the number of bytes copied.
///
/// `EFAULT` does not say which end of a copy failed, and checking the ends afterwards does not help: the page may be
/// accessible again by then, and the wrong end would be blamed. Here each call has only one end that can fail. If neither fails
/// now, the copy has made progress by one byte and can continue from there.
///
/// # Safety
///
/// The caller must be entitled to overwrite the byte at the target.
unsafe fn one_byte(
    way: Direction,
    ours: CopyEnd<'_>,
    theirs: CopyEnd<'_>,
) -> Result<usize, CmaError> {
    let of_ours = CmaError::LocalFault {
        address: ours.address,
    };
    let of_theirs = CmaError::RemoteFault {
        address: theirs.address,
    };
    let ((from, from_fault), (to, to_fault)) = match way {
        Direction::Read => ((theirs, of_theirs), (ours, of_ours)),
        Direction::Write => ((ours, of_ours), (theirs, of_theirs)),
    };
    let explain = |errno, fault| match errno {
        libc::EFAULT => fault,
        errno => other(errno),
    };
    let mut byte = 0u8;
    let own = (&raw mut byte) as u64;
    // SAFETY: reads one byte into our own variable.
    unsafe { transfer(libc::process_vm_readv, own, from, 1) }
        .map_err(|errno| explain(errno, from_fault))?;
    // SAFETY: writes one byte where the caller may write.
    unsafe { transfer(libc::process_vm_writev, own, to, 1) }
        .map_err(|errno| explain(errno, to_fault))
}

#[cfg(all(test, not(miri)))]
pub(super) mod tests {
    use super::*;
    use crate::process::page_size;

    /// The kernel treats our own process like any other one.
    fn me() -> u32 {
        std::process::id()
    }

    pub(crate) fn two_pages_of_which_one_is_there() -> *mut u8 {
        let page = page_size();
        // SAFETY: new pages at an address of the kernel's choice; the second one is removed again at once.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                2 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(
                libc::mprotect(start.byte_add(page), page, libc::PROT_NONE),
                0
            );
            start.cast()
        }
    }

    #[test]
    fn bytes_are_copied_in_both_directions() {
        let source = vec![7u8; 100_000];
        let mut target = vec![0u8; 100_000];
        // SAFETY: `target` is ours, and as long as `source`.
        unsafe {
            cma_read(me(), target.as_mut_ptr(), source.as_ptr() as u64, 100_000).unwrap();
            assert_eq!(source, target);
            cma_write(me(), [9u8; 4].as_ptr(), target.as_mut_ptr() as u64, 4).unwrap();
        }
        assert_eq!(target[..5], [9, 9, 9, 9, 7]);
    }

    #[test]
    fn a_fault_names_the_side_that_caused_it() {
        let page = page_size();
        let bad = two_pages_of_which_one_is_there();
        let edge = bad as u64 + page as u64;
        let mut good = vec![0u8; 2 * page];
        let g = good.as_mut_ptr();
        // SAFETY: the writable bytes of these ranges are ours.
        unsafe {
            let from_bad = cma_read(me(), g, bad as u64, 2 * page);
            assert_eq!(from_bad, Err(CmaError::RemoteFault { address: edge }));
            let to_bad = cma_read(me(), bad, g as u64, 2 * page);
            assert!(
                matches!(to_bad, Err(CmaError::LocalFault { address }) if address <= edge),
                "{to_bad:?}"
            );
            let from_bad = cma_write(me(), bad, g as u64, 2 * page);
            assert!(
                matches!(from_bad, Err(CmaError::LocalFault { address }) if address <= edge),
                "{from_bad:?}"
            );
            let to_bad = cma_write(me(), g, bad as u64, 2 * page);
            assert_eq!(to_bad, Err(CmaError::RemoteFault { address: edge }));
            assert_eq!(
                cma_read(me(), g, 0, 1),
                Err(CmaError::RemoteFault { address: 0 })
            );
            assert_eq!(
                cma_read(me(), g, 1 << 63, 8),
                Err(CmaError::RemoteFault { address: 1 << 63 })
            );
            assert_eq!(cma_read(me(), g, 0, 0), Ok(()));
            libc::munmap(bad.cast(), 2 * page);
        }
    }

    /// Pages repeatedly disappear and return: a failed copy must blame the side that has them.
    #[test]
    fn faults_name_the_side_whose_pages_vanish_and_return() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let page = page_size();
        let shaky = two_pages_of_which_one_is_there();
        let edge = shaky as u64 + page as u64;
        let (address, over) = (shaky as usize, AtomicBool::new(false));
        let mut good = vec![0u8; 2 * page];
        let g = good.as_mut_ptr();
        let (mut failed, mut wrong) = ([0; 4], None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let second = std::ptr::without_provenance_mut(address + page);
                while !over.load(Ordering::Relaxed) {
                    for rights in [libc::PROT_READ | libc::PROT_WRITE, libc::PROT_NONE] {
                        // SAFETY: the second page of the mapping, which lives until this thread has ended and to
                        // which there are no references.
                        assert_eq!(unsafe { libc::mprotect(second, page, rights) }, 0);
                    }
                }
            });
            let mut round = 0;
            // The test runs until every kind has failed at least once, however the threads are scheduled.
            while wrong.is_none() && (round < 20_000 || failed.contains(&0)) {
                // SAFETY: the writable bytes of these ranges are ours.
                let (outcome, blamed) = unsafe {
                    let len = 2 * page;
                    match round % 4 {
                        0 => (
                            cma_read(me(), g, shaky as u64, len),
                            CmaError::RemoteFault { address: edge },
                        ),
                        1 => (
                            cma_read(me(), shaky, g as u64, len),
                            CmaError::LocalFault { address: edge },
                        ),
                        2 => (
                            cma_write(me(), shaky, g as u64, len),
                            CmaError::LocalFault { address: edge },
                        ),
                        _ => (
                            cma_write(me(), g, shaky as u64, len),
                            CmaError::RemoteFault { address: edge },
                        ),
                    }
                };
                if let Err(error) = outcome {
                    failed[round % 4] += 1;
                    let side = |error| matches!(error, CmaError::LocalFault { .. });
                    if side(error) != side(blamed) {
                        wrong = Some((error, blamed));
                    }
                }
                round += 1;
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(
            wrong, None,
            "the error that was returned, and the right one"
        );
        // SAFETY: the pages are no longer used.
        unsafe { libc::munmap(shaky.cast(), 2 * page) };
    }

    #[test]
    fn copying_from_a_dead_process_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let mut byte = 0u8;
        // SAFETY: `byte` is ours.
        unsafe {
            assert_eq!(cma_read(pid, &raw mut byte, 0x1000, 1), Err(CmaError::Gone));
            assert_eq!(
                cma_read(u32::MAX, &raw mut byte, 0x1000, 1),
                Err(CmaError::Gone)
            );
        }
    }
}

//! Writes to another process whose last word is stored after the rest, for programs that poll it.

// UNSAFETY: the system call writes to addresses that the caller vouches for.
#![allow(unsafe_code)]

use super::cma::{CmaError, NOWHERE, other};
use crate::segment::PeerPermit;
use std::io;

/// Like [`super::cma_write_with`], with one system call, for a reader that polls the last word: the last 8 bytes are stored after all
/// others. For lengths that [`cma_writes_words`] allows, an observer never sees half of an aligned word that is all of the bytes,
/// or the last 8 of them; see [`crate::copy`].
///
/// Before anything else, the call writes one byte to `canary`, a [`super::Canary`] of the other process. If that process now executes
/// another program, or `pid` has become another process's, this fails and nothing is written.
///
/// The processor may reorder the stores of one string operation, which is how the kernel copies, but not those of two. So
/// the last 8 bytes are an element of their own in the list for the kernel.
///
/// # Errors
///
/// See [`CmaError`]; `RemoteFault` does not say which side faulted, or whether the canary is missing, and its address is that of the
/// first byte. `len` may be more than the kernel copies in one call (2 GiB): then this is an error, too.
///
/// # Safety
///
/// Same as for [`super::cma_write`], and the other process must have given the address of its canary.
pub unsafe fn cma_write_in_order(
    permit: &PeerPermit,
    pid: u32,
    canary: u64,
    local: *const u8,
    remote: u64,
    len: usize,
) -> Result<(), CmaError> {
    let part = |start: u64, len: usize| libc::iovec {
        iov_base: start as *mut libc::c_void,
        iov_len: len,
    };
    if len == 0 {
        return Ok(());
    }
    let pid = libc::pid_t::try_from(pid).map_err(|_| CmaError::Gone)?;
    let canary = part(canary, 1);
    let (list, count) = match len.checked_sub(WORD) {
        None | Some(0) => ([canary, part(remote, len), NOWHERE], 2),
        Some(rest) => {
            let last = part(remote.wrapping_add(rest as u64), WORD);
            ([canary, part(remote, rest), last], 3)
        }
    };
    let list = permit.put(list).map_err(|_| CmaError::Revoked)?;
    let to_canary = 0u8;
    let local = [
        part(&raw const to_canary as u64, 1),
        part(local as u64, len),
    ];
    // SAFETY: the caller vouches for the bytes that are written. The local list is valid for the call; the remote one lies
    // in a page that may have vanished, in which case the call fails. The kernel checks the addresses in both. The owner of
    // the permit may change the list during the call, but it names only the owner's memory, and the local list limits how
    // much is copied.
    let n = unsafe { libc::process_vm_writev(pid, local.as_ptr(), 2, list, count, 0) };
    if usize::try_from(n) == Ok(len.wrapping_add(1)) {
        return Ok(());
    }
    let errno = match n {
        // A part of the bytes was accessible.
        0.. => libc::EFAULT,
        _ => io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    };
    Err(match errno {
        libc::EFAULT if permit.put([NOWHERE]).is_err() => CmaError::Revoked,
        libc::EFAULT => CmaError::RemoteFault { address: remote },
        errno => other(errno),
    })
}

/// The length of the longest word, in bytes.
const WORD: usize = 8;

/// Whether [`cma_write_in_order`] stores words whole, and in order, if it copies this many bytes.
///
/// Linux copies whole words of 8 bytes as such on every processor. What is left, such as a word of 2 or 4 bytes, it copies byte by byte,
/// unless it uses a string instruction for short copies, too: since Linux 5.18, if the processor has fast short ones (FSRM). Manuals
/// do not promise that such an instruction stores a short word at once; the processors do, and a test of this module checks it.
#[must_use]
pub fn cma_writes_words(len: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        len <= 1 || len.is_multiple_of(WORD) || copies_short_strings()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // Elsewhere, other processors may see the stores in any order.
        let _ = len;
        false
    }
}

/// Whether the kernel uses string instructions for short copies. The kernel's list of flags decides, because it can ignore what the
/// processor has (`clearcpuid=`).
#[cfg(target_arch = "x86_64")]
fn copies_short_strings() -> bool {
    static DOES: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        release.is_ok_and(|release| is_since_5_18(&release)) && first_flags().is_ok_and(has_fsrm)
    });
    *DOES
}

/// The line with the flags of the first processor.
#[cfg(target_arch = "x86_64")]
fn first_flags() -> io::Result<String> {
    use std::io::{BufRead, BufReader};
    let lines = BufReader::new(std::fs::File::open("/proc/cpuinfo")?).lines();
    let mut flags = lines.filter(|line| line.as_ref().is_ok_and(|line| line.starts_with("flags")));
    flags
        .next()
        .unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
}

#[cfg(target_arch = "x86_64")]
fn has_fsrm(flags: String) -> bool {
    flags.split_ascii_whitespace().any(|flag| flag == "fsrm")
}

/// Whether a kernel with this release, such as `6.1.0-18-amd64`, is Linux 5.18 or newer.
#[cfg(target_arch = "x86_64")]
fn is_since_5_18(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    version.is_some_and(|version| version >= (5, 18))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::cma::tests::two_pages_of_which_one_is_there;
    use super::*;
    use crate::process::{Canary, page_size};

    /// The kernel treats our own process like any other one.
    fn me() -> u32 {
        std::process::id()
    }

    #[test]
    fn writes_in_order_need_the_permit_and_all_of_the_memory() {
        let canary = Canary::new().unwrap();
        let own = crate::segment::OwnPermit::create().unwrap();
        let permit = PeerPermit::map(own.fd().try_clone_to_owned().unwrap()).unwrap();
        let source: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let mut target = vec![0u8; 100_000];
        let to = target.as_mut_ptr() as u64;
        for (at, len) in [(0, 1), (63, 1), (63, 2), (7, 64), (1, 4097), (0, 100_000)] {
            // SAFETY: `target` is ours, and as long as `source`.
            let copied = unsafe {
                let canary = canary.address();
                cma_write_in_order(&permit, me(), canary, source.as_ptr(), to + at, len)
            };
            copied.unwrap();
            assert_eq!(target[at as usize..][..len], source[..len]);
        }
        let bad = two_pages_of_which_one_is_there() as u64;
        let page = page_size();
        let write = |canary, to, len| {
            // SAFETY: the writable bytes of this range are ours.
            unsafe { cma_write_in_order(&permit, me(), canary, source.as_ptr(), to, len) }
        };
        let faulted = write(canary.address(), bad, page + 1);
        assert_eq!(faulted, Err(CmaError::RemoteFault { address: bad }));
        target.fill(0);
        for len in [1, 8, 9, 100_000] {
            let no_canary = write(8, to, len);
            assert_eq!(no_canary, Err(CmaError::RemoteFault { address: to }));
        }
        assert!(own.revoke());
        assert_eq!(write(canary.address(), to, 100), Err(CmaError::Revoked));
        assert!(target.iter().all(|byte| *byte == 0));
    }

    /// One thread writes words whose bytes, or halves, are all the same. Another one never sees two values in a word, and never
    /// the last word of a longer write before the first.
    #[test]
    fn observers_see_whole_words_in_order() {
        use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
        let canary = Canary::new().unwrap();
        let own = crate::segment::OwnPermit::create().unwrap();
        let permit = PeerPermit::map(own.fd().try_clone_to_owned().unwrap()).unwrap();
        let target: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let to = target.as_ptr().expose_provenance() as u64;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (stop, canary, permit) = (&stop, canary.address(), permit);
            scope.spawn(move || {
                for round in 0..100_000u32 {
                    let same = [round as u8; 8];
                    let words = [round; 16];
                    let short = [(0, 2), (8, 4), (16, 8)].map(|(at, len)| (at, same.as_ptr(), len));
                    let long = (64, words.as_ptr().cast(), 64);
                    let writes = short.into_iter().chain([long]);
                    for (at, from, len) in writes.filter(|(_, _, len)| cma_writes_words(*len)) {
                        // SAFETY: `target` is ours, and has these bytes.
                        unsafe { cma_write_in_order(&permit, me(), canary, from, to + at, len) }
                            .unwrap();
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the first bytes of aligned words, which only atomics access here.
                let (two, four) = unsafe {
                    let two = AtomicU16::from_ptr(target[0].as_ptr().cast());
                    let four = AtomicU32::from_ptr(target[1].as_ptr().cast());
                    (two.load(Ordering::Relaxed), four.load(Ordering::Relaxed))
                };
                let eight = target[2].load(Ordering::Relaxed);
                for bytes in [
                    &two.to_ne_bytes()[..],
                    &four.to_ne_bytes()[..],
                    &eight.to_ne_bytes()[..],
                ] {
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:x?}");
                }
                let last = target[15].load(Ordering::Acquire);
                let first = target[8].load(Ordering::Acquire);
                assert_eq!(last >> 32, last & 0xffff_ffff);
                assert!(first as u32 >= last as u32, "{first:x} before {last:x}");
            }
        });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn kernels_that_copy_short_words_whole_are_recognised() {
        for (release, is_new) in [
            ("6.1.0-18-amd64\n", true),
            ("5.18.0", true),
            ("5.17.15-custom", false),
            ("5.4.0-150-generic", false),
            ("4.18.0-553.el8", false),
            ("10.0", true),
            ("6", false),
            ("linux", false),
            ("", false),
        ] {
            assert_eq!(is_since_5_18(release), is_new, "{release}");
        }
        assert!(has_fsrm("flags\t\t: fpu erms fsrm".to_owned()));
        assert!(!has_fsrm("flags\t\t: fpu erms fsrmx".to_owned()));
        assert!([0, 1, 8, 64, 4096].into_iter().all(cma_writes_words));
        let allowed = copies_short_strings();
        assert!(
            [2, 4, 12]
                .into_iter()
                .all(|len| cma_writes_words(len) == allowed)
        );
    }
}

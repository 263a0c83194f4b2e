//! Memory that outlives the process: regions with `FI_RMA_PMEM`, writes with `FI_COMMIT_COMPLETE`.

use crate::harness::*;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

const PAGE: usize = 4096;

/// A file of some pages, and a mapping of it.
struct Mapped {
    path: PathBuf,
    at: usize,
    len: usize,
}

impl Mapped {
    fn new(name: &str, pages: usize, sharing: i32) -> Self {
        let name = format!("rkey-fi-{name}-{}", std::process::id());
        let path = storage().join(name);
        let len = pages * PAGE;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.set_len(len as u64).unwrap();
        let at = map_file(&file, len, sharing);
        Self { path, at, len }
    }

    /// How many KiB of the mapping the kernel has not written to the file yet.
    fn dirty(&self) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{:x}-", self.at);
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
        assert!(lines.next().is_some());
        lines
            .take_while(|line| !line.starts_with("VmFlags"))
            .filter(|line| line.starts_with("Shared_Dirty") || line.starts_with("Private_Dirty"))
            .map(|line| line.split_ascii_whitespace().nth(1).unwrap())
            .map(|number| number.parse::<u64>().unwrap())
            .sum()
    }
}

/// A directory on a file system with storage. A file system in memory writes no pages, so a commit there would prove
/// nothing.
fn storage() -> PathBuf {
    let here = std::env::current_dir().ok();
    let program = std::env::current_exe().ok();
    let candidates = [
        Some(std::env::temp_dir()),
        Some(PathBuf::from("/var/tmp")),
        here,
        program.and_then(|path| Some(path.parent()?.to_owned())),
    ];
    let mut candidates = candidates.into_iter().flatten();
    candidates
        .find(|folder| is_stored(folder) && is_writable(folder))
        .expect("these tests need a directory on a disk: set TMPDIR to one")
}

fn is_stored(folder: &Path) -> bool {
    let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    // SAFETY: a C string, and room for the answer.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        let in_memory = [libc::TMPFS_MAGIC, 0x8584_58f6]; // tmpfs, ramfs
        libc::statfs(path.as_ptr(), &mut about) == 0 && !in_memory.contains(&about.f_type)
    }
}

fn is_writable(folder: &Path) -> bool {
    let path = folder.join(format!("rkey-fi-probe-{}", std::process::id()));
    let made = File::create(&path).is_ok();
    let _ = std::fs::remove_file(&path);
    made
}

impl Drop for Mapped {
    fn drop(&mut self) {
        unmap(self.at, self.len);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn map_file(file: &File, len: usize, sharing: i32) -> usize {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(null_mut(), len, RW, sharing, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

/// Writes equal parts of `bytes` to several remote ranges in one message; returns 0, the error of the completion, or that of the call.
fn write_ranges(
    a: &Side,
    b: &Side,
    peer: u64,
    bytes: &[u8],
    places: &[(u64, u64)],
    flags: u64,
) -> i32 {
    let len = bytes.len() / places.len();
    let remote: Vec<_> = places
        .iter()
        .map(|&(addr, key)| RmaIov { addr, len, key })
        .collect();
    let iov = [libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }];
    let msg = MsgRma {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: peer,
        rma_iov: remote.as_ptr(),
        rma_iov_count: remote.len(),
        context: null_mut(),
        data: 0,
    };
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe { ((*(*a.ep).rma).writemsg)(a.ep, &msg, flags) });
    if code != 0 {
        return code as i32;
    }
    a.completion(&[b]).err().map_or(0, |error| error.err)
}

/// Proves: FI-143, FI-I26
#[test]
fn a_committed_write_is_in_the_file_when_it_completes() {
    let (a, b, peer) = pair(&Wish::default());
    let file = Mapped::new("committed", 3, libc::MAP_SHARED);
    let mr = b.reg_at(file.at, file.len, REMOTE, 1, FI_RMA_PMEM).unwrap();
    // Without a commit, the kernel delays writing the pages, so the check below is meaningful.
    assert_eq!(write_ranges(&a, &b, peer, &[1; 16], &[(0, 1)], 0), 0);
    assert_ne!(file.dirty(), 0);
    let bytes: Vec<u8> = (0..2 * PAGE).map(|n| n as u8 | 1).collect();
    for (round, places) in [vec![(100, 1)], vec![(0, 1), (2 * PAGE as u64, 1)]]
        .into_iter()
        .enumerate()
    {
        let code = write_ranges(&a, &b, peer, &bytes, &places, FI_COMMIT_COMPLETE);
        assert_eq!(code, 0, "round {round}");
        assert_eq!(file.dirty(), 0, "round {round}: KiB not in the file");
    }
    let stored = std::fs::read(&file.path).unwrap();
    assert!(stored[..PAGE] == bytes[..PAGE] && stored[2 * PAGE..] == bytes[PAGE..]);
    assert_eq!(mr.close(), 0);
}

/// Proves: FI-143
#[test]
fn only_regions_registered_as_persistent_are_committed() {
    let (a, b, peer) = pair(&Wish::default());
    let file = Mapped::new("plain", 1, libc::MAP_SHARED);
    let plain = b.reg_at(file.at, PAGE, REMOTE, 1, 0).unwrap();
    let durable = b.reg_at(file.at, PAGE, REMOTE, 2, FI_RMA_PMEM).unwrap();
    let read_only = b
        .reg_at(file.at, PAGE, FI_REMOTE_READ, 3, FI_RMA_PMEM)
        .unwrap();
    let write =
        |places: &[(u64, u64)]| write_ranges(&a, &b, peer, &[7; 16], places, FI_COMMIT_COMPLETE);
    assert_eq!(write(&[(0, 2)]), 0);
    assert_eq!(write(&[(0, 1)]), libc::EINVAL, "not persistent");
    assert_eq!(write(&[(0, 3)]), libc::EACCES);
    assert_eq!(write(&[(PAGE as u64, 2)]), libc::EACCES, "past the end");
    assert_eq!(write(&[(0, 2), (0, 99)]), 266, "unknown key");
    // Other memory may get mapped under the region.
    assert_eq!(map_at(file.at, PAGE, RW), file.at);
    assert_eq!(write(&[(0, 2)]), libc::EINVAL, "no longer persistent");
    assert_eq!(
        (plain.close(), durable.close(), read_only.close()),
        (0, 0, 0)
    );
}

/// Proves: FI-143
#[test]
fn volatile_memory_cannot_be_registered_as_persistent() {
    let b = Side::open(&Wish::default());
    let private = Mapped::new("private", 1, libc::MAP_PRIVATE);
    let shared = Mapped::new("shared", 3, libc::MAP_SHARED);
    map_at(shared.at + 2 * PAGE, PAGE, RW);
    let anonymous = map_at(0, PAGE, RW);
    // SAFETY: a C string, and existing flags.
    let memfd = unsafe { libc::memfd_create(c"rkey-test".as_ptr(), 0) };
    assert!(memfd >= 0);
    // SAFETY: our own descriptor.
    let memfd = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(memfd) };
    memfd.set_len(PAGE as u64).unwrap();
    let nameless = map_file(&memfd, PAGE, libc::MAP_SHARED);
    // A file on tmpfs has a name, but does not outlive the running system.
    let folder = Path::new("/dev/shm");
    let in_memory = (folder.is_dir() && !is_stored(folder) && is_writable(folder)).then(|| {
        let path = folder.join(format!("rkey-fi-memory-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.set_len(PAGE as u64).unwrap();
        let at = map_file(&file, PAGE, libc::MAP_SHARED);
        (at, path)
    });
    if let Some((at, path)) = in_memory {
        let refused = b.reg_at(at, PAGE, REMOTE, 1, FI_RMA_PMEM).unwrap_err();
        assert_eq!(refused, -libc::EINVAL, "tmpfs");
        unmap(at, PAGE);
        std::fs::remove_file(path).unwrap();
    }
    for (at, len) in [
        (private.at, PAGE),
        (anonymous, PAGE),
        (nameless, PAGE),
        // The last page belongs to no file.
        (shared.at, 3 * PAGE),
    ] {
        let refused = b.reg_at(at, len, REMOTE, 1, FI_RMA_PMEM).unwrap_err();
        assert_eq!(refused, -libc::EINVAL);
    }
    let mr = b
        .reg_at(shared.at + 1, 2 * PAGE - 1, REMOTE, 1, FI_RMA_PMEM)
        .unwrap();
    assert_eq!(mr.close(), 0);
    unmap(anonymous, PAGE);
    unmap(nameless, PAGE);
}

#[test]
fn a_commit_needs_the_capability_and_a_write() {
    let wish = Wish {
        caps: FI_RMA | FI_MSG,
        ..Wish::default()
    };
    let (a, b, peer) = pair(&wish);
    let refused = write_ranges(&a, &b, peer, &[1; 4], &[(0, 1)], FI_COMMIT_COMPLETE);
    assert_eq!(refused, -libc::EOPNOTSUPP);
    let (a, _, peer) = pair(&Wish::default());
    let mut bytes = [0u8; 4];
    let iov = [iovec(&mut bytes)];
    let remote = [RmaIov {
        addr: 0,
        len: 4,
        key: 1,
    }];
    let msg = MsgRma {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: peer,
        rma_iov: remote.as_ptr(),
        rma_iov_count: 1,
        context: null_mut(),
        data: 0,
    };
    // SAFETY: a live handle, and a message that lives as long as the call.
    let code = unsafe { ((*(*a.ep).rma).readmsg)(a.ep, &msg, FI_COMMIT_COMPLETE) };
    assert_eq!(code, -260);
}

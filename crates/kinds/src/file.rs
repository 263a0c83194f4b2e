//! DMA-bufs and other files, mapped for the processor.
//!
//! The driver behind a DMA-buf must be told before and after the processor touches its bytes (`DMA_BUF_IOCTL_SYNC`), so such a
//! file has a copier. The bytes of other files (a memfd, a file of a DAX file system) are ordinary memory.

#![allow(unsafe_code)]
// UNSAFETY: maps files and copies from and to the mapping.

use rkey_base::copy;
use rkey_base::fault::Fault;
use rkey_base::foreign::{Copier, ForeignMemory};
use rkey_base::process::page_size;
use rkey_base::range::VaRange;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A part of a file that is mapped here.
#[derive(Debug)]
pub struct FileMemory {
    /// The registered bytes.
    pub range: VaRange,
    /// Who copies them: `None` is the processor.
    pub copier: Copier,
    /// Must be kept until the region is deregistered.
    pub mapping: Arc<Mapping>,
}

/// Our own mapping of a file.
#[derive(Debug)]
pub struct Mapping {
    start: usize,
    len: usize,
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let wrong = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let offset = i64::try_from(offset).map_err(wrong)?;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        match start {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            start => Ok(Self {
                start: start as usize,
                len,
            }),
        }
    }

    /// The address of its first page.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; regions and copiers over it have ended.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

/// Maps `len` bytes of a file, from `offset` on. The program may close `fd` afterwards.
///
/// # Errors
/// `EINVAL`: the file is too short, or the numbers overflow. `ENODEV`: a DMA-buf whose driver does not let the processor access
/// it. Other errors are those of `fcntl`, `fstat`, `mmap` and the driver.
pub fn map(fd: RawFd, offset: u64, len: usize, writable: bool) -> io::Result<FileMemory> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    // SAFETY: asks for another descriptor of the same file, which no other code closes.
    let fd = match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    let skip = (offset % page_size() as u64) as usize;
    let end = offset.checked_add(len as u64).ok_or_else(invalid)?;
    // Accesses past the end of a file would only fault.
    if size(fd.as_fd())?.is_some_and(|size| size < end) {
        return Err(invalid());
    }
    let whole = skip.checked_add(len).ok_or_else(invalid)?;
    let mapping = Arc::new(Mapping::new(
        fd.as_fd(),
        offset - skip as u64,
        whole,
        writable,
    )?);
    let range = VaRange::new(mapping.start() + skip as u64, len as u64).ok_or_else(invalid)?;
    // Only a DMA-buf has this call.
    let probe = sync(fd.as_fd(), START | READ).and_then(|()| sync(fd.as_fd(), END | READ));
    let is_dma_buf = match probe {
        Ok(()) => true,
        Err(error) if is_other_file(&error) => false,
        Err(error) => return Err(error),
    };
    let copier = is_dma_buf.then(|| {
        Arc::new(DmaBuf {
            fd,
            mapping: Arc::clone(&mapping),
            sync,
        }) as Arc<dyn ForeignMemory>
    });
    Ok(FileMemory {
        range,
        copier,
        mapping,
    })
}

/// `DMA_BUF_MAGIC`, the type of the file system of DMA-bufs.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// The size of a regular file or a DMA-buf; `None` for other files, whose `mmap` decides. Seeking would move the program's
/// offset in a regular file, whereas a DMA-buf has no offset.
fn size(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // SAFETY: all zeros is a valid value of both structures of numbers.
    let (mut system, mut stat): (libc::statfs, libc::stat) = unsafe { core::mem::zeroed() };
    // SAFETY: each pointer is to a local of the type that the call fills.
    let failed = unsafe {
        libc::fstatfs(fd.as_raw_fd(), &raw mut system) != 0
            || libc::fstat(fd.as_raw_fd(), &raw mut stat) != 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    if system.f_type as u64 == DMA_BUF_MAGIC {
        // SAFETY: asks for a number.
        let size = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
        return Ok(u64::try_from(size).ok());
    }
    let is_regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    Ok(is_regular.then_some(stat.st_size as u64))
}

/// `DMA_BUF_IOCTL_SYNC`: `_IOW('b', 0, struct dma_buf_sync)`, and its flags.
const SYNC: libc::Ioctl = (1 << 30 | 8 << 16 | 0x62 << 8) as _;
const READ: u64 = 1;
const WRITE: u64 = 2;
const START: u64 = 0;
const END: u64 = 4;

fn sync(fd: BorrowedFd<'_>, flags: u64) -> io::Result<()> {
    loop {
        // SAFETY: `struct dma_buf_sync` is this one number.
        if unsafe { libc::ioctl(fd.as_raw_fd(), SYNC, &raw const flags) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(error);
        }
    }
}

/// Whether the error of [`sync`] says that the file is not a DMA-buf.
fn is_other_file(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    matches!(
        number,
        Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::ENODEV)
    )
}

/// Tells a driver about accesses of the processor.
type Sync = fn(BorrowedFd<'_>, u64) -> io::Result<()>;

/// The bytes of a DMA-buf.
#[derive(Debug)]
struct DmaBuf {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    sync: Sync,
}

impl DmaBuf {
    fn access(
        &self,
        address: u64,
        len: usize,
        direction: u64,
        copy: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mapped = VaRange::new(self.mapping.start(), self.mapping.len as u64);
        let asked = VaRange::new(address, len as u64);
        let inside = mapped
            .zip(asked)
            .is_some_and(|(all, part)| all.contains(&part));
        let tell = |when: u64| {
            (self.sync)(self.fd.as_fd(), when | direction).map_err(|error| {
                tracing::warn!("the driver of a DMA-buf refuses access: {error}");
                Fault::at(address)
            })
        };
        if !inside {
            return Err(Fault::at(address));
        }
        tell(START)?;
        let copied = copy();
        tell(END)?;
        copied
    }
}

impl ForeignMemory for DmaBuf {
    fn load(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        self.access(src, dst.len(), READ, || {
            let from = std::ptr::with_exposed_provenance(src as usize);
            // SAFETY: `dst` is ours to write; the source is inside our mapping, which may lose its pages (a fault).
            unsafe { copy::copy(dst.as_mut_ptr(), from, dst.len()) }
        })
    }

    fn store(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        self.access(dst, src.len(), WRITE, || {
            let to = std::ptr::with_exposed_provenance_mut(dst as usize);
            // SAFETY: the target is inside our mapping, to which no reference exists.
            unsafe { copy::copy(to, src.as_ptr(), src.len()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek};
    use std::sync::atomic::{AtomicU64, Ordering};

    fn memfd(len: i64) -> OwnedFd {
        // SAFETY: a name; a new descriptor.
        unsafe {
            let fd = libc::memfd_create(c"bytes".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(fd, len), 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn the_processor_copies_files_that_are_no_dma_bufs() {
        let fd = memfd(8192);
        // SAFETY: moves the offset of a descriptor of ours.
        let seek = |to, whence| unsafe { libc::lseek(fd.as_raw_fd(), to, whence) };
        assert_eq!(seek(5, libc::SEEK_SET), 5);
        let memory = map(fd.as_raw_fd(), 100, 5000, true).unwrap();
        assert_eq!(seek(0, libc::SEEK_CUR), 5, "the program's offset moved");
        assert!(memory.copier.is_none());
        assert_eq!(memory.range.start() % 4096, 100);
        for (offset, len) in [(100, 8093), (u64::MAX, 1), (8192, 1), (0, usize::MAX)] {
            let error = map(fd.as_raw_fd(), offset, len, true).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{offset} {len}");
        }
        assert_eq!(
            map(-1, 0, 1, true).unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );
    }

    /// What the driver was told, one digit for each call.
    static TOLD: AtomicU64 = AtomicU64::new(0);

    fn record(_: BorrowedFd<'_>, flags: u64) -> io::Result<()> {
        TOLD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |told| {
            Some(told * 10 + flags)
        })
        .unwrap();
        Ok(())
    }

    #[test]
    fn the_driver_is_told_before_and_after_each_copy() {
        copy::install().unwrap();
        let fd = memfd(4096);
        let FileMemory { range, mapping, .. } = map(fd.as_raw_fd(), 0, 4096, true).unwrap();
        let file = fd.try_clone().unwrap();
        let buf = DmaBuf {
            fd,
            mapping,
            sync: record,
        };
        buf.store(range.start() + 1, b"bytes").unwrap();
        let mut back = [0; 5];
        buf.load(&mut back, range.start() + 1).unwrap();
        assert_eq!(&back, b"bytes");
        let [start, end] = [START, END];
        assert_eq!(
            TOLD.load(Ordering::Relaxed),
            ((start | WRITE) * 10 + (end | WRITE)) * 100 + (start | READ) * 10 + (end | READ)
        );
        let beyond = buf.store(range.end() - 1, b"12");
        assert_eq!(beyond, Err(Fault::at(range.end() - 1)));
        // Lost pages cause a fault, not a signal, and the driver is still told that the access has ended.
        let mut file = File::from(file);
        file.rewind().unwrap();
        let mut first = [0; 6];
        file.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"\0bytes");
        file.set_len(0).unwrap();
        assert!(buf.load(&mut back, range.start()).is_err());
        assert_eq!(TOLD.load(Ordering::Relaxed) % 10, END | READ);
    }

    #[test]
    fn a_driver_that_refuses_is_a_fault() {
        let fd = memfd(4096);
        let FileMemory { range, mapping, .. } = map(fd.as_raw_fd(), 0, 4096, true).unwrap();
        let buf = DmaBuf {
            fd,
            mapping,
            sync: |_, _| Err(io::Error::from_raw_os_error(libc::EIO)),
        };
        assert_eq!(
            buf.load(&mut [0], range.start()),
            Err(Fault::at(range.start()))
        );
    }
}

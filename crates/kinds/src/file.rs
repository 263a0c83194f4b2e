//! DMA-bufs and other files, mapped for the processor.
//!
//! The driver behind a DMA-buf must be told before and after the processor touches its bytes (`DMA_BUF_IOCTL_SYNC`), so such a
//! file has a copier. That call waits until the device has finished its own work with the buffer, however long this takes. An
//! engine cannot wait that long, so a copy first waits briefly for the device, and fails if the device is still busy. The
//! bytes of other files (a memfd, a file of a DAX file system) are ordinary memory.

#![allow(unsafe_code)]
// UNSAFETY: maps files and copies from and to the mapping.

use crate::complaint::Complaints;
use rkey_base::copy;
use rkey_base::fault::Fault;
use rkey_base::foreign::{Copier, ForeignMemory};
use rkey_base::process::page_size;
use rkey_base::range::VaRange;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A part of a file that is mapped here.
#[derive(Debug)]
pub struct FileMemory {
    /// The registered bytes.
    pub range: VaRange,
    /// The copier of the bytes; `None` if the processor copies them.
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

    /// The address of the mapping's first page.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start as u64
    }

    /// Makes a read-only mapping writable.
    ///
    /// # Errors
    /// `EACCES`: the program's descriptor was not open for writing.
    pub fn make_writable(&self) -> io::Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: our own mapping; more rights make no access to it unsound.
        match unsafe { libc::mprotect(self.start as *mut _, self.len, protection) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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
    let (size, is_dma_buf) = nature(fd.as_fd())?;
    // Accesses past the end of a file would only fault.
    if size.is_some_and(|size| size < end) {
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
    // A driver that refuses accesses does so now, unless its device is busy.
    if is_dma_buf && is_idle(fd.as_fd(), READ, 0)? {
        sync(fd.as_fd(), START | READ).and_then(|()| sync(fd.as_fd(), END | READ))?;
    }
    let copier = is_dma_buf
        .then(|| Arc::new(DmaBuf::new(fd, Arc::clone(&mapping), sync)) as Arc<dyn ForeignMemory>);
    Ok(FileMemory {
        range,
        copier,
        mapping,
    })
}

/// `DMA_BUF_MAGIC`, the type of the file system of DMA-bufs.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// The size of a regular file or a DMA-buf, and whether it is a DMA-buf. The size of other files is `None`: their `mmap` decides.
/// Seeking would move the program's offset in a regular file, whereas a DMA-buf has no offset.
fn nature(fd: BorrowedFd<'_>) -> io::Result<(Option<u64>, bool)> {
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
        return Ok((u64::try_from(size).ok(), true));
    }
    let is_regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    Ok((is_regular.then_some(stat.st_size as u64), false))
}

/// `DMA_BUF_IOCTL_SYNC`: `_IOW('b', 0, struct dma_buf_sync)`, and its flags.
const SYNC: libc::Ioctl = (1 << 30 | 8 << 16 | 0x62 << 8) as _;
const READ: u64 = 1;
const WRITE: u64 = 2;
const START: u64 = 0;
const END: u64 = 4;

/// The maximum number of attempts at a call while the kernel asks to repeat it.
const TRIES: usize = 100;

/// Makes a call until the kernel no longer asks to repeat it, at most [`TRIES`] times.
fn repeat(mut call: impl FnMut() -> c_int) -> io::Result<c_int> {
    let mut tries = 1;
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result);
        }
        let error = io::Error::last_os_error();
        let again = matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN));
        if !again || tries == TRIES {
            return Err(error);
        }
        tries += 1;
    }
}

fn sync(fd: BorrowedFd<'_>, flags: u64) -> io::Result<()> {
    // SAFETY: `struct dma_buf_sync` is this one number.
    repeat(|| unsafe { libc::ioctl(fd.as_raw_fd(), SYNC, &raw const flags) }).map(|_| ())
}

/// How long a copy waits for a device that works with the buffer, in milliseconds.
const PATIENCE: c_int = 100;

/// Whether the device has finished with the buffer: its writes, if the processor is about to read; all its accesses, if the
/// processor is about to write. Waits at most `wait` milliseconds.
fn is_idle(fd: BorrowedFd<'_>, direction: u64, wait: c_int) -> io::Result<bool> {
    let mut it = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: match direction {
            READ => libc::POLLIN,
            _ => libc::POLLOUT,
        },
        revents: 0,
    };
    // SAFETY: one structure.
    repeat(|| unsafe { libc::poll(&raw mut it, 1, wait) }).map(|ready| ready > 0)
}

/// Notifies a driver of accesses by the processor.
type Sync = fn(BorrowedFd<'_>, u64) -> io::Result<()>;

/// The bytes of a DMA-buf.
#[derive(Debug)]
struct DmaBuf {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    sync: Sync,
    /// For reads and for writes: whether the device was still busy when the last copy stopped waiting for it. If so, the next
    /// copy checks it without waiting.
    is_busy: [AtomicBool; 2],
    complaints: Complaints,
}

impl DmaBuf {
    fn new(fd: OwnedFd, mapping: Arc<Mapping>, sync: Sync) -> Self {
        Self {
            fd,
            mapping,
            sync,
            is_busy: Default::default(),
            complaints: Complaints::default(),
        }
    }

    /// Waits until the device has finished its work with the buffer, unless it takes too long.
    fn wait_for_device(&self, direction: u64) -> Result<(), String> {
        let is_busy = &self.is_busy[usize::from(direction == WRITE)];
        let patience = match is_busy.load(Ordering::Relaxed) {
            true => 0,
            false => PATIENCE,
        };
        let idle = is_idle(self.fd.as_fd(), direction, patience);
        let idle = idle.map_err(|error| format!("its state cannot be polled: {error}"))?;
        is_busy.store(!idle, Ordering::Relaxed);
        match idle {
            true => Ok(()),
            false => Err(format!(
                "its device has been using it for more than {PATIENCE} ms: let the device finish before peers or requests access it"
            )),
        }
    }

    fn tell(&self, when: u64, direction: u64) -> Result<(), String> {
        (self.sync)(self.fd.as_fd(), when | direction)
            .map_err(|error| format!("its driver refuses the access: {error}"))
    }

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
        if !inside {
            return Err(Fault::at(address));
        }
        let refused = |why: String| {
            let what = format_args!("cannot access the DMA-buf at {address:#x}: {why}");
            self.complaints.log(what);
            Fault::at(address)
        };
        self.wait_for_device(direction).map_err(refused)?;
        self.tell(START, direction).map_err(refused)?;
        let copied = copy();
        self.tell(END, direction).map_err(refused)?;
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
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU64;

    fn memfd(len: i64) -> OwnedFd {
        // SAFETY: a name; a new descriptor.
        unsafe {
            let fd = libc::memfd_create(c"bytes".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(fd, len), 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn the_processor_copies_files_that_are_not_dma_bufs() {
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
    fn the_driver_is_notified_before_and_after_each_copy() {
        copy::install().unwrap();
        let fd = memfd(4096);
        let FileMemory { range, mapping, .. } = map(fd.as_raw_fd(), 0, 4096, true).unwrap();
        let file = fd.try_clone().unwrap();
        let buf = DmaBuf::new(fd, mapping, record);
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
    fn a_driver_that_refuses_access_causes_a_fault() {
        let fd = memfd(4096);
        let FileMemory { range, mapping, .. } = map(fd.as_raw_fd(), 0, 4096, true).unwrap();
        let refuses = |_: BorrowedFd<'_>, _| Err(io::Error::from_raw_os_error(libc::EIO));
        let buf = DmaBuf::new(fd, mapping, refuses);
        assert_eq!(
            buf.load(&mut [0], range.start()),
            Err(Fault::at(range.start()))
        );
    }

    /// A socket replaces the buffer: it is readable (the device has finished writing) once a byte has arrived, and always writable.
    #[test]
    fn a_busy_device_causes_a_fault_without_waiting() {
        static SYNCS: AtomicU64 = AtomicU64::new(0);
        copy::install().unwrap();
        let count = |_: BorrowedFd<'_>, _| {
            SYNCS.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let fd = memfd(4096);
        let FileMemory { range, mapping, .. } = map(fd.as_raw_fd(), 0, 4096, true).unwrap();
        let (socket, mut device) = UnixStream::pair().unwrap();
        let buf = DmaBuf::new(socket.into(), mapping, count);
        let syncs = || SYNCS.load(Ordering::Relaxed);
        for _ in 0..10_000 {
            let busy = buf.load(&mut [0], range.start());
            assert_eq!(busy, Err(Fault::at(range.start())));
        }
        assert_eq!(syncs(), 0, "the driver would have waited");
        buf.store(range.start(), b"w").unwrap();
        assert_eq!(syncs(), 2);
        device.write_all(b"done").unwrap();
        let mut back = [0];
        buf.load(&mut back, range.start()).unwrap();
        assert_eq!((&back, syncs()), (b"w", 4));
    }

    #[test]
    fn a_call_that_keeps_failing_is_not_retried_forever() {
        let mut calls = 0;
        let result = repeat(|| {
            calls += 1;
            // SAFETY: the error number of this thread.
            unsafe { *libc::__errno_location() = libc::EAGAIN };
            -1
        });
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert_eq!(calls, TRIES);
    }

    #[test]
    fn a_read_only_mapping_of_a_writable_file_can_be_made_writable() {
        copy::install().unwrap();
        let fd = memfd(4096);
        let memory = map(fd.as_raw_fd(), 0, 4096, false).unwrap();
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(memory.range.start() as usize);
        // SAFETY: our mapping; a fault is an error.
        let write = || unsafe { copy::copy(at, b"w".as_ptr(), 1) };
        assert!(write().is_err());
        memory.mapping.make_writable().unwrap();
        assert!(write().is_ok());
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let reader = File::open(path).unwrap();
        let memory = map(reader.as_raw_fd(), 0, 4096, false).unwrap();
        let refused = memory.mapping.make_writable().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    }
}

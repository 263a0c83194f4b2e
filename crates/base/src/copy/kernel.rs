//! Copies inside this process by the kernel, which take 0.4 µs longer but need no signal handler.
//!
//! Called on the calling process itself, `process_vm_readv(2)` reads from one address and writes to another, and
//! returns `EFAULT` where a plain copy would crash.

// UNSAFETY: system calls that take raw addresses.

use crate::fault::Fault;
use std::io;

/// Whether the kernel lets this process use `process_vm_readv` on itself (a sandbox may forbid it).
pub(super) fn works() -> bool {
    if cfg!(miri) {
        return false; // Miri does not have this call
    }
    let source = [0x5Au8; 4];
    let mut target = [0u8; 4];
    read(&mut target, source.as_ptr() as u64) && source == target
}

/// Reads memory of this process that might not be mapped; returns `false` if it cannot be read.
pub(super) fn read(into: &mut [u8], address: u64) -> bool {
    // SAFETY: `into` is valid for writing its length; the source is checked by the kernel.
    let result = unsafe { transfer(into.as_mut_ptr() as u64, address, into.len()) };
    matches!(result, Ok(n) if n == into.len())
}

/// Copies like [`super::copy`].
///
/// # Safety
///
/// Like [`super::copy`].
#[cold]
pub(super) unsafe fn copy(dst: u64, src: u64, len: usize) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        // SAFETY: a part of the range that the caller is responsible for.
        match unsafe { transfer(dst + done as u64, src + done as u64, len - done) } {
            Ok(n) if n > 0 => done += n,
            _ => return Err(locate(dst + done as u64, src + done as u64, len - done)),
        }
    }
    Ok(())
}

/// Finds the address that made a copy fail: the first page of either side that cannot be read.
fn locate(dst: u64, src: u64, len: usize) -> Fault {
    const PAGE: u64 = 4096;
    /// The maximum number of pages to probe: more than one call copies before it stops at an inaccessible page.
    const PROBES: u64 = 64;
    let mut offset = 0;
    for _ in 0..PROBES {
        if offset >= len as u64 {
            break;
        }
        for side in [src, dst] {
            let address = side.wrapping_add(offset);
            if !read(&mut [0u8; 1], address) {
                return Fault::at(address);
            }
        }
        // Up to the next page boundary of either side.
        let step = |side: u64| PAGE - side.wrapping_add(offset) % PAGE;
        offset += step(src).min(step(dst));
    }
    // Everything can be read, so the destination cannot be written.
    Fault::at(dst)
}

/// Makes one system call; returns how many bytes it transferred.
///
/// # Safety
///
/// The owner of `dst..dst + len` must allow writing to it; the kernel checks whether that is possible.
unsafe fn transfer(dst: u64, src: u64, len: usize) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: dst as *mut libc::c_void,
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: src as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: the two iovecs are valid for the call; the kernel checks the addresses in them, and the caller is
    // responsible for the bytes written.
    let n = unsafe {
        libc::process_vm_readv(
            std::process::id().cast_signed(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Ensures that the page of `address` is mapped and writable at this moment.
#[cold]
pub(super) fn populate(address: u64) -> Result<(), Fault> {
    let page = address & !(crate::process::page_size() as u64 - 1);
    // SAFETY: `MADV_POPULATE_WRITE` brings pages in and changes no byte of them, for any address.
    let advise = |page: u64| unsafe {
        libc::madvise(page as *mut libc::c_void, 1, libc::MADV_POPULATE_WRITE) == 0
    };
    if advise(page) {
        return Ok(());
    }
    // `MADV_POPULATE_WRITE` needs Linux 5.14; probe for it with a page that is certainly writable: our stack. Without
    // `MADV_POPULATE_WRITE`, at least check that the word can be read.
    let stack = 0u64;
    let supported = advise((&raw const stack) as u64 & !(crate::process::page_size() as u64 - 1));
    if !supported && read(&mut [0u8; 8], address) {
        Ok(())
    } else {
        Err(Fault::at(address))
    }
}

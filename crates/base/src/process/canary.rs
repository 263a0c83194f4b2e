//! A page that only the current program of this process has.
//!
//! A process that executes another program keeps its PID, and a forked child may keep its sockets open, so a peer does not notice. But
//! the new program has other memory. A peer that writes to a process with `process_vm_writev(2)` puts a byte of the canary first in its
//! list: the kernel looks up the memory of the process once for each call, so if the canary is gone, the call writes nothing.
//!
//! The address is random, so that the new program has no memory there even if the kernel does not randomize its layout. A forked child does
//! not inherit the page.

// UNSAFETY: maps and unmaps a page.
#![allow(unsafe_code)]

use super::{incarnation, page_size};
use std::io;
use std::ops::Range;

/// The addresses to choose from: 53 TiB of the 128 TiB of a process on x86-64. The kernel puts nothing here by itself: it puts programs
/// and their heaps above, and other memory close to the upper end. The shadow memory of AddressSanitizer (16 TiB), the heap of Go and the
/// heap of mimalloc are below.
const ADDRESSES: Range<u64> = 0x2000_0000_0000..0x5500_0000_0000;
/// How many addresses to try. Nearly always the first one is free.
const TRIES: usize = 16;

/// A page of this process at a random address. Dropping it removes the page.
#[derive(Debug)]
pub struct Canary {
    address: u64,
    /// The process that made it.
    incarnation: u64,
}

impl Canary {
    /// Maps the page.
    ///
    /// # Errors
    /// No memory is available, the kernel is older than Linux 4.17, or processes have smaller address spaces here.
    pub fn new() -> io::Result<Self> {
        let mut result = Err(io::ErrorKind::AddrInUse.into());
        for _ in 0..TRIES {
            result = Self::at(random_address()?);
            match &result {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                _ => break,
            }
        }
        result
    }

    fn at(address: u64) -> io::Result<Self> {
        let hint = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: replaces no mapping: the kernel refuses addresses that are in use. Older kernels choose another address, where the
        // new page is private to this function.
        let start = unsafe {
            libc::mmap(
                hint,
                page_size(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let canary = Self {
            address: start.addr() as u64,
            incarnation: incarnation(),
        };
        if canary.address != address {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: advice about the page just mapped.
        if unsafe { libc::madvise(start, page_size(), libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(canary)
    }

    /// The address of the page. Peers may overwrite the byte there.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        if self.incarnation != incarnation() {
            // A forked child: it did not inherit the page, and may use the address for something else.
            return;
        }
        // SAFETY: the page that this canary mapped; nothing in this process refers to it.
        unsafe { libc::munmap(self.address as *mut libc::c_void, page_size()) };
    }
}

fn random_address() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: writes at most as many bytes as the array has.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n != bytes.len() as isize {
        return Err(io::Error::last_os_error());
    }
    let page = page_size() as u64;
    let pages = (ADDRESSES.end - ADDRESSES.start) / page;
    Ok(ADDRESSES.start + u64::from_ne_bytes(bytes) % pages * page)
}

#[cfg(all(test, not(miri), target_arch = "x86_64"))]
mod tests {
    use super::super::{CmaError, cma_read, cma_write};
    use super::*;

    fn me() -> u32 {
        std::process::id()
    }

    fn is_mapped(pid: u32, address: u64) -> bool {
        let mut byte = 0u8;
        // SAFETY: reads into our own byte.
        unsafe { cma_read(pid, &raw mut byte, address, 1) }.is_ok()
    }

    #[test]
    fn canaries_are_pages_of_their_own_until_they_are_dropped() {
        let canaries: Vec<Canary> = (0..20).map(|_| Canary::new().unwrap()).collect();
        for canary in &canaries {
            assert!(ADDRESSES.contains(&canary.address()));
            let same = |it: &&Canary| it.address() == canary.address();
            assert_eq!(canaries.iter().filter(same).count(), 1);
            let byte = 7u8;
            // SAFETY: a byte of the canary, which has no other use.
            unsafe { cma_write(me(), &raw const byte, canary.address(), 1) }.unwrap();
        }
        let taken = Canary::at(canaries[0].address()).unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EEXIST));
        let addresses: Vec<u64> = canaries.iter().map(Canary::address).collect();
        drop(canaries);
        assert!(addresses.iter().all(|it| !is_mapped(me(), *it)));
    }

    /// A forked child does not have the page, and dropping the canary there does not remove what the child has mapped in its place.
    #[test]
    fn a_forked_child_has_no_canary() {
        let canary = Canary::new().unwrap();
        let address = canary.address();
        // SAFETY: the child only makes system calls and then ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let own = Canary::at(address);
            let free = own.is_ok();
            drop(canary);
            let stays = is_mapped(me(), address);
            drop(own);
            let code = i32::from(!(free && stays && !is_mapped(me(), address)));
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert!(is_mapped(me(), address));
        let byte = 7u8;
        // SAFETY: nothing is mapped at address 8.
        let gone = unsafe { cma_write(me(), &raw const byte, 8, 1) };
        assert_eq!(gone, Err(CmaError::RemoteFault { address: 8 }));
    }
}

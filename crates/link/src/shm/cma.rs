//! Direct copies to and from the other process's memory with `process_vm_readv` and `process_vm_writev`.
//!
//! Whether the kernel permits such copies depends on users, namespaces, capabilities, security modules and the target's
//! dumpable flag. The answer can differ between the two directions, and only an attempt shows it. So each side sends the
//! address of a random number in the handshake, and the other side tries to read the number. The permission can be lost
//! later: then the call returns `Refused` and the message is sent in fragments.
// UNSAFETY: process_vm_* copies to and from raw addresses.
#![allow(unsafe_code)]

use super::hello::Probe;
use super::peer_access::PeerAccess;
use super::socket::Socket;
use crate::PullError;
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::process::{CallWatch, CmaError, PidFd, cma_read, cma_read_with, cma_write_with};
use rkey_base::segment::PeerPermit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// The number of bytes that one system call copies. This value was the fastest in measurements; it also determines how often
/// a revocation is checked.
const CHUNK: u64 = 256 << 10;
/// The process at the other end.
#[derive(Debug)]
pub struct PeerProcess {
    pid: Option<u32>,
    alive: Option<PidFd>,
}

impl PeerProcess {
    pub(crate) fn of(socket: &Socket) -> Self {
        Self {
            pid: socket.credentials().ok().and_then(|who| who.pid),
            alive: socket.process(),
        }
    }

    /// Whether the process is known to have ended.
    pub fn is_dead(&self) -> bool {
        self.alive
            .as_ref()
            .is_some_and(|process| !process.is_alive())
    }

    /// Whether no thread of the process is still in a copying call that began before the watch.
    pub(crate) fn is_clear(&self, watch: &mut CallWatch, deadline: Instant) -> bool {
        // If the process has ended in the meantime, its PID may belong to another one, so check after the watch.
        let (Some(pid), Some(alive)) = (self.pid, &self.alive) else {
            return false;
        };
        matches!(watch.all_clear(pid, deadline), Ok(true)) && alive.is_alive()
    }

    /// The process's PID, if it has one in our PID namespace.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// A descriptor of the process (a pidfd): readable once it has ended. `None` if the kernel does not offer one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.alive.as_ref().map(AsFd::as_fd)
    }

    /// Whether we can find the other side's random number in its memory.
    pub(crate) fn probe(&self, probe: &Probe) -> bool {
        let Some(pid) = self.pid else { return false };
        if probe.address == 0 || self.alive.is_none() {
            return false;
        }
        let mut found = [0; 16];
        // SAFETY: the local side is an array of 16 bytes.
        let read = unsafe { cma_read(pid, found.as_mut_ptr(), probe.address, found.len()) };
        read.is_ok() && found == probe.nonce
    }

    fn check_alive(&self) -> Result<u32, PullError> {
        if self.is_dead() {
            return Err(PullError::Gone);
        }
        self.pid.ok_or(PullError::Refused)
    }

    /// Copies `len` bytes at the peer's `src` to `dst` of `mem`.
    pub(crate) fn pull<M: Memory>(
        &self,
        (peer_access, permit): (&PeerAccess, &PeerPermit),
        mem: &M,
        dst: u64,
        src: u64,
        len: u64,
    ) -> Result<(), PullError> {
        let pid = self.check_alive()?;
        if mem.process().is_some() {
            for_chunks(dst, src, len, CHUNK, |dst, src, len| {
                let _inside = peer_access.enter()?;
                // SAFETY: the creator of the `ProcessMemory` guarantees that only addresses of registered memory are
                // passed here; the kernel refuses unmapped addresses.
                unsafe {
                    cma_read_with(
                        permit,
                        pid,
                        std::ptr::with_exposed_provenance_mut(dst as usize),
                        src,
                        len,
                    )
                }
                .map_err(explain)
            })?;
        } else {
            let mut step = buffer(len);
            for_chunks(dst, src, len, CHUNK, |dst, src, len| {
                let inside = peer_access.enter()?;
                // SAFETY: `for_chunks` passes at most as many bytes as the buffer has.
                unsafe { cma_read_with(permit, pid, step.as_mut_ptr(), src, len) }
                    .map_err(explain)?;
                drop(inside);
                mem.store_bytes(dst, &step[..len]).map_err(PullError::Local)
            })?;
        }
        // If the process ended during the copy, its PID may already belong to another process.
        self.check_alive().map(|_| ())
    }

    /// Copies `len` bytes at `src` of `mem` to the peer's `dst`.
    pub(crate) fn push<M: Memory>(
        &self,
        (peer_access, permit): (&PeerAccess, &PeerPermit),
        mem: &M,
        dst: u64,
        src: u64,
        len: u64,
    ) -> Result<(), PullError> {
        if mem.process().is_some() {
            for_chunks(dst, src, len, CHUNK, |dst, src, len| {
                let _inside = peer_access.enter()?;
                // Check each time, because a process that reuses the PID must not be written to.
                let pid = self.check_alive()?;
                // SAFETY: as in `pull`.
                unsafe {
                    cma_write_with(
                        permit,
                        pid,
                        std::ptr::with_exposed_provenance(src as usize),
                        dst,
                        len,
                    )
                }
                .map_err(explain)
            })
        } else {
            let mut step = buffer(len);
            for_chunks(dst, src, len, CHUNK, |dst, src, len| {
                mem.load_bytes(&mut step[..len], src)
                    .map_err(PullError::Local)?;
                let _inside = peer_access.enter()?;
                let pid = self.check_alive()?;
                // SAFETY: `for_chunks` passes at most as many bytes as the buffer has.
                unsafe { cma_write_with(permit, pid, step.as_ptr(), dst, len) }.map_err(explain)
            })
        }
    }
}

/// A buffer for a part of `len` bytes, for memory that the system call cannot access (an accelerator's, or a
/// simulation's).
fn buffer(len: u64) -> Vec<u8> {
    vec![0; len.min(CHUNK) as usize]
}

/// Calls `copy(dst, src, len)` for parts of at most `chunk` bytes.
fn for_chunks(
    dst: u64,
    src: u64,
    len: u64,
    chunk: u64,
    mut copy: impl FnMut(u64, u64, usize) -> Result<(), PullError>,
) -> Result<(), PullError> {
    let (Some(_), Some(_)) = (dst.checked_add(len), src.checked_add(len)) else {
        return Err(PullError::Remote(src));
    };
    let mut done = 0;
    while done < len {
        let part = (len - done).min(chunk);
        copy(dst + done, src + done, part as usize)?;
        done += part;
    }
    Ok(())
}

pub(crate) fn explain(error: CmaError) -> PullError {
    match error {
        CmaError::Refused { .. } => PullError::Refused,
        CmaError::Gone | CmaError::Revoked => PullError::Gone,
        CmaError::LocalFault { address } => PullError::Local(Fault { address }),
        CmaError::RemoteFault { address } => PullError::Remote(address),
    }
}

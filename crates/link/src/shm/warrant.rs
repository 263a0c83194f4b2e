//! Warrants: with a warrant, a requester itself copies its writes into the responder's memory, with `process_vm_writev`.
//!
//! The responder's engine then need not run, so such a write takes about a microsecond even if the responder's program uses the
//! processor without polling. The responder's device decides what it issues a warrant for; the link only carries out copies.
//!
//! A warrant has a number and a permit ([`OwnPermit`]) of its own. The roles of [`super::PeerAccess`] are exchanged:
//!
//! * requester, for each system call: busy word = number, full fence, check the warrant's bit, copy with the permit, busy word = 0;
//! * responder: clear the bit, revoke the permit, full fence, check that the busy word is not the number.
//!
//! At least one sees the other: a call that begins after the permit was revoked finds no list of addresses and copies nothing.
//! If the busy word stays the same, the responder watches the requester's threads, as for a remote iovec.
//!
//! The requester notes in the permit's page when it has used the warrant, so that the responder can replace the one that was not used
//! for the longest time. Nothing depends on this note but the choice.
//!
//! A responder that executes another program cannot revoke anything any more, and does not close the link if a forked child has it, too.
//! So each copy begins with a byte of the responder's [`Canary`], which the new program does not have.
// UNSAFETY: process_vm_writev copies to addresses of another process.
#![allow(unsafe_code)]

use super::cma::{PeerProcess, explain};
use super::line::ControlLine;
use crate::PullError;
use crate::ring::{Half, KeepMapped};
use parking_lot::Mutex;
use rkey_base::memory::Memory;
use rkey_base::process::{CallWatch, Canary, cma_write_in_order, cma_writes_words, coarse_time};
use rkey_base::segment::{OwnPermit, PeerPermit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// The maximum length of a write under a warrant, in bytes. It also bounds how long the owner waits for a call.
pub const WARRANT_WRITE_MAX: usize = 256 << 10;

/// A copy under a warrant that takes this long has waited for the responder's memory, or its thread was not running: a copy takes 50 us at
/// most. Longer than two steps of the coarse clock.
const STALL: Duration = Duration::from_millis(24);

/// A copy that took long.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// How long it took.
    pub took: Duration,
    /// When it ended, in [`coarse_time`].
    pub ended: Duration,
}

/// The note of a requester that no longer uses a warrant. Other notes are times, in milliseconds, of [`coarse_time`].
const GIVEN_BACK: u64 = u64::MAX;

/// Responder: issues warrants for this process's memory to the requester of a link. It may outlive the link.
#[derive(Clone, Debug)]
pub struct WarrantIssuer {
    own: Half,
    peer: Half,
    process: Arc<PeerProcess>,
    last: Arc<AtomicU64>,
    /// Made for the first warrant.
    canary: Arc<Mutex<Option<Arc<Canary>>>>,
    keep: KeepMapped,
}

impl WarrantIssuer {
    pub(crate) fn new(own: Half, peer: Half, process: Arc<PeerProcess>, keep: KeepMapped) -> Self {
        Self {
            own,
            peer,
            process,
            last: Arc::default(),
            canary: Arc::default(),
            keep,
        }
    }

    /// Issues a warrant. The requester can use it once it has the number, the canary and the descriptor.
    ///
    /// # Errors
    /// No descriptor or memory is available, or the kernel has no canaries ([`Canary::new`]).
    pub fn issue(&self) -> io::Result<OwnWarrant> {
        let canary = self.canary()?;
        let permit = OwnPermit::with_name("rkey-warrant")?;
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.own.warrants().fetch_or(bit(number), Ordering::Release);
        Ok(OwnWarrant(Arc::new(Issued {
            number,
            canary,
            permit,
            since: now_ms(),
            own: self.own,
            peer: self.peer,
            process: Arc::clone(&self.process),
            watch: Mutex::default(),
            _keep: self.keep.clone(),
        })))
    }

    fn canary(&self) -> io::Result<Arc<Canary>> {
        let mut canary = self.canary.lock();
        if canary.is_none() {
            *canary = Some(Arc::new(Canary::new()?));
        }
        canary.clone().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// A warrant that this process has issued. Cheap to clone; usable from any thread, even after the link has ended. Dropping the
/// last clone revokes it.
#[derive(Clone, Debug)]
pub struct OwnWarrant(Arc<Issued>);

#[derive(Debug)]
struct Issued {
    /// Not 0. No other warrant of the link has it.
    number: u64,
    canary: Arc<Canary>,
    permit: OwnPermit,
    /// When it was issued, in milliseconds of [`coarse_time`].
    since: u64,
    own: Half,
    peer: Half,
    process: Arc<PeerProcess>,
    /// Watches the requester's threads from the moment when the warrant was revoked.
    watch: Mutex<Option<CallWatch>>,
    _keep: KeepMapped,
}

impl OwnWarrant {
    /// The number, for the requester.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// The address of the canary, for the requester.
    pub fn canary(&self) -> u64 {
        self.0.canary.address()
    }

    /// The descriptor, for the requester.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.permit.fd()
    }

    /// Revokes the warrant: no copy begins after this has returned. A copy that has begun continues; see
    /// [`is_at_rest`](Self::is_at_rest).
    pub fn revoke(&self) {
        self.0.revoke();
    }

    /// After [`revoke`](Self::revoke): whether the requester's busy word shows that no copy is in progress. Takes nanoseconds.
    #[inline]
    pub fn is_idle(&self) -> bool {
        fence(Ordering::SeqCst);
        // If the permit could not be revoked, a copy could still begin.
        self.0.permit.is_revoked() && self.0.peer.busy().load(Ordering::Acquire) != self.0.number
    }

    /// After [`revoke`](Self::revoke): whether no copy is in progress, so that the memory may be reused, as
    /// [`PeerAccess::is_at_rest`](super::PeerAccess::is_at_rest).
    pub fn is_at_rest(&self, deadline: Instant) -> bool {
        if self.is_idle() || self.0.process.is_dead() {
            return true;
        }
        if !self.0.permit.revoke() {
            return false;
        }
        let Some(mut watch) = self.0.watch.try_lock() else {
            // Another thread is checking, perhaps for a long time.
            return false;
        };
        let watch = watch.get_or_insert_with(CallWatch::begin);
        self.0.process.is_clear(watch, deadline)
    }

    /// For how long the requester has not used the warrant: [`Duration::MAX`] if it has given it back, 0 while it is copying. Accurate to
    /// about 10 ms, and only as true as the requester's notes.
    pub fn unused_for(&self) -> Duration {
        let used = self.0.permit.note();
        if self.0.peer.busy().load(Ordering::Acquire) == self.0.number {
            return Duration::ZERO;
        }
        if used == GIVEN_BACK {
            return Duration::MAX;
        }
        Duration::from_millis(now_ms().saturating_sub(used.max(self.0.since)))
    }

    /// Whether this is a clone of the same warrant.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The requester's process, if it has a PID in our namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        self.0.process.pid()
    }
}

impl Issued {
    fn revoke(&self) {
        if self.permit.is_revoked() {
            return;
        }
        // If another warrant has the bit by now, its requester must ask for a new one.
        let bit = bit(self.number);
        self.own.warrants().fetch_and(!bit, Ordering::Release);
        self.permit.revoke();
    }
}

impl Drop for Issued {
    fn drop(&mut self) {
        // The requester's mapping keeps the permit's page alive.
        self.revoke();
    }
}

fn now_ms() -> u64 {
    coarse_time().as_millis() as u64
}

/// The bit of a warrant in the responder's word.
const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

/// Requester: takes over warrants from the responder of a link.
#[derive(Clone, Debug)]
pub struct WarrantTaker {
    own: Half,
    peer: Half,
    process: Arc<PeerProcess>,
    line: Arc<ControlLine>,
    _keep: KeepMapped,
}

impl WarrantTaker {
    pub(crate) fn new(
        own: Half,
        peer: Half,
        process: Arc<PeerProcess>,
        line: Arc<ControlLine>,
        keep: KeepMapped,
    ) -> Self {
        Self {
            own,
            peer,
            process,
            line,
            _keep: keep,
        }
    }

    /// Takes over a warrant with this number, canary and descriptor.
    ///
    /// # Errors
    /// The number is 0, or the descriptor is not a permit (`InvalidData`); errors of the kernel.
    pub fn take(&self, number: u64, canary: u64, fd: OwnedFd) -> io::Result<PeerWarrant> {
        if number == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a warrant without a number",
            ));
        }
        Ok(PeerWarrant {
            number,
            canary,
            permit: PeerPermit::map(fd)?,
            noted: Cell::new(0),
            stall: Cell::new(None),
            taker: self.clone(),
        })
    }
}

/// A warrant from the responder. One thread at a time uses the warrants of a link. Dropping it gives it back.
#[derive(Debug)]
pub struct PeerWarrant {
    number: u64,
    canary: u64,
    permit: PeerPermit,
    /// The last note.
    noted: Cell<u64>,
    stall: Cell<Option<Stall>>,
    taker: WarrantTaker,
}

impl PeerWarrant {
    /// Whether a write of this length may use a warrant: at most [`WARRANT_WRITE_MAX`] bytes, not 0, and not a length that the
    /// kernel copies byte by byte on this processor.
    pub fn fits(len: usize) -> bool {
        (1..=WARRANT_WRITE_MAX).contains(&len) && cma_writes_words(len)
    }

    /// Copies `len` bytes at `from` in `memory` to address `to` of the responder's process, at most [`WARRANT_WRITE_MAX`]. When
    /// this returns, the responder's program sees all of them; if it sees the last word, it sees the others.
    ///
    /// # Errors
    /// [`PullError`]: some bytes may have been copied, but none if the warrant was revoked before the call (`Gone`), or if the
    /// responder's process has executed another program.
    pub fn write<M: Memory>(
        &self,
        memory: &M,
        to: u64,
        from: u64,
        len: usize,
    ) -> Result<(), PullError> {
        if memory.process().is_some() {
            // The creator of the `ProcessMemory` guarantees that only addresses of registered memory are passed here; the
            // kernel refuses unmapped addresses.
            let from = std::ptr::with_exposed_provenance(from as usize);
            return self.copy(to, from, len);
        }
        if len > WARRANT_WRITE_MAX {
            return Err(PullError::Refused);
        }
        let mut bytes = vec![0; len];
        memory
            .load_bytes(&mut bytes, from)
            .map_err(PullError::Local)?;
        self.write_bytes(to, &bytes)
    }

    /// Like [`write`](Self::write), for bytes of the caller.
    ///
    /// # Errors
    /// Same as [`write`](Self::write).
    pub fn write_bytes(&self, to: u64, bytes: &[u8]) -> Result<(), PullError> {
        self.copy(to, bytes.as_ptr(), bytes.len())
    }

    /// Whether the responder has revoked the warrant.
    pub fn is_revoked(&self) -> bool {
        self.taker.peer.warrants().load(Ordering::Acquire) & bit(self.number) == 0
    }

    /// Removes and returns the last write under this warrant that took so long that perhaps the responder's memory does not respond.
    pub fn take_stall(&self) -> Option<Stall> {
        self.stall.take()
    }

    fn copy(&self, to: u64, from: *const u8, len: usize) -> Result<(), PullError> {
        if len > WARRANT_WRITE_MAX {
            return Err(PullError::Refused);
        }
        if to.checked_add(len as u64).is_none() {
            return Err(PullError::Remote(to));
        }
        let began = coarse_time();
        let busy = self.taker.own.busy();
        busy.store(self.number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let copied = self.copy_if_alive(to, from, len);
        busy.store(0, Ordering::Release);
        let ended = coarse_time();
        let took = ended.saturating_sub(began);
        if took >= STALL {
            self.stall.set(Some(Stall { took, ended }));
        }
        if copied.is_ok() {
            self.note_use(ended.as_millis() as u64);
        }
        copied
    }

    #[inline]
    fn note_use(&self, now: u64) {
        if self.noted.get() != now {
            self.noted.set(now);
            // If the page is gone, the next copy finds that out.
            let _ = self.permit.leave_note(now);
        }
    }

    fn copy_if_alive(&self, to: u64, from: *const u8, len: usize) -> Result<(), PullError> {
        if self.is_revoked() {
            return Err(PullError::Gone);
        }
        let pid = self.pid_if_alive()?;
        // SAFETY: the responder issued the warrant so that we write to its memory, and gave us the canary. Whatever the address is,
        // the bytes are in its process, which can revoke the permit at any time, and executes the program that made the canary.
        unsafe { cma_write_in_order(&self.permit, pid, self.canary, from, to, len) }
            .map_err(explain)
    }

    /// The responder's PID. Another process may have the PID once the responder's process has ended, and another program may run once
    /// the process has executed one. Both usually close the link's socket, which is noticed here; the canary covers the other cases.
    fn pid_if_alive(&self) -> Result<u32, PullError> {
        let (Some(pid), Some(process)) =
            (self.taker.process.pid(), self.taker.process.descriptor())
        else {
            return Err(PullError::Refused);
        };
        let mut ends = [
            PollFd::from_borrowed_fd(process, PollFlags::IN),
            PollFd::from_borrowed_fd(self.taker.line.as_fd(), PollFlags::RDHUP),
        ];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            match poll(&mut ends, Some(&now)) {
                Ok(0) => return Ok(pid),
                Err(Errno::INTR) => {}
                _ => return Err(PullError::Gone),
            }
        }
    }
}

impl Drop for PeerWarrant {
    fn drop(&mut self) {
        if !self.is_revoked() {
            let _ = self.permit.leave_note(GIVEN_BACK);
        }
    }
}

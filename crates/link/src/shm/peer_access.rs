//! How a requester revokes a peer's access to its memory.
//!
//! A responder that copies a remote iovec may be stopped (by a debugger, by `SIGSTOP`) at any point, and continue much
//! later, long after the requester has given up and reused the memory. So the requester has a *revoked word*, and the
//! responder a *busy word*:
//!
//! * responder, for each system call: busy = 1, full fence, check revoked, copy, busy = 0;
//! * requester: revoked = 1, full fence, check busy.
//!
//! At least one sees the other. Compared with a system call, two fences cost next to nothing.
//!
//! A responder that is stopped while it is busy may be right before its system call. So the call needs a permit
//! (`rkey_base::segment::OwnPermit`), which the requester revokes at the same time: a call that begins later fails. A
//! call that has begun runs to its end, because a process is not stopped inside one. So once the permit is revoked, only
//! threads that were in such a call at that moment matter, and each of them only until it has been observed stopped or
//! asleep in another call, or has used more processor time than a call takes ([`CallWatch`]). The requester need not
//! wait until they continue, and a busy word that stays set delays nothing.

use super::cma::PeerProcess;
use crate::PullError;
use crate::ring::{Half, KeepMapped};
use parking_lot::Mutex;
use rkey_base::process::CallWatch;
use rkey_base::segment::OwnPermit;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// The value of the busy word during a copy; at all other times it is 0.
const BUSY: u64 = 1;

/// The requester's control over the peer's access to its memory over a link. Cheap to clone; usable from any thread,
/// even after the link has ended.
#[derive(Clone, Debug)]
pub struct PeerAccess {
    own: Half,
    peer: Half,
    process: Arc<PeerProcess>,
    /// The requester's permit, if it allows access to its memory.
    permit: Option<Arc<OwnPermit>>,
    /// Watches the responder's threads from the moment when the permit was revoked.
    watch: Arc<Mutex<Option<CallWatch>>>,
    _keep: KeepMapped,
}

impl PeerAccess {
    pub(crate) fn new(
        own: Half,
        peer: Half,
        keep: KeepMapped,
        process: Arc<PeerProcess>,
        permit: Option<OwnPermit>,
    ) -> Self {
        Self {
            own,
            peer,
            process,
            permit: permit.map(Arc::new),
            watch: Arc::default(),
            _keep: keep,
        }
    }

    /// Requester: revokes the peer's access, which prevents further pulls and pushes. Pulls and pushes for remote iovecs
    /// that are still in flight fail at the responder with [`PullError::Gone`].
    pub fn revoke(&self) {
        self.own.revoked().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.revoke_permit();
    }

    /// Returns whether no further call can begin.
    fn revoke_permit(&self) -> bool {
        self.permit.as_ref().is_none_or(|permit| permit.revoke())
    }

    /// Requester, after [`revoke`](Self::revoke): whether no copy is in progress, so that the memory may be reused. A
    /// dead peer does not copy, a stopped one will not, and a peer whose busy word holds an invalid value is not worth
    /// waiting for.
    ///
    /// Threads are visible only in PID namespaces that we see, and a thread counts as asleep or frozen only if the
    /// kernel reports its current call. If the peer has many threads, the check gives up at `deadline` and returns
    /// false.
    pub fn is_at_rest(&self, deadline: Instant) -> bool {
        fence(Ordering::SeqCst);
        if self.peer.busy().load(Ordering::Acquire) != BUSY || self.process.is_dead() {
            return true;
        }
        if !self.revoke_permit() {
            return false;
        }
        let Some(mut watch) = self.watch.try_lock() else {
            // Another thread is checking, perhaps for a long time.
            return false;
        };
        let watch = watch.get_or_insert_with(CallWatch::begin);
        self.process.is_clear(watch, deadline)
    }

    /// The peer's process, if it has a PID in our namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Responder: marks the start of an access to the requester's memory.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, PullError> {
        self.own.busy().store(BUSY, Ordering::Relaxed);
        let inside = Inside(self);
        fence(Ordering::SeqCst);
        if self.peer.revoked().load(Ordering::Acquire) != 0 {
            return Err(PullError::Gone);
        }
        Ok(inside)
    }
}

/// While this value lives, the responder is accessing the requester's memory.
pub(crate) struct Inside<'a>(&'a PeerAccess);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.own.busy().store(0, Ordering::Release);
    }
}

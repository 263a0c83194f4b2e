//! Reaching into a requester's memory ends when the requester says so.
//!
//! A responder that pulls or pushes payload by reference may be stopped (by a debugger, by
//! `SIGSTOP`) at any point, and go on much later, when the requester has long given up and uses
//! the memory for something else. So the requester has a word that says "no more", and the
//! responder one that says "I am at it":
//!
//! * responder, for each system call: "at it" = 1, full fence, look at "no more", copy, "at it" = 0;
//! * requester: "no more" = 1, full fence, look at "at it".
//!
//! At least one sees the other. Beside a system call two fences cost nothing.
//!
//! A responder that is stopped while it is "at it" may be just before its system call. So the call
//! needs a permit (`rkey_base::segment::OwnPermit`), which the requester takes back together with
//! "no more": a call that begins later fails, whenever that is. A call that has begun ends by itself,
//! because a process is not stopped inside of one. So when the permit is gone, only threads matter that
//! were in such a call at that moment, and each of them no longer once it was seen stopped, asleep in
//! another call, or after more processor time than a call takes ([`CallWatch`]). There is no need to wait
//! until they go on, and a word that says "at it" for ever keeps nobody waiting.

use super::cma::PeerProcess;
use crate::PullError;
use crate::ring::{Half, Keep};
use rkey_base::process::CallWatch;
use rkey_base::segment::OwnPermit;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

/// The value of the word "I am at it" while it is so; at all other times it is 0.
const AT_IT: u64 = 1;

/// The requester's right to end all reaching into its memory over a link. Cheap to clone; usable
/// from any thread, and after the link itself has gone.
#[derive(Clone, Debug)]
pub struct Reach {
    own: Half,
    peer: Half,
    process: Arc<PeerProcess>,
    /// What the requester gave, if it lets anybody reach into its memory.
    permit: Option<Arc<OwnPermit>>,
    /// Watches the responder's threads since the permit was withdrawn.
    watch: Arc<Mutex<Option<CallWatch>>>,
    _keep: Keep,
}

impl Reach {
    pub(crate) fn new(
        own: Half,
        peer: Half,
        keep: Keep,
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

    /// Requester: no pull and no push begins from now on. Requests by reference that are still on
    /// their way will be refused by the responder.
    pub fn forbid(&self) {
        self.own.no_more().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.withdraw();
    }

    /// Says whether no call can begin any more.
    fn withdraw(&self) -> bool {
        self.permit.as_ref().is_none_or(|permit| permit.withdraw())
    }

    /// Requester, after [`forbid`](Self::forbid): whether none is under way any more, so that the
    /// memory may be used for something else. A dead peer does not reach anywhere, one that is stopped
    /// will not, and one whose word holds what nobody who keeps the rules writes there makes no promise
    /// that could be waited for.
    ///
    /// Where its threads are can be seen only in process namespaces that we see, and that one sleeps or is
    /// frozen only where the kernel tells us in which call its threads are. A look at many threads ends at
    /// `deadline`, without an answer.
    pub fn is_at_rest(&self, deadline: Instant) -> bool {
        fence(Ordering::SeqCst);
        if self.peer.at_it().load(Ordering::Acquire) != AT_IT || self.process.is_dead() {
            return true;
        }
        if !self.withdraw() {
            return false;
        }
        let mut watch = match self.watch.try_lock() {
            Ok(watch) => watch,
            // Nothing panics in the middle of a look.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is looking, perhaps for long.
            Err(TryLockError::WouldBlock) => return false,
        };
        let watch = watch.get_or_insert_with(CallWatch::begin);
        self.process.is_clear(watch, deadline)
    }

    /// The peer's process, if it has a number in our process namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Responder: announces that the requester's memory is about to be touched.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, PullError> {
        self.own.at_it().store(AT_IT, Ordering::Relaxed);
        let inside = Inside(self);
        fence(Ordering::SeqCst);
        if self.peer.no_more().load(Ordering::Acquire) != 0 {
            return Err(PullError::Gone);
        }
        Ok(inside)
    }
}

/// While it lives, the responder is reaching into the requester's memory.
pub(crate) struct Inside<'a>(&'a Reach);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.own.at_it().store(0, Ordering::Release);
    }
}

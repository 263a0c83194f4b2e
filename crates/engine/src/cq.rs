//! Completion queues.
//!
//! The engine produces, under whatever lock its owner holds; programs consume through
//! [`CqShared`] without that lock. A queue never has more entries than its depth: an entry that
//! finds it full is an *overrun*, which breaks the queue and its queue pairs, as the InfiniBand
//! specification says (11.6.3.2), because a completion would be lost.

use crate::{Completion, CqId};
use rkey_base::fifo::{Fifo, Full, Producer};
use std::sync::atomic::{AtomicBool, Ordering};

/// The consumers' side of a completion queue. Share it freely.
pub struct CqShared {
    id: CqId,
    entries: Fifo<Completion>,
    overrun: AtomicBool,
}

impl CqShared {
    /// The handle for the engine's commands.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Takes the oldest completions, fills `into` from its start and returns how many there were.
    #[inline]
    pub fn pop(&self, into: &mut [Completion]) -> usize {
        self.entries.pop_many(into)
    }

    /// Whether there is nothing to take. A peek: it takes no lock.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many completions wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many can wait.
    pub fn depth(&self) -> usize {
        self.entries.capacity()
    }

    /// Whether a completion was lost because the queue was full. It stays broken.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for CqShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqShared")
            .field("id", &self.id)
            .field("len", &self.len())
            .finish()
    }
}

/// What the next entry is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    /// Only a solicited entry, or one with an error, raises the event.
    Solicited,
    Any,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Quiet,
    /// The queue was armed: tell.
    Ready,
    /// This entry broke the queue: tell, once.
    Overrun,
    /// The queue was broken before; the entry is lost.
    Broken,
}

/// The engine's side of a completion queue.
pub(crate) struct Cq {
    pub(crate) shared: std::sync::Arc<CqShared>,
    producer: Producer<Completion>,
    armed: Armed,
    /// An entry was lost; nothing comes after it.
    broken: bool,
    /// Queue pairs that complete here, counted once for sends and once for receives.
    pub(crate) users: u32,
}

impl Cq {
    pub(crate) fn new(id: CqId, depth: u32) -> Self {
        let (producer, entries) = Fifo::new(depth as usize);
        let shared = CqShared {
            id,
            entries,
            overrun: AtomicBool::new(false),
        };
        Self {
            shared: std::sync::Arc::new(shared),
            producer,
            armed: Armed::No,
            broken: false,
            users: 0,
        }
    }

    pub(crate) fn arm(&mut self, solicited_only: bool) {
        // A queue that is armed for anything stays so (ibv_req_notify_cq(3)).
        if self.armed != Armed::Any {
            self.armed = if solicited_only {
                Armed::Solicited
            } else {
                Armed::Any
            };
        }
    }

    pub(crate) fn resize(&mut self, depth: u32) -> Result<(), Full> {
        self.producer.resize(depth as usize)
    }

    /// Takes out the entries of a queue pair.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.producer.retain(|entry| entry.qpn != qpn);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, entry: Completion, solicited: bool) -> Pushed {
        if self.broken || self.producer.push(entry).is_err() {
            return self.push_failed();
        }
        if self.armed == Armed::No {
            return Pushed::Quiet;
        }
        if self.armed == Armed::Any || solicited || !entry.status.is_success() {
            self.armed = Armed::No;
            return Pushed::Ready;
        }
        Pushed::Quiet
    }

    #[cold]
    fn push_failed(&mut self) -> Pushed {
        if std::mem::replace(&mut self.broken, true) {
            return Pushed::Broken;
        }
        self.shared.overrun.store(true, Ordering::Release);
        Pushed::Overrun
    }
}

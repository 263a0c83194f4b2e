//! Completion queues.
//!
//! The engine adds completions under its owner's lock; programs take them through [`CqShared`] without that lock. A
//! queue never has more entries than its depth: adding one to a full queue is an *overrun*. The added completion is lost,
//! so the queue and its queue pairs break, as in the InfiniBand specification (11.6.3.2).

use crate::{Completion, CqId};
use rkey_base::fifo::{Fifo, Full, Producer};
use std::sync::atomic::{AtomicBool, Ordering};

/// The clock of a queue whose completions are stamped.
pub type Clock = fn() -> u64;

/// A completion, and what the queue's [`Clock`] showed when it was added.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamped {
    /// The completion.
    pub completion: Completion,
    /// The time; 0 in a queue without a clock.
    pub time: u64,
}

/// The consumers' side of a completion queue. Any number of threads may share it.
pub struct CqShared {
    id: CqId,
    entries: Entries,
    overrun: AtomicBool,
}

/// The entries; those of a queue without a clock have no time, which saves memory.
enum Entries {
    Plain(Fifo<Completion>),
    Stamped(Fifo<Stamped>),
}

impl CqShared {
    /// The handle for the engine's commands.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Moves the oldest completions to the start of `into`, as many as fit; returns how many.
    #[inline]
    pub fn pop(&self, into: &mut [Completion]) -> usize {
        match &self.entries {
            Entries::Plain(entries) => entries.pop_many(into),
            Entries::Stamped(entries) => one_by_one(into, entries, |entry| entry.completion),
        }
    }

    /// Like [`Self::pop`], with the time of each.
    pub fn pop_stamped(&self, into: &mut [Stamped]) -> usize {
        match &self.entries {
            Entries::Stamped(entries) => entries.pop_many(into),
            Entries::Plain(entries) => one_by_one(into, entries, |completion| Stamped {
                completion,
                time: 0,
            }),
        }
    }

    /// Whether the queue is empty. Takes no lock.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match &self.entries {
            Entries::Plain(entries) => entries.is_empty(),
            Entries::Stamped(entries) => entries.is_empty(),
        }
    }

    /// How many completions the queue holds.
    pub fn len(&self) -> usize {
        match &self.entries {
            Entries::Plain(entries) => entries.len(),
            Entries::Stamped(entries) => entries.len(),
        }
    }

    /// The capacity of the queue, in completions.
    pub fn depth(&self) -> usize {
        match &self.entries {
            Entries::Plain(entries) => entries.capacity(),
            Entries::Stamped(entries) => entries.capacity(),
        }
    }

    /// Whether a completion was lost because the queue was full. The queue stays broken.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }
}

/// Takes entries one at a time, and converts each.
fn one_by_one<T: Copy + Send + Default, U>(
    into: &mut [U],
    entries: &Fifo<T>,
    turn: impl Fn(T) -> U,
) -> usize {
    let mut taken = 0;
    let mut entry = [T::default()];
    while taken < into.len() && entries.pop_many(&mut entry) == 1 {
        into[taken] = turn(entry[0]);
        taken += 1;
    }
    taken
}

impl std::fmt::Debug for CqShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqShared")
            .field("id", &self.id)
            .field("len", &self.len())
            .finish()
    }
}

/// Which entry raises the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    /// Only a solicited entry, or one with an error, raises the event.
    Solicited,
    Any,
}

/// The result of adding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Quiet,
    /// The queue was armed: raise an event.
    Ready,
    /// The queue was watched, and the entry matches: raise an event.
    Seen,
    ReadyAndSeen,
    /// The entry overran the queue: raise an event, once.
    Overrun,
    /// The queue was already broken; the entry is lost.
    Broken,
}

/// The producer's end of the queue.
enum Lane {
    Plain(Producer<Completion>),
    Stamped(Producer<Stamped>, Clock),
}

impl Lane {
    #[inline(always)]
    fn push(&mut self, entry: Completion) -> Result<(), Full> {
        match self {
            Self::Plain(producer) => producer.push(entry),
            Self::Stamped(producer, clock) => producer.push(Stamped {
                completion: entry,
                time: clock(),
            }),
        }
    }
}

/// The engine's side of a completion queue.
pub(crate) struct Cq {
    pub(crate) shared: std::sync::Arc<CqShared>,
    lane: Lane,
    armed: Armed,
    /// Whether the next solicited entry, or the next one with an error, raises a separate event.
    watched: bool,
    /// Whether an entry was lost; if so, no more are added.
    broken: bool,
    /// Queue pairs and receive queues that complete here. A queue pair counts once for sends and once for receives.
    pub(crate) users: u32,
}

impl Cq {
    pub(crate) fn new(id: CqId, depth: u32, clock: Option<Clock>) -> Self {
        let (lane, entries) = match clock {
            None => {
                let (producer, entries) = Fifo::new(depth as usize);
                (Lane::Plain(producer), Entries::Plain(entries))
            }
            Some(clock) => {
                let (producer, entries) = Fifo::new(depth as usize);
                (Lane::Stamped(producer, clock), Entries::Stamped(entries))
            }
        };
        let shared = CqShared {
            id,
            entries,
            overrun: AtomicBool::new(false),
        };
        Self {
            shared: std::sync::Arc::new(shared),
            lane,
            armed: Armed::No,
            watched: false,
            broken: false,
            users: 0,
        }
    }

    pub(crate) fn arm(&mut self, solicited_only: bool) {
        // A queue that is armed for any entry stays so (ibv_req_notify_cq(3)).
        if self.armed != Armed::Any {
            self.armed = if solicited_only {
                Armed::Solicited
            } else {
                Armed::Any
            };
        }
    }

    pub(crate) fn watch(&mut self) {
        self.watched = true;
    }

    pub(crate) fn resize(&mut self, depth: u32) -> Result<(), Full> {
        match &mut self.lane {
            Lane::Plain(producer) => producer.resize(depth as usize),
            Lane::Stamped(producer, _) => producer.resize(depth as usize),
        }
    }

    /// Removes the entries of a queue pair.
    pub(crate) fn forget(&mut self, qpn: u32) {
        match &mut self.lane {
            Lane::Plain(producer) => producer.retain(|entry| entry.qpn != qpn),
            Lane::Stamped(producer, _) => producer.retain(|entry| entry.completion.qpn != qpn),
        };
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, entry: Completion, solicited: bool) -> Pushed {
        if self.broken || self.lane.push(entry).is_err() {
            return self.push_failed();
        }
        if self.armed == Armed::No && !self.watched {
            return Pushed::Quiet;
        }
        let special = solicited || !entry.status.is_success();
        let seen = special && std::mem::take(&mut self.watched);
        if self.armed == Armed::Any || special && self.armed == Armed::Solicited {
            self.armed = Armed::No;
            return if seen {
                Pushed::ReadyAndSeen
            } else {
                Pushed::Ready
            };
        }
        if seen { Pushed::Seen } else { Pushed::Quiet }
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

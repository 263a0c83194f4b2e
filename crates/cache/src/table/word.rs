//! The life of one entry, in one atomic word.
//!
//! ```text
//!         claim           arm           publish            evict, if it has no users
//!   free ──────► claimed ─────► pending ───────► valid ─────────────────────────────► free
//!                   │              │ clear         │ clear
//!                   └────────────► dead ◄──────────┘
//!                                   │ last unpin, or at once      free
//!                                   └────────────────► queued ──────────► free
//! ```
//!
//! `clear` is what a monitor does: it takes no lock, allocates nothing and never waits for another thread. An entry
//! that is dead and unused is *orphaned*. The thread that orphans it (the monitor's, or the last user's) puts it on the
//! queue of dead entries, exactly once.
//!
//! The word has the number of users (16 bits), four flags, a generation (20 bits) and a count of hits (24 bits). The count is
//! at the top so that an overflow is harmless; [`Pin`] reports it in time.

use crate::sync::{AtomicU64, Ordering};

const USER: u64 = 1;
const USERS: u64 = 0xFFFF;
/// The maximum number of users. Threads that are about to be refused briefly count as users, so this is well below the
/// limit of the field.
const MOST_USERS: u64 = 0xF000;
const CLAIMED: u64 = 1 << 16;
const PENDING: u64 = 1 << 17;
const VALID: u64 = 1 << 18;
const QUEUED: u64 = 1 << 19;
const GENERATION: u64 = 1 << 20;
const GENERATIONS: u64 = 0xF_FFFF << 20;
const HIT: u64 = 1 << 40;
const OVERFLOW: u64 = 1 << 63;

/// How many hits [`Word::take_overflow`] takes at once.
pub(crate) const OVERFLOW_HITS: u64 = OVERFLOW / HIT;

/// The state of an entry.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

/// The result of trying to use an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// The entry is valid, and stays allocated until it is unpinned.
    Held,
    /// Like `Held`, and the caller must call [`Word::take_overflow`].
    HeldAndOverflowed,
    /// The entry is not valid (or has too many users). If `orphaned`, the caller must queue it.
    Refused {
        /// Another thread ended the entry, or stopped using it, while this try counted as a user, and so did not queue
        /// it.
        orphaned: bool,
    },
}

/// What [`Word::clear`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// The entry was valid or pending.
    pub(crate) ended: bool,
    /// The entry has no users: the caller must queue it.
    pub(crate) orphaned: bool,
}

/// What [`Word::free`] or [`Word::evict`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The slot is free; the entry had this many hits.
    Yes(u64),
    /// The slot is not free. After [`Word::free`], the entry has users, and the last user queues it again.
    No,
}

const fn is_orphan(after: u64) -> bool {
    after & (USERS | CLAIMED | PENDING | VALID | QUEUED) == CLAIMED
}

impl Word {
    /// An empty slot.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins an entry in a free slot, with the caller as its user. Only one thread at a time claims or frees slots.
    pub(crate) fn claim(&self) {
        // Add instead of storing, because threads that try to pin the free slot briefly count as users.
        self.0.fetch_add(CLAIMED | USER, Ordering::AcqRel);
    }

    /// Makes a claimed entry pending: from now on, changes end it. Its range must be stored already.
    pub(crate) fn arm(&self) {
        self.0.fetch_or(PENDING, Ordering::SeqCst);
    }

    /// Makes a pending entry valid. `false` if it was cleared in the meantime.
    pub(crate) fn publish(&self) -> bool {
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
                (word & PENDING != 0).then_some(word & !PENDING | VALID)
            })
            .is_ok()
    }

    /// Uses the entry if it is valid.
    #[inline]
    pub(crate) fn pin(&self) -> Pin {
        let before = self.0.fetch_add(USER + HIT, Ordering::Acquire);
        if before & VALID != 0 && before & USERS < MOST_USERS {
            if before & OVERFLOW == 0 {
                Pin::Held
            } else {
                Pin::HeldAndOverflowed
            }
        } else {
            Pin::Refused {
                orphaned: self.unpin(),
            }
        }
    }

    /// Takes [`OVERFLOW_HITS`] hits out of the word. `false` if another thread has done so.
    pub(crate) fn take_overflow(&self) -> bool {
        self.0.fetch_and(!OVERFLOW, Ordering::Relaxed) & OVERFLOW != 0
    }

    /// Ends one use. `true` if this orphaned the entry: the caller must queue it.
    #[inline]
    #[must_use]
    pub(crate) fn unpin(&self) -> bool {
        is_orphan(self.0.fetch_sub(USER, Ordering::AcqRel) - USER)
    }

    /// Whether the entry is valid at this moment.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.0.load(Ordering::Acquire) & VALID != 0
    }

    /// Whether the slot has an entry that a change of memory can end.
    #[inline]
    pub(crate) fn is_valid_or_pending(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (VALID | PENDING) != 0
    }

    /// Whether the slot has a valid entry without users.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) & (VALID | USERS) == VALID
    }

    /// The generation, which distinguishes the slot's entries.
    pub(crate) fn generation(&self) -> u64 {
        self.0.load(Ordering::Acquire) & GENERATIONS
    }

    /// The hits that are counted in the word.
    pub(crate) fn hits(&self) -> u64 {
        self.0.load(Ordering::Relaxed) / HIT
    }

    /// Ends the entry. Lock-free.
    pub(crate) fn clear(&self) -> Cleared {
        let before = self.0.fetch_and(!(VALID | PENDING), Ordering::SeqCst);
        let ended = before & (VALID | PENDING) != 0;
        Cleared {
            ended,
            orphaned: ended && is_orphan(before & !(VALID | PENDING)),
        }
    }

    /// Marks an orphan as queued. Returns `false` if another thread has queued it, whether or not its slot has been freed since.
    pub(crate) fn queue(&self) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
                is_orphan(word).then_some(word | QUEUED)
            })
            .is_ok()
    }

    /// Frees the slot of a queued entry, unless the entry has users.
    pub(crate) fn free(&self) -> Freed {
        self.free_if(|word| word & USERS == 0, QUEUED)
    }

    /// Frees the slot of an entry, if it is valid and has no users.
    pub(crate) fn evict(&self) -> Freed {
        self.free_if(|word| word & (VALID | USERS) == VALID, 0)
    }

    /// Frees the slot if `may` returns `true`; if not, clears the flags in `otherwise`.
    fn free_if(&self, may: impl Fn(u64) -> bool, otherwise: u64) -> Freed {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (after, freed) = if may(word) {
                let next = word.wrapping_add(GENERATION) & GENERATIONS;
                (next, Freed::Yes(word / HIT))
            } else {
                (word & !otherwise, Freed::No)
            };
            match self
                .0
                .compare_exchange(word, after, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return freed,
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_becomes_valid_once_published_and_free_after_its_last_use() {
        let word = Word::new();
        assert_eq!(word.pin(), Pin::Refused { orphaned: false });
        word.claim();
        assert!(!word.clear().ended);
        word.arm();
        assert!(word.is_valid_or_pending() && !word.is_valid());
        assert_eq!(word.pin(), Pin::Refused { orphaned: false });
        assert!(word.publish() && word.is_valid());
        assert!(!word.is_idle());
        assert!(!word.unpin());
        assert!(word.is_idle());
        assert_eq!(word.pin(), Pin::Held);
        assert_eq!(word.evict(), Freed::No);
        let cleared = word.clear();
        assert!(cleared.ended && !cleared.orphaned);
        assert!(word.unpin());
        assert!(word.queue() && !word.queue());
        // Three attempts to use the entry count as hits here, although only one succeeded.
        assert_eq!(word.free(), Freed::Yes(3));
        assert_eq!(word.hits(), 0);
    }

    #[test]
    fn a_pending_entry_that_was_cleared_never_becomes_valid() {
        let word = Word::new();
        word.claim();
        word.arm();
        assert!(word.clear().ended);
        assert!(!word.publish());
        assert!(word.unpin());
        assert!(!word.clear().ended);
    }

    #[test]
    fn no_hit_is_lost_when_the_count_overflows() {
        let word = Word::new();
        word.claim();
        word.arm();
        assert!(word.publish());
        assert!(!word.unpin());
        let mut taken = 0;
        for _ in 0..OVERFLOW_HITS + 10 {
            if word.pin() == Pin::HeldAndOverflowed && word.take_overflow() {
                taken += OVERFLOW_HITS;
            }
            assert!(!word.unpin());
        }
        assert_eq!(taken + word.hits(), OVERFLOW_HITS + 10);
    }

    #[test]
    fn an_entry_refuses_more_users_than_it_can_count() {
        let word = Word::new();
        word.claim();
        word.arm();
        assert!(word.publish());
        for _ in 1..MOST_USERS {
            assert_eq!(word.pin(), Pin::Held);
        }
        assert_eq!(word.pin(), Pin::Refused { orphaned: false });
        assert!(word.is_valid());
    }
}

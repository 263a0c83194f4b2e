//! Direct leases: the initiator has the owner's memory mapped and copies by itself.
//!
//! No request travels and the owner's processor does nothing, so an 8-byte write costs a few
//! nanoseconds and a large one what `memcpy` costs. What makes this a *lease* and not a gift is
//! that the owner can take it back and knows when it is back:
//!
//! * The owner keeps a *generation word* for each lease in its half of the link. The initiator
//!   keeps an *in-use word* for each lease in its own half.
//! * The initiator announces (in-use word = where the copy begins), then looks at the generation
//!   word, and copies only if it is the one of its grant; then it clears the in-use word. Long copies
//!   do that anew every 256 KiB.
//! * The owner revokes by clearing the generation word, issues a heavy barrier
//!   (`rkey_base::barrier`), and waits until the in-use word is clear. After the barrier, every
//!   copy either has been announced visibly, or will see that the lease is gone.
//!
//! The barrier makes the announcement a plain store (7.5 ns less than an atomic exchange per
//! operation). If one of the two processes could not register for it, the initiator issues a full
//! fence instead. A process that has ended does not copy any more: it counts as idle. One that
//! is stopped in the middle of a copy does not, and revoking runs into its time limit. Then the owner
//! parts with the pages: the in-use word says which 512 KiB the copy can touch at most, the owner
//! takes private copies of those ([`rkey_base::segment::Arena::detach`]), and gives the lease up
//! ([`LeaseBoard::abandon`]). The peer ends its copy in pages that are nobody's any more.
//!
//! A lease is over shared memory of the owner that cannot shrink; a lease for reading only needs
//! memory that is sealed against writable mappings (`rkey_base::segment::Sharing::ReadOnly`),
//! because a descriptor by itself protects nothing. One segment per group of peers that trust
//! each other that far: whoever has the descriptor can map all of it.

use std::ops::Range;

mod board;
mod grant;
mod map;

pub use board::{LeaseBoard, StillInUse};
pub use grant::{Grant, LeaseId};
pub use map::{DirectError, DirectMap, LeaseClient};

pub(crate) use board::Board;
pub(crate) use map::Client;

/// Bytes per announcement: how long a revocation may have to wait.
const CHUNK: u64 = 256 << 10;

/// What the in-use word says about a copy that begins `offset` bytes into the lease.
#[inline(always)]
const fn announcement(offset: u64) -> u64 {
    1 + offset / CHUNK
}

/// The bytes of the lease that an announced copy can touch; `None` if nothing is announced.
const fn announced(word: u64) -> Option<Range<u64>> {
    match word.checked_sub(1) {
        None => None,
        Some(chunk) => {
            let start = chunk.saturating_mul(CHUNK);
            // It may begin anywhere in the chunk, and is as long as one at most.
            Some(start..start.saturating_add(2 * CHUNK))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_cover_their_copies() {
        assert_eq!(announced(0), None);
        for offset in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 1 << 40] {
            let covered = announced(announcement(offset)).unwrap();
            assert!(covered.start <= offset && offset + CHUNK <= covered.end);
            assert_eq!(covered.end - covered.start, 2 * CHUNK);
        }
        // A peer can write anything there.
        assert_eq!(announced(u64::MAX), Some(u64::MAX..u64::MAX));
    }
}

//! Direct leases: the initiator maps the owner's memory and copies to and from it directly.
//!
//! No request travels and the owner's processor does nothing, so an 8-byte write takes a few nanoseconds, and a large
//! one as long as `memcpy`. It is a *lease* because the owner can revoke it and can tell when the last copy has ended:
//!
//! * The owner keeps a *generation word* for each lease in its half of the link. The initiator keeps an *in-use word*
//!   for each lease in its own half.
//! * The initiator announces a copy (it sets the in-use word to the 256 KiB chunk in which the copy begins), then reads
//!   the generation word, copies only if the word matches its lease, and clears the in-use word. Long copies repeat
//!   this every 256 KiB.
//! * The owner revokes by clearing the generation word, issues a heavy barrier (`rkey_base::barrier`), and waits until
//!   the in-use word is clear. After the barrier, every copy is either visibly announced or will see that the lease is
//!   revoked.
//!
//! The barrier makes the announcement a plain store (7.5 ns less than an atomic exchange per operation). If one of the
//! two processes could not register for it, the initiator issues a full fence instead. A process that has ended no
//! longer copies and counts as idle. A process that is stopped during a copy does not finish it, and revoking reaches
//! its time limit. Then the owner detaches the pages: the in-use word says which 512 KiB the copy can touch at most.
//! The owner takes private copies of those ([`rkey_base::segment::Arena::detach`]) and abandons the lease
//! ([`LeaseBoard::abandon`]). The peer finishes its copy in pages that are no longer the owner's.
//!
//! A lease covers shared memory of the owner that cannot shrink; a read lease also needs memory that is sealed against
//! writable mappings (`rkey_base::segment::Sharing::ReadOnly`), because a descriptor by itself protects nothing. Use
//! one segment per group of peers that trust each other, because the descriptor maps all of it.

use std::ops::Range;

mod board;
mod map;
mod offer;

pub use board::LeaseBoard;
pub use map::{DirectError, DirectMap, LeaseClient};
pub use offer::{LeaseId, LeaseOffer};

pub(crate) use board::Board;
pub(crate) use map::Client;

/// The longest copy under one announcement, in bytes. A revocation waits for at most one such copy.
const CHUNK: u64 = 256 << 10;

/// The in-use word for a copy that begins `offset` bytes into the lease.
#[inline(always)]
const fn announcement(offset: u64) -> u64 {
    1 + offset / CHUNK
}

/// The bytes of the lease that an announced copy can touch; `None` without an announcement.
const fn announced(word: u64) -> Option<Range<u64>> {
    match word.checked_sub(1) {
        None => None,
        Some(chunk) => {
            let start = chunk.saturating_mul(CHUNK);
            // The copy may begin anywhere in the chunk and is at most one chunk long.
            Some(start..start.saturating_add(2 * CHUNK))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_covers_the_chunk_that_is_copied() {
        assert_eq!(announced(0), None);
        for offset in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 1 << 40] {
            let covered = announced(announcement(offset)).unwrap();
            assert!(covered.start <= offset && offset + CHUNK <= covered.end);
            assert_eq!(covered.end - covered.start, 2 * CHUNK);
        }
        // The word is untrusted input.
        assert_eq!(announced(u64::MAX), Some(u64::MAX..u64::MAX));
    }
}

//! Direct leases: the initiator has the owner's memory mapped and copies by itself.
//!
//! No request travels and the owner's processor does nothing, so an 8-byte write costs a few
//! nanoseconds and a large one what `memcpy` costs. What makes this a *lease* and not a gift is
//! that the owner can take it back and knows when it is back:
//!
//! * The owner keeps a *generation word* for each lease in its half of the link. The initiator
//!   keeps an *in-use word* for each lease in its own half.
//! * The initiator announces (in-use word = generation), then looks at the generation word, and
//!   copies only if it is the one of its grant; then it clears the in-use word. Long copies do
//!   that anew every 256 KiB.
//! * The owner revokes by clearing the generation word, issues a heavy barrier
//!   (`rkey_base::barrier`), and waits until the in-use word is clear. After the barrier, every
//!   copy either has been announced visibly, or will see that the lease is gone.
//!
//! The barrier makes the announcement a plain store (7.5 ns less than an atomic exchange per
//! operation). If one of the two processes could not register for it, the initiator issues a full
//! fence instead. A process that has ended does not copy any more: it counts as idle. One that
//! is stopped in the middle of a copy does not, and revoking runs into its time limit.
//!
//! A lease is over shared memory of the owner that cannot shrink; a lease for reading only needs
//! memory that is sealed against writable mappings (`rkey_base::segment::Sharing::ReadOnly`),
//! because a descriptor by itself protects nothing. One segment per group of peers that trust
//! each other that far: whoever has the descriptor can map all of it.

mod board;
mod grant;
mod map;

pub use board::{LeaseBoard, StillInUse};
pub use grant::{Grant, LeaseId};
pub use map::{DirectError, DirectMap, LeaseClient};

pub(crate) use board::Board;
pub(crate) use map::Client;

//! Segments of memory that two processes share.
//!
//! All of them are memfds (`memfd_create(2)`): they have no name in any file system and vanish with their last user.
//! Before a descriptor is passed on, *seals* restrict what the receiver can do with it; a receiver checks the seals
//! that protect it. Two kinds:
//!
//! * An [`OwnSegment`] can be written by its creator only; a peer maps it read-only as a [`PeerSegment`]. Two
//!   processes that talk have one each, so everything that a peer can alter is in one mapping.
//! * An [`Arena`] is memory for a program; a peer may be allowed to map it ([`PeerArena`]) and, if the arena allows it,
//!   to write it. If a peer cannot be made to stop writing, the owner detaches the pages.
//!
//! A third kind holds no data: an [`OwnPermit`] is a page that its owner removes to end a peer's access to the owner's
//! memory ([`PeerPermit`]).
//!
//! A segment that cannot shrink never raises `SIGBUS`, so these bytes may be touched by plain accesses, through the
//! views of [`crate::shared`]. A forked child does not inherit the mappings of the engine (`MADV_DONTFORK`).

mod arena;
mod mapping;
mod own;
mod peer;
mod permit;

pub use arena::{Arena, PeerArena, Sharing};
pub use own::{OwnSegment, PublishedSegment};
pub use peer::PeerSegment;
pub use permit::{OwnPermit, PeerPermit};

#[cfg(all(test, not(miri)))]
mod tests;

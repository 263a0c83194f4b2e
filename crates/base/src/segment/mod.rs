//! Segments of memory that two processes share.
//!
//! All of them are memfds (`memfd_create(2)`): they have no name in any file system and vanish with their last user.
//! Before a descriptor is passed on, *seals* take away what the receiver could do with it; a receiver checks the seals
//! that protect itself. Two kinds:
//!
//! * An [`OwnSegment`] can be written by its creator only; a peer maps it as a [`PeerSegment`], for reading. Two
//!   processes that talk have one each, so everything that a peer can alter is in one place.
//! * An [`Arena`] is memory for a program; a peer may be given the right to map it ([`PeerArena`]) and, if the arena
//!   was made for that, to write it. What a peer cannot be made to stop writing, its owner detaches.
//!
//! And one that is hardly memory at all: an [`OwnPermit`] is a page that its owner takes away to end what a peer does
//! with the owner's memory ([`PeerPermit`]).
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

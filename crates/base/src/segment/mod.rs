//! Segments of memory that two processes share.
//!
//! All of them are memfds (`memfd_create(2)`): they have no name in any file system and vanish with their last user.
//! Before a descriptor is passed on, *seals* take away what the receiver could do with it; a receiver checks the seals
//! that protect itself. Two kinds:
//!
//! * An [`OwnSegment`] can be written by its creator only; a peer maps it as a [`PeerSegment`], for reading. Two
//!   processes that talk have one each, so everything that a peer can alter is in one place.
//! * An [`Arena`] is memory for a program; a peer may be given the right to map it ([`PeerArena`]) and, if the arena
//!   was made for that, to write it.
//!
//! A segment that cannot shrink never raises `SIGBUS`, so these bytes may be touched by plain accesses, through the
//! views of [`crate::shared`]. A forked child does not inherit the mappings of the engine (`MADV_DONTFORK`).

mod arena;
mod mapping;
mod own;
mod peer;

pub use arena::{Arena, PeerArena, Sharing};
pub use own::OwnSegment;
pub use peer::PeerSegment;

#[cfg(all(test, not(miri)))]
mod tests;

//! The rings of the loopback and shared-memory links.
//!
//! Each side of a link owns a block of memory, its *half*, that only it writes. A half holds the
//! owner's slots and payload, the owner's acknowledgement of the other half's slots, and the
//! owner's sleep word. Nothing here knows where the memory comes from: [`End`] gets two
//! pointers and an object that keeps them valid.
//!
//! | offset in a half | what |
//! | --- | --- |
//! | 0 | identity: magic, version, sizes (read once, when the link is made) |
//! | 256 | ack word: `consumed: u32` in the low 32 bits, `responses: u32` in the high 32 bits |
//! | 384 | sleep word: an epoch, odd while the owner sleeps |
//! | 512 | revoked word: not 0 once the peer may not access the owner's memory (requester's half) |
//! | 640 | busy word: not 0 while the owner copies from or to the other's memory (responder's half) |
//! | 2048 | 256 lease generation words of 8 bytes (responder's half) |
//! | 4096 | 256 in-use words, 64 bytes apart (requester's half) |
//! | 20480 | slots of 256 bytes |
//! | after the slots | payload ring, in fragments aligned to 64 bytes |
// UNSAFETY: this is where shared memory is read and written through raw pointers; the invariants
// are stated at `Half` and upheld by the private constructors.
#![allow(unsafe_code)]

mod end;
mod half;
mod receiver;
mod sender;
mod slot;

pub use end::PollView;
pub(crate) use end::{End, Role};
pub(crate) use half::{Geometry, Half, HeapHalf, KeepMapped, LEASES};
pub(crate) use slot::{IN_SLOT_MAX, read_bytes};

#[cfg(test)]
mod tests;

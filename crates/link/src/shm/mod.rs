//! Shared memory between two processes of one host. (Protocol notes follow.)

mod link;

pub use crate::ring::Peek;
pub use link::ShmLink;

//! What a program makes on a device: completion queues and channels, queue pairs, shared receive queues, regions,
//! windows, and memory that peers can map.

pub mod channel;
pub mod cq;
mod membership;
mod null_region;
pub mod qp;
pub mod region;
pub mod shared_memory;
pub(crate) mod srq;
pub mod window;

pub(crate) use membership::{Adverts, Membership};

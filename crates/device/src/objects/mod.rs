//! The objects that a program creates on a device: completion queues and channels, queue pairs, shared receive queues, regions,
//! windows, and memory that peers can map.

mod adverts;
pub(crate) mod async_queues;
pub mod channel;
mod counter_calls;
pub(crate) mod counters;
pub mod cq;
mod cq_notify;
pub(crate) mod event_queue;
mod magazines;
mod membership;
mod null_region;
pub mod qp;
pub mod qp_address;
mod qp_table;
pub mod region;
pub mod shared_memory;
pub mod sleeper;
pub mod spin;
pub(crate) mod srq;
pub mod window;

pub(crate) use adverts::Adverts;
pub(crate) use counters::AccessCounters;
pub(crate) use cq_notify::CqTable;
pub(crate) use membership::Membership;
pub(crate) use qp_table::QpTable;

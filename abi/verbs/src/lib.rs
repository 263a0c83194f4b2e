//! A drop-in `libibverbs.so.1` on the rkey software device.
//!
//! The library translates flags on the way in, and error numbers and statuses on the way out. The device below it
//! checks every access and executes the requests.
//!
//! | folder or file | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of `infiniband/verbs.h` |
//! | [`object`] | handles, and their validation |
//! | `raw_lock` | the lock that a program holds between two calls of an extended interface |
//! | [`translate`] | flags, error numbers, texts |
//! | [`device`] | the list of devices, contexts, queries |
//! | [`memory`] | protection domains, regions, windows, device memory, buffers |
//! | [`completion`] | completion queues and channels |
//! | [`queues`] | queue pairs, and what belongs to them |
//! | [`events`] | fetching and acknowledging events |
//! | [`compat`] | what programs look for and this device lacks: device files, vendors' functions, newer objects |
//! | [`tables`] | the function tables of contexts, completion queues and queue pairs; opening and closing a device |
//! | `export` | the exported symbols and their versions |
//!
//! A folder depends only on those above it in this table.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

pub mod compat;
pub mod completion;
pub mod device;
pub mod events;
pub mod memory;
pub mod object;
pub mod queues;
mod raw_lock;
pub mod sys;
pub mod tables;
pub mod translate;

#[allow(unsafe_code)]
// UNSAFETY: assembly that defines the exported symbols.
mod export;

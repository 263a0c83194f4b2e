//! A drop-in `librdmacm.so.1` on the rkey software device: connections by address and port.
//!
//! The connection manager in `rkey-cm`, which `rkey_device::cm` runs, does the work. This library translates between identifiers,
//! event channels and events on one side and connections, messages and states on the other. Queue pairs come from the verbs
//! front end, through the same functions that programs call.
//!
//! The connection manager's lock protects [`state`], which program threads share with the connection manager's thread.
//! Identifiers, channels and events are allocated from pools, like the objects of verbs.
//!
//! | folder or file | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of `rdma/rdma_cma.h` |
//! | [`lookup`] | addresses and names |
//! | [`state`] | identifiers and channels under the connection manager's lock; access to the connection manager |
//! | [`objects`] | identifiers, event channels and events, as programs see them |
//! | [`queues`] | wrappers of verbs calls; queue pairs and their attributes; shared receive queues |
//! | [`fetching`] | what happens when a program fetches an event |
//! | [`calls`] | the calls on identifiers |
//! | [`rsocket`] | sockets over RDMA |
//! | `export` | the exported symbols |
//!
//! A folder depends only on those above it in this table.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

pub mod calls;
pub mod fetching;
pub mod lookup;
pub mod objects;
pub mod queues;
pub mod rsocket;
pub mod state;
pub mod sys;

#[allow(unsafe_code)]
// UNSAFETY: assembly that defines the exported symbols.
mod export;

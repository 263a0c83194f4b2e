//! A drop-in `librdmacm.so.1` on the rkey software device: connections by address and port.
//!
//! The connection manager of `rkey-cm`, which `rkey_device::cm` runs, does the work. This library translates: identifiers,
//! event channels and events on one side, connections, messages and states on the other. Queue pairs are those of the
//! verbs front end; this library calls the functions that programs call.
//!
//! The state that program threads share with the connection manager's thread is in [`hub`], under the connection manager's lock.
//! Identifiers, channels and events are in pools, like the objects of verbs.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of `rdma/rdma_cma.h` |
//! | `export`, [`absent`] | the exported symbols; those that this library does not support yet |
//! | [`hub`], [`front`] | identifiers and channels under the connection manager's lock; the connection manager |
//! | [`id`], [`channel`], [`bell`], [`event`] | identifiers, event channels and events, as programs see them; the descriptors of channels |
//! | [`view`] | what inspections show of identifiers |
//! | [`fetch`], [`unpolled`] | what happens when a program fetches an event; completions that come before a disconnection |
//! | [`ids`], [`address`], [`ports`], [`bind`], [`resolve`], [`options`] | identifiers and their addresses, ports and paths |
//! | [`connect`], [`accept`] | the calls of the active and the passive side |
//! | [`multicast`], [`later`] | multicast groups; the calls that were added after rdma-core 44 |
//! | [`endpoint`], [`addrinfo`], [`devices`] | the calls that combine others, and look things up |
//! | [`rsocket`] | sockets over RDMA |
//! | [`verbs`], [`qp`], [`qp_attr`], [`srq`] | the calls of verbs; queue pairs and their attributes; shared receive queues |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod absent;
pub mod accept;
pub mod address;
pub mod addrinfo;
pub mod bell;
pub mod bind;
pub mod channel;
pub mod connect;
pub mod devices;
pub mod endpoint;
pub mod event;
pub mod fetch;
pub mod front;
pub mod hub;
pub mod id;
pub mod ids;
pub mod later;
pub mod multicast;
pub mod options;
pub mod ports;
pub mod qp;
pub mod qp_attr;
pub mod resolve;
pub mod rsocket;
pub mod srq;
pub mod sys;
pub mod unpolled;
pub mod verbs;
pub mod view;

#[allow(unsafe_code)]
// UNSAFETY: assembly that makes the exported symbols.
mod export;

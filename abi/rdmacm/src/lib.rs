//! A drop-in `librdmacm.so.1` on the rkey software device: connections by address and port.
//!
//! The connection manager in `rkey-cm`, which `rkey_device::cm` runs, does the work. This library translates between identifiers,
//! event channels and events on one side and connections, messages and states on the other. Queue pairs come from the verbs
//! front end, through the same functions that programs call.
//!
//! The connection manager's lock protects the state in [`hub`], which program threads share with the connection manager's thread.
//! Identifiers, channels and events are allocated from pools, like the objects of verbs.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of `rdma/rdma_cma.h` |
//! | `export`, [`absent`] | the exported symbols; the calls that this library does not support yet |
//! | [`hub`], `handler`, [`member`], [`front`] | identifiers and channels under the connection manager's lock; access to the connection manager |
//! | [`id`], [`channel`], [`event`] | identifiers, event channels and events, as programs see them |
//! | [`event_fd`] | the descriptor of an event channel |
//! | [`view`] | what `rkey ls` shows of identifiers |
//! | [`next_event`], [`fetch`], [`unpolled`] | what happens when a program fetches an event; completions that precede a disconnection |
//! | [`ids`] | creating, destroying and migrating identifiers |
//! | [`address`], [`ports`], [`bind`], [`resolve`], [`path`], [`options`] | the addresses, ports, paths and options of identifiers |
//! | [`connect`], [`accept`] | the calls on the active and the passive side |
//! | [`multicast`], [`later`] | multicast groups; calls added after rdma-core 44 |
//! | [`endpoint`], [`addrinfo`], [`devices`] | calls that combine others; name and device lookups |
//! | [`rsocket`] | sockets over RDMA |
//! | [`verbs`], [`qp`], [`qp_attr`], [`srq`] | wrappers of verbs calls; queue pairs and their attributes; shared receive queues |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod absent;
pub mod accept;
pub mod address;
pub mod addrinfo;
pub mod bind;
pub mod channel;
pub mod connect;
pub mod devices;
pub mod endpoint;
pub mod event;
pub mod event_fd;
pub mod fetch;
pub mod front;
mod handler;
pub mod hub;
pub mod id;
pub mod ids;
pub mod later;
pub mod member;
pub mod multicast;
pub mod next_event;
pub mod options;
pub mod path;
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
// UNSAFETY: assembly that defines the exported symbols.
mod export;

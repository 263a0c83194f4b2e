//! A drop-in `libibverbs.so.1` on the rkey software device.
//!
//! The library translates flags on the way in, and error numbers and statuses on the way out. The device below it
//! checks every access and executes the requests.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of `infiniband/verbs.h` |
//! | `export`, [`private`] | the exported symbols and their versions |
//! | [`object`] | handles, and their validation |
//! | [`tables`] | the function tables of contexts, completion queues and queue pairs; opening and closing a
//! device |
//! | [`device`], [`context`], [`query`], [`port`], [`gid`] | the device and its attributes |
//! | [`pd`], [`mr`], [`mr_ex`], [`rereg`], [`advise`], [`mw`], [`dm`], [`dm_mr`], [`buf`] | protection domains, regions, windows, device memory, buffers |
//! | `raw_lock` | the lock that a program holds between two calls of an extended interface |
//! | [`cq`], [`channel`] | completion queues and channels |
//! | [`registry`], [`acks`], [`completion_event`], [`async_event`] | events: whose they are, fetching and acknowledging them |
//! | [`ece`] | options that peers agree on before they connect: there are none |
//! | [`cq_cursor`] | the cursor of extended completion queues |
//! | [`limits`], [`clock`] | the limits that the device reports; the clocks of timestamps |
//! | [`qp`], [`creation`], [`bind`], [`builder`], [`modify`], [`post`], [`srq`], [`xrc`], [`ah`], [`mcast`], [`flow`], [`wq`] | queue
//! pairs and their parts |
//! | [`flags`], [`status`], [`errno`], [`strings`], [`convert`] | translation tables |
//! | [`absent`] | objects of later versions that this device lacks |
//! | [`fork`], [`interpose`], [`emulated`] | `fork`, and the device files that programs look for |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod absent;
pub mod acks;
pub mod advise;
pub mod ah;
pub mod async_event;
pub mod bind;
pub mod buf;
pub mod builder;
pub mod channel;
pub mod clock;
pub mod completion_event;
pub mod context;
pub mod convert;
pub mod cq;
pub mod cq_cursor;
pub mod creation;
pub mod device;
pub mod dm;
pub mod dm_mr;
pub mod ece;
pub mod emulated;
pub mod errno;
pub mod flags;
pub mod flow;
pub mod fork;
pub mod gid;
pub mod interpose;
pub mod limits;
pub mod mcast;
pub mod modify;
pub mod mr;
pub mod mr_ex;
pub mod mw;
pub mod object;
pub mod pd;
pub mod port;
pub mod post;
pub mod private;
pub mod qp;
pub mod query;
mod raw_lock;
pub mod registry;
pub mod rereg;
pub mod srq;
pub mod status;
pub mod strings;
pub mod sys;
pub mod tables;
pub mod wq;
pub mod xrc;

#[allow(unsafe_code)]
// UNSAFETY: assembly that defines the exported symbols.
mod export;

//! The software RDMA device: everything that the layers below leave out on purpose.
//!
//! Core, engine and links are machines without surroundings. This crate gives them a process to live
//! in: threads, clocks, sockets, configuration, discovery of other devices, waiting, inspection. It is
//! the only crate with threads and clocks, and the objects here are what every front end (the Rust API,
//! verbs, libfabric, uDAPL) stands on.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`device`] | [`Device`]: opening, limits, events, end of life |
//! | [`config`] | what can be set, and the `RKEY_*` variables |
//! | [`objects`] | completion queues and channels, queue pairs, shared receive queues, regions, windows, shareable memory |
//! | [`connect`] | listen, accept and connect by address |
//! | [`peers`] | other devices: finding them, links to and from them, whose they are; [`names`] |
//! | `reclaim` | direct leases, and taking memory back from peers that reach it by themselves |
//! | `progress` | who drives the engine: pollers, posters, or the engine thread |
//! | [`inspect`] | what a device looks like from outside; [`denials`] (refused accesses in the log) and [`describe`] |
//! | [`event`] | things that happen to a device outside of completions |
//! | [`threads`], [`time`] | threads and the clock, for front ends as well |
//! | [`fork`] | what a forked child may (not) do with its parent's device |
//!
//! # Who drives the engine
//!
//! A program that polls drives the engine itself, on its own core; the engine thread then sleeps and
//! only looks now and then whether the program still polls. A program that waits or does other things
//! leaves the engine to the thread, which sleeps until a peer rings. `progress` has the details.

pub mod config;
pub mod connect;
pub mod device;
pub mod error;
pub mod event;
pub mod fork;
#[doc(hidden)]
pub mod fuzzing;
pub mod inspect;
mod lifecycle;
pub mod objects;
pub mod peers;
mod progress;
mod reclaim;
mod shared;
pub mod threads;
pub mod time;

pub use config::{Config, ConfigError, DirectCopy, Explain, Share};
pub use connect::{Accepting, Incoming, Listener, Peer, QpAddress, Reservation};
pub use device::Device;
pub use error::DeviceError;
pub use event::AsyncEvent;
pub use inspect::copy_paths::{CopyPaths, copy_paths};
pub use inspect::denial_view::{DenialView, GuesserView};
pub use inspect::{Inspection, Listing, OtherVersion, list_all, list_devices};
pub use objects::channel::Channel;
pub use objects::counters::{CountListener, Counter};
pub use objects::cq::Cq;
pub use objects::qp::{Qp, QpOptions};
pub use objects::shared_memory::SharedMemory;
pub use objects::srq::Srq;
pub use peers::process::Departed;

// Modules of public functions and types, by the short names that front ends use.
pub use inspect::{denial_view, denials, describe};
pub use peers::names;

pub use rkey_base as base;
pub use rkey_core as core;
pub use rkey_engine as engine;
pub use rkey_link as link;

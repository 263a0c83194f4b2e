//! The software RDMA device: everything that the layers below leave out on purpose.
//!
//! Core, engine and links are machines without surroundings. This crate gives them a process to live
//! in: threads, clocks, sockets, configuration, discovery of other devices, waiting, inspection. It is
//! the only crate with threads and clocks, and the objects here are what every front end (the Rust API,
//! verbs, libfabric, uDAPL) stands on.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`device`] | [`Device`]: opening, limits, domains, windows, end of life |
//! | [`config`] | what can be set, and the `RKEY_*` variables |
//! | [`queue`], [`qp`] | completion queues, channels, shared receive queues, queue pairs |
//! | [`region`], [`window`] | registering and closing regions; windows |
//! | [`shared_memory`], [`lease`] | memory that peers can map; mapping a peer's |
//! | [`connect`] | listen, accept and connect by address |
//! | [`names`] | how devices of one host find each other |
//! | `progress`, `thread` | who drives the engine: pollers, posters, or the engine thread |
//! | `discovery`, `control` | links to other devices, made and accepted by the engine thread |
//! | [`denials`], [`event`] | refused accesses and other things that happened, for people and programs |
//! | [`inspect`], [`paths`] | what a device looks like from outside, what the kernel allows here |
//! | [`describe`] | what front ends tell of their endpoints when somebody looks |
//! | [`fork`] | what a forked child may (not) do with its parent's device |
//!
//! # Who drives the engine
//!
//! A program that polls drives the engine itself, on its own core; the engine thread then sleeps and
//! only looks now and then whether the program still polls. A program that waits or does other things
//! leaves the engine to the thread, which sleeps until a peer rings. `progress` has the details.

pub mod channel;
pub mod config;
pub mod connect;
pub mod denial_view;
pub mod denials;
pub mod describe;
pub mod device;
pub mod error;
pub mod event;
pub mod fork;
pub mod inspect;
pub mod lease;
pub mod names;
pub mod paths;
pub mod qp;
pub mod queue;
pub mod region;
mod revoke;
pub mod shared_memory;
pub mod silence;
mod srq;
pub mod window;

mod blocks;
mod control;
mod crowd;
mod discovery;
mod effects;
#[cfg(test)]
mod failing;
#[doc(hidden)]
pub mod fuzzing;
pub mod groups;
mod identities;
mod naps;
mod null;
mod peeks;
mod peers;
mod progress;
mod quiet;
mod reaches;
mod reactor;
mod segment;
mod shared;
mod thread;

pub use channel::Channel;
pub use config::{Config, ConfigError, DirectCopy, Explain, Share};
pub use connect::{Accepting, Incoming, Listener, Peer, QpAddress, Reservation};
pub use denial_view::{DenialView, GuesserView};
pub use device::Device;
pub use error::DeviceError;
pub use event::AsyncEvent;
pub use inspect::{Inspection, Listing, OtherVersion, list_all, list_devices};
pub use paths::{CopyPaths, copy_paths};
pub use peers::Departed;
pub use qp::{Qp, QpOptions};
pub use queue::Cq;
pub use shared::{CountListener, Counter};
pub use shared_memory::SharedMemory;
pub use srq::Srq;

pub use rkey_base as base;
pub use rkey_core as core;
pub use rkey_engine as engine;
pub use rkey_link as link;

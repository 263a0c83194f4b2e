//! The software RDMA device: everything that the layers below deliberately leave out.
//!
//! Core, engine and links are state machines without threads, clocks or sockets. This crate runs them in a process: it adds
//! threads, clocks, sockets, configuration, discovery of other devices, waiting and inspection. It is the only crate with threads
//! and clocks, and every front end (the Rust API, verbs, libfabric, uDAPL) is built on its objects.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`device`] | [`Device`]: opening, limits, events, end |
//! | `lifecycle`, `shared`, [`error`] | whether a device can be used, what its threads share, why a call failed |
//! | `process_device` | the device that the front ends of a process share |
//! | [`config`] | the configuration and the `RKEY_*` variables |
//! | [`objects`] | completion queues and channels, queue pairs, shared receive queues, regions, windows, shareable memory |
//! | [`cm`] | the connection manager: its sockets, its thread and its clock |
//! | [`connect`] | listen, accept and connect by address |
//! | [`peers`] | other devices: how links to and from them are established, and which processes they belong to; [`names`] |
//! | `capture` | capture files for Wireshark: packets of the wire, and what passes links as packets |
//! | `ecn`, `cipher` | congestion marks of datagrams; the cipher of the wire's key |
//! | [`wire`] | other hosts: the sockets of RoCEv2, and queue pair 1 |
//! | `reclaim` | how memory is taken back from peers that access it directly; leases |
//! | `progress` | how the engine is driven: by polls, posts, or the engine thread |
//! | [`inspect`] | descriptions of a device for display; [`denials`] (refused accesses in the log) and [`describe`] |
//! | [`threads`], [`time`] | threads and the clock, also for front ends |
//! | `log_later` | log lines of threads that must not wait for the log |
//! | [`fork`] | what a forked child can do with its parent's device |
//!
//! # Who drives the engine
//!
//! A program that polls drives the engine itself, on its own core; the engine thread then sleeps and checks periodically whether
//! the program still polls. A program that waits or does other things leaves the engine to the thread, which sleeps until a peer
//! rings the doorbell. `progress` has the details.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_types, clippy::too_many_lines, clippy::unwrap_used)
)]

mod capture;
mod cipher;
pub mod cm;
pub mod config;
pub mod connect;
pub mod device;
mod ecn;
pub mod error;
pub mod fork;
#[doc(hidden)]
pub mod fuzzing;
pub mod inspect;
mod lifecycle;
mod log_later;
pub mod objects;
pub mod peers;
mod process_device;
mod progress;
mod reclaim;
mod shared;
pub mod threads;
pub mod time;
pub mod wire;

pub use config::{Config, ConfigError, DirectCopy, Explain, Share, WireConfig, WireSetting};
pub use connect::{Accepting, ConnectOptions, Connecting, Incoming, Listener, Peer, Reservation};
pub use device::Device;
pub use error::DeviceError;
pub use inspect::cache_view::CacheView;
pub use inspect::copy_paths::{CopyPaths, copy_paths};
pub use inspect::denial_view::{DenialView, GuesserView};
pub use inspect::description::{CacheDescription, Description};
pub use inspect::{Inspection, Listing, OtherVersion, SilentProcess, list_all, list_devices};
pub use objects::channel::Channel;
pub use objects::counters::{CountListener, Counter};
pub use objects::cq::Cq;
pub use objects::qp::{Qp, QpOptions};
pub use objects::qp_address::QpAddress;
pub use objects::shared_memory::SharedMemory;
pub use objects::sleeper::Sleeper;
pub use objects::spin::SpinForecast;
pub use objects::srq::Srq;
pub use objects::window::ReservedKey;
pub use peers::process::Departed;
pub use rkey_engine::AsyncEvent;

// Modules under the short names that front ends use.
pub use inspect::{denial_view, denials, describe};
pub use peers::names;

// The names of the layers below that front ends may use. A missing name is added here, where a review sees it.

/// Copies that return a fault, ranges and locks.
pub mod base {
    pub use rkey_base::fault::Fault;
    pub use rkey_base::foreign::{Copier, ForeignMemory, Span};
    pub use rkey_base::limit::Limit;
    pub use rkey_base::lock::SpinLock;
    pub use rkey_base::memory::Memory;
    pub use rkey_base::process::{page_size, resident};
    pub use rkey_base::range::VaRange;

    /// Copies and atomics that return a fault.
    pub mod copy {
        pub use rkey_base::copy::{compare_swap, copy, fetch_add};
    }
}

/// Regions, windows, keys and denials.
pub mod core {
    pub use rkey_core::{
        Access, Accessor, Addressing, Api, Attempt, BindError, BindRegion, BindRequest,
    };
    pub use rkey_core::{Change, CoreError, Denial, DomainId, Key, LKey, Limit, Limits};
    pub use rkey_core::{LocalUse, NamedKey, Operation, Protection, RawKey, RawKeyMap, Reason};
    pub use rkey_core::{
        RKey, Region, RegionId, RegionSpec, Rules, Secrets, WindowId, WindowKind, Words,
    };
}

/// Queue pairs, work requests and completions.
pub mod engine {
    pub use rkey_engine::qp::state::rule;
    pub use rkey_engine::rss::KEY_LEN;
    pub use rkey_engine::{Completion, CompletionFlags, CompletionOp, CqId, EngineError, Flow};
    pub use rkey_engine::{HashFields, Peer, PostError, QpAttributes, QpId, QpState};
    pub use rkey_engine::{
        QpType, RecvRequest, Route, SendFlags, SendRequest, Sge, SrqId, Stamped,
    };
    pub use rkey_engine::{Status, Target, UdAddress, WirePeer, Work, WqState, XrcdId};
}

/// Other processes, and their memory that is mapped here.
pub mod link {
    pub use rkey_link::NodeId;
    pub use rkey_link::direct::{DirectError, DirectMap};
}

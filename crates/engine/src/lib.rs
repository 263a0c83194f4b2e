//! The transport engine: queue pairs, completion queues and shared receive queues.
//!
//! An [`Engine`] does no I/O: it owns no socket and no thread, reads no clock, and writes no log. Work requests and the
//! current time are arguments; completions, [`Event`]s, requests on [links](rkey_link::Link) and packets are results. The
//! engine's owner calls
//!
//! 1. the commands (`create_…`, `modify_…`, `post_…`), at any time;
//! 2. [`Engine::drive`] whenever a link has something to take or a deadline has passed;
//! 3. [`Engine::poll_event`] until it returns `None`, after each of these calls.
//!
//! [`rkey_core::Protection`] decides what may be accessed, accesses go through a
//! [`rkey_base::memory::Memory`], and the link moves the bytes.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`work`] | work requests, as posted |
//! | [`status`] | completions, as polled |
//! | [`qp`] | queue pairs: configuration, attributes and the [state table](qp::state) |
//! | [`cq`] | completion queues |
//! | [`inbox`] | messages that need no receive |
//! | [`rss`] | receive side scaling of raw frames |
//! | [`groups`] | multicast groups, and raw frames |
//! | `engine`, `config`, `links` | the engine and its limits; the calls of its owner: for events; for links |
//! | `cqs`, `srqs`, `wqs` | the calls of the owner: for completion queues, shared receive queues and receive queues for RSS (for queue pairs: in [`qp`]) |
//! | `post` | checks a work request, then puts it into the send queue (`send_queue`) and on the link (a short one on the link first) |
//! | `recv_queue` | posted receives |
//! | `drive` | one round of work on all links (`link_state`: a link and the engine's state for it; `link_loss`: its end) |
//! | `requester` | sends requests as fragments; handles acknowledgements and responses |
//! | `responder` | executes a peer's requests: in one step, or in several (`responder/bulk`) |
//! | `warrants`, `held_warrants` | warrants that peers have for our memory, and those that we have for theirs |
//! | `warrant_room` | how many warrants there are, and which one a further one replaces |
//! | `lost_time` | how long pushes may wait for memory of a peer |
//! | `bind` | binding and invalidating windows, in the order of the send queue |
//! | `nak` | the codes of refusals |
//! | `timer`, `silence`, `silent_peers` | deadlines, and when to give up on a silent peer |
//! | `numbers`, [`id`] | which queue pair has which number; handles |
//! | [`guesses`], `guessers`, [`origin`] | keys that peers guess, counted for the process at the other end |
//! | `membership`, [`ud`], `xrc` | members of multicast groups, headers of datagrams, extended reliable connections |
//! | [`wire`] | queue pairs whose peer is on another host: packets instead of fragments |
//! | `context` | the state that all of these share (always named `x`): queues, timers, reports |
//! | `checked_memory` | every access to memory: checks with the core, then copies |
//! | `complete` | completions in posting order, and the error state |
//! | [`event`], [`report`], [`exposure`], [`error`] | other reports of an engine |
//! | [`inspect`] | the whole state of an engine, as plain data |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    warn(
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::too_many_lines,
        clippy::unwrap_used
    )
)]

mod bind;
mod checked_memory;
mod complete;
mod config;
mod context;
pub mod cq;
mod cqs;
mod drive;
mod engine;
pub mod error;
pub mod event;
pub mod exposure;
pub mod groups;
mod guessers;
pub mod guesses;
mod held_warrants;
pub mod id;
pub mod inbox;
pub mod inspect;
mod link_loss;
mod link_state;
mod links;
mod lost_time;
mod membership;
mod nak;
mod numbers;
pub mod origin;
mod post;
pub mod qp;
mod recv_queue;
pub mod report;
mod requester;
mod responder;
pub mod rss;
mod send_queue;
mod silence;
mod silent_peers;
mod srqs;
pub mod status;
mod timer;
pub mod ud;
mod warrant_room;
mod warrants;
pub mod wire;
pub mod work;
mod wqs;
mod xrc;

pub use config::EngineConfig;
pub use cq::{Clock, CqShared, Stamped};
pub use engine::{Engine, Progress};
pub use error::{EngineError, ModifyError};
pub use event::{AsyncEvent, Event};
pub use exposure::{ExposedMemory, Exposure};
pub use groups::{Flow, Group};
pub use guesses::Guesser;
pub use id::{CqId, LinkId, QpId, SrqId};
pub use inbox::{Inbox, Message};
pub use nak::Nak;
pub use origin::{Origin, Process};
pub use qp::state::{Attributes, QpState, QpType};
pub use qp::{Peer, QpAttributes, QpConfig, QpInfo, XrcdId};
pub use report::{DenialReport, Reports, Side};
pub use requester::WarrantedRegion;
pub use rss::{HashFields, Rss, WqState};
pub use status::{Completion, CompletionFlags, CompletionOp, Status};
pub use warrants::{WarrantRequest, WarrantScope};
pub use wire::{WireDrops, WirePeer};
pub use work::{
    PostError, RecvRequest, Route, SendFlags, SendRequest, Sge, Target, UdAddress, Work,
};

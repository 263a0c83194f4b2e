//! The transport engine: queue pairs, completion queues and shared receive queues.
//!
//! An [`Engine`] is a machine without surroundings: it owns no socket and no thread, reads no
//! clock and writes no log. Work requests and the current time are arguments; completions,
//! [`Event`]s and requests on [links](rkey_link::Link) are results. Whoever owns an engine calls
//!
//! 1. the commands (`create_…`, `modify_…`, `post_…`), at any time;
//! 2. [`Engine::drive`] whenever a link has something or a deadline has passed;
//! 3. [`Engine::poll_event`] until there is none, after each of the two.
//!
//! What may be touched is decided by [`rkey_core::Protection`], what is touched goes through a
//! [`rkey_base::memory::Memory`], and how it travels is the business of the link.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`work`] | work requests, as posted |
//! | [`status`] | completions, as polled |
//! | [`qp`] | queue pairs: configuration, attributes and the [state table](qp::state) |
//! | [`cq`] | completion queues |
//! | [`inbox`] | messages that need no receive |
//! | [`spread`] | receive side scaling of raw frames |
//! | [`groups`] | multicast groups, and the wire of raw frames |
//! | [`event`], [`report`], [`exposure`] | what else an engine tells |
//! | [`inspect`] | everything an engine has, as plain data |
#![forbid(unsafe_code)]

mod answer;
mod bind;
mod bulk;
mod complete;
mod context;
pub mod cq;
mod drive;
mod engine;
pub mod error;
pub mod event;
pub mod exposure;
pub mod groups;
pub mod guesses;
pub mod id;
pub mod inbox;
pub mod inspect;
mod nak;
mod network;
mod numbers;
pub mod origin;
mod port;
mod post;
pub mod qp;
mod reach;
mod recv_queue;
pub mod report;
mod requester;
mod responder;
mod send_queue;
mod silence;
pub mod spread;
pub mod status;
mod timer;
pub mod ud;
pub mod work;
mod xrc;

pub use cq::{Clock, CqShared, Stamped};
pub use engine::{Engine, EngineConfig, Progress};
pub use error::{EngineError, ModifyError};
pub use event::Event;
pub use exposure::{Exposure, Told};
pub use groups::{Flow, Group};
pub use guesses::Guesser;
pub use id::{CqId, LinkId, QpId, SrqId};
pub use inbox::{Inbox, Message};
pub use origin::{Origin, Process};
pub use qp::state::{Attributes, QpState, QpType};
pub use qp::{Peer, QpAttributes, QpConfig, QpInfo, XrcdId};
pub use report::{DenialReport, Reports, Side};
pub use spread::{HashFields, Spread, WqState};
pub use status::{Completion, CompletionFlags, CompletionOp, Status};
pub use work::{
    PostError, RecvRequest, Route, SendFlags, SendRequest, Sge, Target, UdAddress, Work,
};

//! Errors of commands. Errors of posts are in [`crate::work`], errors of work in completions.

use crate::qp::state::{Attributes, words};
use crate::{QpState, QpType};

/// Why an object could not be created, changed or destroyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The handle is stale.
    #[error("no such {0}")]
    NoSuch(&'static str),
    /// Other objects still use the object.
    #[error("the {what} is still used by {users} queue pairs")]
    Busy {
        /// The object that is in use.
        what: &'static str,
        /// The number of queue pairs that use the object.
        users: u32,
    },
    /// A number exceeds this engine's limits.
    #[error("{what} is {given}, but the limit is {limit}")]
    Limit {
        /// The name of the number.
        what: &'static str,
        /// The requested value.
        given: u64,
        /// The limit.
        limit: u64,
    },
    /// A number that must not be zero is zero.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// The queue pair number is in use, or has more than 24 bits.
    #[error("queue pair number {0:#x} is in use or has more than 24 bits")]
    Number(u32),
    /// A completion queue has more entries than its new depth.
    #[error("the completion queue holds {held} entries, more than the new depth of {asked}")]
    CqHolds {
        /// The number of entries in the queue.
        held: u32,
        /// The requested depth.
        asked: u32,
    },
}

/// Why a queue pair was not modified. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The handle is stale.
    #[error("no such queue pair")]
    NoSuchQp,
    /// The transition does not exist.
    #[error("a {qp_type:?} queue pair cannot go from {from:?} to {to:?}")]
    Step {
        /// The type of the queue pair.
        qp_type: QpType,
        /// The state of the queue pair.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// Attributes that this transition needs are missing.
    #[error("the transition lacks required attributes: {}", words(*.0))]
    Missing(Attributes),
    /// The call passed attributes that this transition does not accept.
    #[error("the transition does not accept the attributes {}", words(*.0))]
    NotAllowed(Attributes),
    /// Only queue pairs of the types RC and UC can have a peer on another host. Its address comes with its number, and while
    /// the queue pair is in service the peer cannot move to or from this host.
    #[error("this transition cannot connect a {0:?} queue pair to a peer on another host")]
    Wire(QpType),
    /// A value is out of range.
    #[error("{what} is {given}, but the limit is {limit}")]
    Value {
        /// The name of the value.
        what: &'static str,
        /// The value in the call.
        given: u64,
        /// The limit.
        limit: u64,
    },
}

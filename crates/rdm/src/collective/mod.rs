//! Collective operations: which member sends which blocks to which others, and chunks that arrived before their
//! operation began here.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`kind`] | the operations |
//! | [`names`] | the names that members derive for a group and for an operation |
//! | [`plan`] | what one member does, round by round |
//! | `tree` | binomial trees around a root |
//! | [`early_chunks`] | chunks that arrived early |

pub mod early_chunks;
pub mod kind;
pub mod names;
pub mod plan;
mod tree;

/// How many collective operations an endpoint may have in flight.
pub const RUNS_MAX: usize = 64;
/// How many unanswered chunks a member may have in one operation.
pub const WINDOW: u32 = 8;
/// The maximum number of members of a group.
pub const MEMBERS_MAX: usize = 65_536;
/// The maximum size of an operation in bytes, over all members if each has its own data.
pub const BYTES_MAX: usize = 1 << 30;

//! Collective operations: who sends what to whom, and chunks that came before their operation began here.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`kind`] | the operations |
//! | [`names`] | what members call a group, and an operation |
//! | [`plan`] | what one member does, round after round |
//! | [`inbox`] | chunks that came early |

pub mod inbox;
pub mod kind;
pub mod names;
pub mod plan;
mod tree;

/// Operations that an endpoint may have under way.
pub const RUNS_MAX: usize = 64;
/// Chunks of one operation that may wait for their answers.
pub const WINDOW: u32 = 8;
/// Members of a group.
pub const MEMBERS_MAX: usize = 65_536;
/// Bytes of an operation: those of all members together where each has its own.
pub const BYTES_MAX: usize = 1 << 30;

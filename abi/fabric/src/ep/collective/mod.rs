//! `fi_collective`: operations of groups of endpoints. The protocol between members is in the state machine
//! ([`rkey_rdm::endpoint`]); here are the calls.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`calls`] | the calls of programs |
//! | [`group`] | joining and leaving |
//! | [`start`] | checks of a call |

mod calls;
mod group;
mod start;

pub(super) use calls::OPS;
pub(crate) use calls::query;
pub(super) use group::{Joined, check, join};

use super::*;
use rkey_rdm::collective::{BYTES_MAX, MEMBERS_MAX};

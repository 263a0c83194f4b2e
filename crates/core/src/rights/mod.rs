//! Rights: what may be done with memory, in the terms of each API.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`access`] | access rights, and which right each kind of access needs |
//! | [`rules`] | rules that only some APIs have |
//! | [`api`] | the APIs, and the names of rights and objects in their messages |

pub(crate) mod access;
pub(crate) mod api;
pub(crate) mod rules;

//! The common parts of rkey's C front ends: errors, handles, settings, logging, and how programs find the front ends.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`mod@c_call`] | a panic ends at the boundary and becomes an error of the call |
//! | [`errno`] | error numbers as values, and how C functions return them |
//! | [`delivery`] | how programs find the front ends |
//! | [`companion`] | how a library outside their shared object loads them |
//! | [`dat_conf`] | the file that names uDAPL providers |
//! | [`settings`] | the environment variables of the front ends |
//! | [`log`] | logging |
//! | [`strict`] | calls that manual pages forbid and other implementations allow |
//! | [`pool`] | objects whose addresses a C program holds, checked before each use |
//! | [`mod@object`] | handles: the objects that these addresses stand for |
//! | [`argument`] | structures and lists whose addresses a C program passes |
//! | [`export`] | exported functions with symbol versions |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

pub mod argument;
pub mod c_call;
pub mod companion;
pub mod dat_conf;
pub mod delivery;
pub mod errno;
pub mod export;
pub mod log;
pub mod object;
pub mod pool;
pub mod settings;
pub mod strict;

pub use c_call::{c_call, c_call_or_minus_one, caught, contained};
pub use errno::Errno;
pub use object::Object;
pub use pool::{Pool, Spares, Vacant};
pub use rkey_base::interfaces;

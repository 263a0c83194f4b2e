//! A uDAPL 2.0 provider on the rkey software device: what libdat2 loads for an IA of `dat.conf`.
//!
//! The library translates between DAT's objects, flags and events and the device's. The device checks every access and
//! executes the requests.
//!
//! | folder or file | what it is |
//! | --- | --- |
//! | [`sys`] | structures and constants of `dat2/udat.h` |
//! | [`handles`] | handles and arguments, and how calls fail |
//! | [`values`] | events, states, attributes, addresses, messages |
//! | [`objects`] | IAs, EPs, EVDs and all others, and the thread of an IA |
//! | [`calls`] | the functions of the C interface |
//! | [`provider`], [`export`] | the table of all calls; how libdat2 and this provider find each other |
//!
//! A folder depends only on those above it in this table.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

pub mod calls;
pub mod handles;
pub mod objects;
pub mod provider;
pub mod sys;
pub mod values;

#[allow(unsafe_code)]
// UNSAFETY: functions that a C library calls.
pub mod export;

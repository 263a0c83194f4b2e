//! All C front ends in one shared object, `librkey_all.so`.
//!
//! Programs find it under several names: `libibverbs.so.1`, `librdmacm.so.1`, `librkey-fi.so`, `libdaplrkey.so.2`. The loader
//! recognizes the file and loads it only once, whichever names a process uses, in any order. So all front ends of a process run one
//! copy of this code and share one device: each accepts the keys that another one has issued.
//!
//! The exports of verbs and librdmacm come with those crates; those that other libraries look up in a provider are here.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

// Linked for their exports.
use ibverbs as _;
use rdmacm as _;

#[allow(unsafe_code)]
// UNSAFETY: assembly that defines the exported symbols.
mod export;

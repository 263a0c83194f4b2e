//! Tests that belong to no single crate: every reader of a peer's bytes, in one list of entries that fuzzers
//! and a seeded smoke test run on hostile bytes.
//!
//! `fuzz/` has a cargo-fuzz target for each entry of [`entries::ALL`]; `tests/fuzz_smoke.rs` runs the same
//! entries on stable Rust, for a fixed time and from fixed seeds, in every run of the suite.

#![forbid(unsafe_code)]

pub mod cm;
pub mod entries;
pub mod hostile;
pub mod mutate;
pub mod roce;
pub mod roce_queue_pair;
pub mod rsocket;
pub mod world;

/// The program in README.md compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

//! Checks that belong to no single crate: everything that reads what a peer wrote, as one list of
//! entries that fuzzers and a seeded smoke test feed with hostile bytes.
//!
//! `fuzz/` has one cargo-fuzz target for each entry of [`entries::ALL`]; `tests/fuzz_smoke.rs` runs the
//! same entries on stable Rust, for a fixed time and from fixed seeds, in every run of the suite.

#![forbid(unsafe_code)]

pub mod entries;
pub mod hostile;
pub mod mutate;
pub mod world;

/// The program in README.md compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

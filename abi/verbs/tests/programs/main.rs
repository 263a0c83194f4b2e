//! Unmodified programs of other projects, as Debian ships them, run on the library, each in its own processes.
//!
//! They test behaviour, not speed, so each runs only a few rounds. A missing program fails its test: `cargo xtask test`
//! installs all of them.

mod busy;
mod examples;
mod hosts;
mod layout;
mod mpi;
mod others;
mod perftest;
mod probes;
mod support;
mod ucx;

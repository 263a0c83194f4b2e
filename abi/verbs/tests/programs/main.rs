//! Unmodified programs of other projects, as Debian ships them, run on the library, each in its own processes.
//!
//! They check behaviour, not performance, so each runs few iterations. If a program is missing, its test fails: `cargo xtask test`
//! installs all of them.

mod busy;
mod captures;
mod examples;
mod hosts;
mod layout;
mod mpi;
mod others;
mod perftest;
mod probes;
mod support;
mod ucx;

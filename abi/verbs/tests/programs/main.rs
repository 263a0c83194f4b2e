//! Unmodified programs of other projects, as Debian ships them, run on the library, each in its own processes.
//!
//! They show behaviour, not speed, so each runs only few rounds. A program that is not installed is a failure:
//! `cargo xtask test` installs all of them.

mod busy;
mod examples;
mod layout;
mod mpi;
mod others;
mod perftest;
mod probes;
mod support;
mod ucx;

//! Programs that were not written for this device, as Debian ships them, on the library: unmodified, each in
//! processes of its own.
//!
//! They prove little about speed and much about behaviour, so each runs with few rounds. A program that is not
//! installed is a failure: `cargo xtask test` installs all of them.

mod busy;
mod examples;
mod layout;
mod mpi;
mod others;
mod perftest;
mod probes;
mod support;
mod ucx;

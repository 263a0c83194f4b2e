//! Calls the provider through its function table, as libdat2 does, but without libdat2: two IAs in one process.
//!
//! The test `programs` does the same through libdat2, in C.

#![allow(unsafe_code)]
// UNSAFETY: the tests call C functions.

mod connections;
mod datagrams;
mod described;
mod events;
mod posting;
mod strangers;
mod world;

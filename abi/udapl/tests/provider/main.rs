//! The provider by its function table, as libdat2 calls it, without libdat2: two IAs of one process.
//!
//! `programs` has the same through libdat2, in C.

#![allow(unsafe_code)]
// UNSAFETY: the tests call C functions.

mod connections;
mod datagrams;
mod events;
mod posting;
mod strangers;
mod world;

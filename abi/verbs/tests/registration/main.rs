//! The guarantees of registration, windows, re-registration, states and asynchronous events to a C program, each tested by requests
//! that rely on it.

#![allow(unsafe_code)]
// UNSAFETY: calls the C functions.

mod belongs;
mod events;
mod keys;
mod null;
mod posting;
mod rights;
mod starved;
mod states;
mod stopped;
mod times;
mod windows;
mod world;

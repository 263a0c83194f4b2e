//! The provider through its C interface: what a program sees that calls it as the inline functions of
//! libfabric's headers do.
#![allow(unsafe_code)]
// UNSAFETY: calls C functions, as a C program does.

mod access;
mod addresses;
mod answers;
mod asleep;
mod asynchronous;
mod atomics;
mod auth_keys;
mod authorization;
mod backlog;
mod collectives;
mod coming_and_going;
mod connected;
mod contexts;
mod deferred;
mod described;
mod devices;
mod harness;
mod hearing;
mod hostile;
mod info;
mod keys;
mod layout;
mod lenient;
mod life;
mod local;
mod messages;
mod modes;
mod options;
mod order;
mod outsider;
mod pages;
mod parameters;
mod peer;
mod persistent;
mod pressure;
mod registration;
mod requests;
mod roused;
mod shared;
mod silent;
mod stopped;
mod traffic;
mod versions;
mod waiting;
mod withdrawn;
mod words;

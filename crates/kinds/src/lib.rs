//! Kinds of memory: whose copies reach which bytes.
//!
//! System memory is what the processor copies by itself. Memory of an accelerator is copied by its runtime, which this crate
//! loads when it is needed (`libcuda.so.1` and its kin) and never links. A DMA-buf is mapped, and its driver is told about
//! each access.
//!
//! | module | contents |
//! | --- | --- |
//! | [`kind`] | the kinds, their names and libraries |
//! | [`mod@hold`] | what a registration asks of a kind, and why it is refused |
//! | [`mod@discover`] | which kind an address is of |
//! | [`mod@file`] | DMA-bufs and other files, mapped |
//! | `runtime` | one module for each runtime, behind one trait |
//!
//! [`hold()`] gives a copier ([`rkey_base::foreign::ForeignMemory`]) that compares the allocation with that of the
//! registration before each copy: an address that was freed and given out again is not the same memory.
//!
//! Neuron and SynapseAI cannot say what an address is: the program's word counts.
//!
//! Runtimes are never initialised here: memory of an accelerator exists only after the program has done that.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod discover;
pub mod file;
pub mod hold;
pub mod kind;
mod runtime;

pub use discover::{Found, discover};
pub use hold::{Refusal, Wanted, hold};
pub use kind::Kind;

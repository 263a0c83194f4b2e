//! Kinds of memory: who may copy which bytes.
//!
//! The processor copies system memory. An accelerator's runtime copies accelerator memory: this crate loads the runtime
//! when it is needed (`libcuda.so.1`, for example), and never links it. A DMA-buf is mapped, and its driver is told before
//! and after each access.
//!
//! | module | contents |
//! | --- | --- |
//! | [`kind`] | the kinds, their names and libraries |
//! | [`mod@hold`] | what a registration asks of a kind, and why it is refused |
//! | [`mod@discover`] | finds the kind of memory at an address |
//! | [`mod@file`] | DMA-bufs and other files, mapped |
//! | `complaint` | failed accesses in the log |
//! | `runtime` | one module for each runtime, behind one trait |
//!
//! [`hold()`] returns a copier ([`rkey_base::foreign::ForeignMemory`]). Before each copy it compares the allocation with that
//! of the registration, because memory that was freed and allocated again at the same address is different memory.
//!
//! Neuron and SynapseAI cannot tell whether an address is theirs. For these two runtimes, the program is trusted and nothing is
//! compared.
//!
//! This crate never initialises a runtime: there is no accelerator memory before the program has initialised one.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

mod complaint;
pub mod discover;
pub mod file;
pub mod hold;
pub mod kind;
mod runtime;

pub use discover::{Found, discover};
pub use hold::{Refusal, Wanted, hold};
pub use kind::Kind;

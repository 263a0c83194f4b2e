//! The atomics of the concurrent modules: those of the standard library, or, under `--cfg loom`, those of loom, which tries
//! every interleaving that the memory model allows.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

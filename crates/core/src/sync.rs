//! The atomics of the lock-free checks: those of the standard library, or, under `--cfg loom`, those of loom, which
//! tries every interleaving and every reordering that the memory model allows.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

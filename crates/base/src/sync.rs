//! The primitives that the concurrent modules use: those of the standard library, or, under `--cfg loom`, those of
//! loom, which tries every interleaving that the memory model allows.

#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// `std::cell::UnsafeCell` with the interface of loom's.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Lends a pointer for reading. Dereferencing it is the caller's responsibility.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Lends a pointer for writing. Dereferencing it is the caller's responsibility.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Loom models sequential consistency only for fences, so there is a fence wherever an access has that ordering and the
/// order of accesses to different words matters.
#[inline(always)]
pub(crate) fn order_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Waits briefly while another thread does something short. At first it issues processor hints, 127 in seven rounds of
/// increasing length (about a microsecond on current processors, several times longer than any critical section). Then it
/// yields the processor, because on a small machine the other thread may need this core.
#[cfg(not(loom))]
pub(crate) use crossbeam_utils::Backoff;

/// The version for loom, which must be told that a thread cannot proceed.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Backoff;

#[cfg(loom)]
impl Backoff {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn snooze(&self) {
        loom::thread::yield_now();
    }
}

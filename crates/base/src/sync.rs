//! The primitives that the concurrent modules are built of: those of the standard library, or, under
//! `--cfg loom`, those of loom, which tries every interleaving that the memory model allows.

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

/// Loom knows sequential consistency from fences only: one goes wherever an access has that ordering and the order of
/// accesses to different words matters.
#[inline(always)]
pub(crate) fn order_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Waits a little while another thread does something short: by a processor hint for the first rounds, then by giving
/// the processor away, because on a small machine the thread that is waited for may need this very core.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// About a microsecond of `pause` on current processors, which is several times longer than any critical section.
    #[cfg(not(loom))]
    const SPINS: u32 = 100;

    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn wait(&mut self) {
        if self.rounds < Self::SPINS {
            self.rounds += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    #[cfg(loom)]
    pub(crate) fn wait(&mut self) {
        self.rounds += 1;
        loom::thread::yield_now();
    }
}

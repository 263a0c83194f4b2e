//! A spin lock for critical sections of nanoseconds, and a mutex for all others.
//!
//! An operating system's mutex needs one atomic read-modify-write to lock and another one to unlock. This lock unlocks
//! with a plain release store, which on x86 is an ordinary `mov`; use it where those few nanoseconds are a large part of
//! the work. A waiting thread spins for about a microsecond and then yields in every iteration, so that a preempted
//! holder on a machine with few cores makes progress.

// UNSAFETY: a lock lends `&mut T` from `&self`, which cannot be written without `unsafe`.
#![allow(unsafe_code)]

use crate::sync::{AtomicBool, Backoff, Ordering, UnsafeCell};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// For critical sections that may be long: waiting threads sleep.
pub use parking_lot::{Mutex, MutexGuard};

/// A value that one thread at a time may use.
///
/// The lock is neither fair nor reentrant, and it is not poisoned by a panic: a guard dropped while unwinding unlocks.
pub struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives access to the value to one thread at a time (`locked` changes from false to true exactly once
// per guard, with acquire ordering, and back with release ordering), which is like sending it; hence `T: Send`.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: sending the lock sends the value inside it, and nothing else.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked lock around `value`.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// An unlocked lock around `value`.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks; waits until the lock is free.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    /// Locks if the lock is free at this moment.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Sequentially consistent for `wait_for_holder`.
        let locked = self
            .locked
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        crate::sync::order_for_loom();
        locked.then(|| Guard {
            lock: self,
            _not_send: std::marker::PhantomData,
        })
    }

    /// Waits until the current holder has unlocked, as locking and unlocking would; if the lock is free, this costs
    /// only a load.
    ///
    /// A change that the caller made before, with a sequentially consistent read-modify-write, is visible to later
    /// holders that read it with a sequentially consistent load; everything that earlier holders did has happened
    /// before this returns.
    #[inline]
    pub fn wait_for_holder(&self) {
        crate::sync::order_for_loom();
        // Our load and a holder's exchange are ordered, as both are sequentially consistent: if our load is first, a
        // holder that it does not see reads after our change; if the holder's exchange is first, our load sees it or
        // the unlock after it.
        if self.locked.load(Ordering::SeqCst) {
            drop(self.lock());
        }
    }

    /// Whether the lock is held at this moment; the result may be outdated at once.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }

    #[cold]
    fn lock_contended(&self) -> Guard<'_, T> {
        let backoff = Backoff::new();
        loop {
            // Waits on a plain load, so that waiting threads share the cache line until the lock is worth trying.
            while self.is_locked() {
                backoff.snooze();
            }
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            backoff.snooze();
        }
    }

    /// The value, without locking: `&mut self` proves exclusive access.
    #[cfg(not(loom))]
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes every guard, since guards borrow the lock.
        self.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("SpinLock").field(&*guard).finish(),
            None => f.write_str("SpinLock(<locked>)"),
        }
    }
}

/// The right to use the value of a [`SpinLock`]; dropping it unlocks.
pub struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
    /// A guard stays on the thread that locked: sending it would be correct, but would hide which thread holds the
    /// lock.
    _not_send: std::marker::PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only `&T`.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard exists, so `locked` is true on its behalf and no other guard exists; the acquire ordering
        // of the exchange that made it makes the previous holder's writes visible. `&self` excludes `deref_mut`.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes the reference the only one.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Only the holder of the one guard stores here, so no read-modify-write is needed.
        self.lock.locked.store(false, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        let lock = SpinLock::new(1);
        let guard = lock.lock();
        assert!(lock.is_locked());
        assert!(lock.try_lock().is_none());
        assert_eq!(format!("{lock:?}"), "SpinLock(<locked>)");
        drop(guard);
        *lock.try_lock().unwrap() += 1;
        assert_eq!(format!("{lock:?}"), "SpinLock(2)");
        let mut lock = lock;
        assert_eq!(*lock.get_mut(), 2);
    }

    #[test]
    fn no_increment_of_four_threads_is_lost() {
        static COUNT: SpinLock<u64> = SpinLock::new(0);
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..rounds).for_each(|_| *COUNT.lock() += 1));
            }
        });
        assert_eq!(*COUNT.lock(), 4 * rounds);
    }

    #[test]
    fn waiting_ends_when_the_holder_unlocks() {
        let lock = &SpinLock::new(0);
        lock.wait_for_holder();
        let guard = lock.lock();
        let passed = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lock.wait_for_holder();
                passed.store(true, Ordering::SeqCst);
            });
            for _ in 0..100 {
                std::thread::yield_now();
                assert!(!passed.load(Ordering::SeqCst));
            }
            drop(guard);
        });
        assert!(!lock.is_locked());
    }

    #[test]
    fn a_panic_of_the_holder_releases_the_lock() {
        let lock = SpinLock::new(0);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("with the lock held");
        }));
        assert!(result.is_err());
        assert!(lock.try_lock().is_some());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    #[test]
    fn no_increment_of_two_threads_is_lost() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(0));
            let other = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || *lock.lock() += 1)
            };
            *lock.lock() += 1;
            other.join().unwrap();
            assert_eq!(*lock.lock(), 2);
        });
    }

    /// After a thread revokes access and calls `wait_for_holder`, it has exclusive access.
    #[test]
    fn access_is_exclusive_after_waiting_for_the_holder() {
        loom::model(|| {
            let ended = Arc::new(AtomicBool::new(false));
            let world = Arc::new((SpinLock::new(()), UnsafeCell::new(0)));
            let user = {
                let (ended, world) = (Arc::clone(&ended), Arc::clone(&world));
                thread::spawn(move || {
                    let _guard = world.0.lock();
                    if !ended.load(Ordering::SeqCst) {
                        // SAFETY: loom checks that there is no other access now.
                        world.1.with_mut(|value| unsafe { *value += 1 });
                    }
                })
            };
            ended.swap(true, Ordering::SeqCst);
            world.0.wait_for_holder();
            // SAFETY: as above.
            world.1.with_mut(|value| unsafe { *value += 1 });
            user.join().unwrap();
        });
    }

    #[test]
    fn try_lock_never_waits_and_never_shares_the_lock() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(0));
            let other = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || lock.try_lock().map(|mut guard| *guard += 1).is_some())
            };
            let mine = lock.try_lock().map(|mut guard| *guard += 1).is_some();
            let theirs = other.join().unwrap();
            assert!(mine || theirs);
            assert_eq!(*lock.lock(), i32::from(mine) + i32::from(theirs));
        });
    }
}

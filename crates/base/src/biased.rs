//! A lock that is biased to its owner, for data that one thread uses all the time and others hardly ever.
//!
//! The owner locks and unlocks with plain stores and a load. The others bear the cost: each time one of them locks, it
//! makes every processor that runs this process execute a fence ([`barrier::heavy`](crate::barrier::heavy)), which
//! takes microseconds.
//!
//! The owner announces that it is inside and then checks whether another thread wants to enter. Another thread announces
//! that it wants to enter and then, after the heavy barrier, checks whether the owner is inside. So one of the two
//! sees the other, and the owner yields.

// UNSAFETY: a lock lends `&mut T` from `&self`, which cannot be written without `unsafe`.
#![allow(unsafe_code)]

use crate::lock::{Guard, SpinLock};
use crate::sync::{Arc, AtomicBool, Backoff, Ordering, UnsafeCell};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A value that its owner locks at almost no cost, and others in microseconds. The lock is not reentrant, and a panic
/// does not poison it.
pub struct BiasedLock<T> {
    owner_is_in: AtomicBool,
    /// Another thread is inside, or waits for the owner to leave.
    other_wants_in: AtomicBool,
    /// Held by the one other thread that may be inside.
    others: SpinLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives access to the value to one thread at a time (see `Owner::lock` and `BiasedLock::lock_all`), which
// amounts to sending it; hence `T: Send`.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: sending the lock sends the value inside it, and nothing else.
unsafe impl<T: Send> Send for BiasedLock<T> {}

/// The part of a [`BiasedLock`] that its owner and others share.
pub type SharedLock<T> = Arc<BiasedLock<T>>;

/// The owner's access to a [`BiasedLock`]. It can move to another thread, but not be shared.
pub struct Owner<T> {
    lock: Arc<BiasedLock<T>>,
    _not_sync: PhantomData<Cell<()>>,
}

impl<T> BiasedLock<T> {
    /// Locks all of `locks` for a thread that owns none of them, with a single barrier; waits until each is free.
    /// Threads that lock several at a time must lock them in the same order.
    pub fn lock_all<'a>(
        locks: impl IntoIterator<Item = &'a SharedLock<T>>,
    ) -> Vec<OtherGuard<'a, T>> {
        let mut guards = Vec::new();
        for lock in locks {
            let others = lock.others.lock();
            lock.other_wants_in.store(true, Ordering::Relaxed);
            guards.push(OtherGuard {
                lock,
                _others: others,
            });
        }
        if !guards.is_empty() {
            fences::heavy();
        }
        for guard in &guards {
            let backoff = Backoff::new();
            // Acquire: everything that the owner did inside has happened before.
            while guard.lock.owner_is_in.load(Ordering::Acquire) {
                backoff.snooze();
            }
        }
        guards
    }
}

impl<T> Owner<T> {
    /// An unlocked lock around `value`.
    #[must_use]
    pub fn new(value: T) -> Self {
        fences::prepare();
        Self {
            lock: Arc::new(BiasedLock {
                owner_is_in: AtomicBool::new(false),
                other_wants_in: AtomicBool::new(false),
                others: SpinLock::new(()),
                value: UnsafeCell::new(value),
            }),
            _not_sync: PhantomData,
        }
    }

    /// The lock, for others.
    #[must_use]
    pub fn shared(&self) -> &Arc<BiasedLock<T>> {
        &self.lock
    }

    /// Locks; waits while another thread holds the lock.
    ///
    /// # Panics
    /// If the owner already holds the lock.
    #[inline]
    pub fn lock(&self) -> OwnerGuard<'_, T> {
        let lock = &*self.lock;
        assert!(
            !lock.owner_is_in.load(Ordering::Relaxed),
            "the owner already holds this lock"
        );
        lock.owner_is_in.store(true, Ordering::Relaxed);
        fences::light();
        // Acquire: everything that another thread did inside has happened before.
        if lock.other_wants_in.load(Ordering::Acquire) {
            self.give_way();
        }
        OwnerGuard {
            lock,
            _not_send: PhantomData,
        }
    }

    #[cold]
    fn give_way(&self) {
        let lock = &*self.lock;
        loop {
            lock.owner_is_in.store(false, Ordering::Release);
            let backoff = Backoff::new();
            while lock.other_wants_in.load(Ordering::Relaxed) {
                backoff.snooze();
            }
            lock.owner_is_in.store(true, Ordering::Relaxed);
            fences::light();
            if !lock.other_wants_in.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Owner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(..)")
    }
}

/// The owner's right to use the value; dropping it unlocks.
pub struct OwnerGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    _not_send: PhantomData<*const ()>,
}

/// Another thread's right to use the value; dropping it unlocks.
pub struct OtherGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    _others: Guard<'a, ()>,
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the owner is inside. It had at most one guard (`lock` asserts that), and no other thread is inside: the owner
        // stores and then loads, the other thread stores and then loads, and each has a fence in between. So at least one
        // load sees the other's store, and then either the owner waits outside or the other thread waits. `&self` excludes
        // `deref_mut`.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes the reference the only one.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.owner_is_in.store(false, Ordering::Release);
    }
}

impl<T> Deref for OtherGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the holder of `others` is inside, and the owner is not: see `OwnerGuard::deref`.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for OtherGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes the reference the only one.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for OtherGuard<'_, T> {
    fn drop(&mut self) {
        // Cleared before `others` unlocks; clearing it later could withdraw the next thread's request.
        self.lock.other_wants_in.store(false, Ordering::Release);
    }
}

/// The two fences between a side's store and its load.
#[cfg(not(any(loom, miri)))]
mod fences {
    use crate::barrier;
    use std::sync::atomic::{Ordering, fence};

    pub(super) fn prepare() {
        barrier::register();
    }

    pub(super) fn heavy() {
        barrier::heavy();
    }

    #[inline(always)]
    pub(super) fn light() {
        // `prepare` was called, so the result no longer changes.
        match barrier::available() {
            true => barrier::light(),
            false => fence(Ordering::SeqCst),
        }
    }
}

/// The fences where there is no `membarrier`: full fences on both sides.
#[cfg(any(loom, miri))]
mod fences {
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};
    #[cfg(not(loom))]
    use std::sync::atomic::{Ordering, fence};

    pub(super) fn prepare() {}

    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_increment_of_the_owner_or_another_thread_is_lost() {
        let owner = Owner::new(0_u64);
        let (mine, others) = match cfg!(miri) {
            true => (50, 20),
            false => (2_000_000, 2_000),
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let lock = Arc::clone(owner.shared());
                scope.spawn(move || {
                    for _ in 0..others {
                        BiasedLock::lock_all([&lock])
                            .iter_mut()
                            .for_each(|value| **value += 1);
                    }
                });
            }
            (0..mine).for_each(|_| *owner.lock() += 1);
        });
        assert_eq!(*owner.lock(), mine + 2 * others);
    }

    #[test]
    #[should_panic(expected = "already holds this lock")]
    fn locking_twice_by_the_owner_panics() {
        let owner = Owner::new(());
        let _first = owner.lock();
        let _second = owner.lock();
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::thread;

    #[test]
    fn the_owner_and_another_thread_exclude_each_other() {
        loom::model(|| {
            let owner = Owner::new(0);
            let other = {
                let lock = Arc::clone(owner.shared());
                thread::spawn(move || *BiasedLock::lock_all([&lock])[0] += 1)
            };
            *owner.lock() += 1;
            other.join().unwrap();
            assert_eq!(*owner.lock(), 2);
        });
    }
}

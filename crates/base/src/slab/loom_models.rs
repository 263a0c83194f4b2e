//! The slab under loom, which tries every interleaving and every reordering that the memory model allows.

use super::*;
use crate::sync::Arc;
use crate::sync::Ordering;
use loom::sync::atomic::AtomicU64 as LoomU64;
use loom::thread;

/// A value for a slot, with memory that must not be touched after the release (loom checks the accesses).
struct Value {
    name: LoomU64,
    memory: crate::sync::UnsafeCell<u32>,
}

impl Default for Value {
    fn default() -> Self {
        Self {
            name: LoomU64::new(0),
            memory: crate::sync::UnsafeCell::new(0),
        }
    }
}

#[expect(
    unsafe_code,
    reason = "loom's cell models the memory that a pin protects"
)]
// SAFETY: the cell is accessed only under a pin or after the slot was drained, which is what the models check.
unsafe impl Sync for Value {}

fn live_slab() -> Arc<Slab<Value>> {
    let slab = Arc::new(Slab::<Value>::new(2));
    let claimed = slab.claim().unwrap();
    claimed.name.store(10, Ordering::Relaxed);
    claimed.publish();
    slab
}

/// Either the pin fails, or the drain waits for the work done under it.
#[test]
fn a_pin_fails_or_delays_the_drain() {
    loom::model(|| {
        let slab = live_slab();
        let reader = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || {
                if let Some(pin) = slab.pin(0, 0) {
                    assert_eq!(pin.name.load(Ordering::Relaxed), 10);
                    pin.memory.with(|_| ());
                }
            })
        };
        let retired = slab.retire(0, 0).unwrap();
        assert!(slab.pin(0, 0).is_none());
        if retired.is_drained() {
            retired.memory.with_mut(|_| ());
        }
        if retired.release(1).is_ok() {
            let claimed = slab.claim().unwrap();
            claimed.memory.with_mut(|_| ());
            claimed.name.store(11, Ordering::Relaxed);
            assert_eq!(claimed.index(), 0);
            claimed.publish();
        }
        reader.join().unwrap();
    });
}

/// Of two threads that retire a slot, one succeeds.
#[test]
fn only_one_of_two_threads_retires_a_slot() {
    loom::model(|| {
        let slab = live_slab();
        let other = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || slab.retire(0, 0).map(|r| r.release(1).is_ok()).is_some())
        };
        let mine = slab.retire(0, 0).map(|r| r.release(1).is_ok()).is_some();
        assert!(mine ^ other.join().unwrap());
        assert_eq!(slab.peek(0), Some((1, State::Free)));
    });
}

/// A pin that is dropped while the retired slot is left behind and resumed is neither lost nor counted twice.
#[test]
fn a_pin_dropped_during_a_resumed_retirement_is_counted_once() {
    loom::model(|| {
        let slab = live_slab();
        let reader = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || drop(slab.pin(0, 0)))
        };
        drop(slab.retire(0, 0).unwrap());
        let resumed = slab.resume(0, 0).unwrap();
        reader.join().unwrap();
        resumed.release(1).unwrap();
        assert_eq!(slab.live(), 0);
    });
}

/// Two threads that claim get different slots, and readers see all that they publish.
#[test]
fn two_threads_claim_different_slots() {
    loom::model(|| {
        let slab = Arc::new(Slab::<Value>::new(2));
        drop(slab.claim()); // allocates the chunk, which loom does not watch
        let other = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || {
                let claimed = slab.claim().unwrap();
                let index = claimed.index();
                claimed.name.store(20 + u64::from(index), Ordering::Relaxed);
                claimed.publish();
                index
            })
        };
        let claimed = slab.claim().unwrap();
        let mine = claimed.index();
        for index in 0..2 {
            if index != mine
                && let Some(pin) = slab.pin(index, 0)
            {
                assert_eq!(pin.name.load(Ordering::Relaxed), 20 + u64::from(index));
            }
        }
        assert_ne!(mine, other.join().unwrap());
        drop(claimed);
        assert_eq!(slab.live(), 1);
    });
}

/// A slot released to the caller's list to be reused last is claimed last, and only once it is drained.
#[test]
fn a_slot_released_last_is_claimed_last_and_only_when_drained() {
    loom::model(|| {
        let slab = Arc::new(Slab::<Value>::new(2));
        let list = Arc::new(SpinLock::new(FreeList::new()));
        let claimed = slab.claim_from(&mut list.lock()).unwrap();
        claimed.name.store(10, Ordering::Relaxed);
        claimed.publish();
        let reader = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || {
                if let Some(pin) = slab.pin(0, 0) {
                    assert_eq!(pin.name.load(Ordering::Relaxed), 10);
                    pin.memory.with(|_| ());
                }
            })
        };
        let retired = slab.retire(0, 0).unwrap();
        if retired.release_last_to(&mut list.lock(), 1).is_ok() {
            let other = slab.claim_from(&mut list.lock()).unwrap();
            assert_eq!(other.index(), 1);
            let again = slab.claim_from(&mut list.lock()).unwrap();
            assert_eq!((again.index(), again.generation()), (0, 1));
            again.memory.with_mut(|_| ());
            again.name.store(11, Ordering::Relaxed);
            again.publish();
            other.publish();
            assert_eq!(list.lock().used(), 2);
        }
        reader.join().unwrap();
    });
}

/// Two threads that share a caller's list get different slots.
#[test]
fn two_claims_from_one_list_get_different_slots() {
    loom::model(|| {
        let slab = Arc::new(Slab::<Value>::new(2));
        let list = Arc::new(SpinLock::new(FreeList::new()));
        let claim = |slab: &Slab<Value>, list: &SpinLock<FreeList>| {
            let claimed = slab.claim_from(&mut list.lock()).unwrap();
            claimed.memory.with_mut(|_| ());
            let index = claimed.index();
            claimed.publish();
            index
        };
        let other = {
            let (slab, list) = (Arc::clone(&slab), Arc::clone(&list));
            thread::spawn(move || claim(&slab, &list))
        };
        let mine = claim(&slab, &list);
        assert_ne!(mine, other.join().unwrap());
        assert_eq!(list.lock().used(), 2);
    });
}

/// Either the pin fails, or the slot is not claimed again.
#[test]
fn a_pin_fails_or_prevents_the_next_claim() {
    loom::model(|| {
        let slab = live_slab();
        let reader = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || {
                if let Some(pin) = slab.pin(0, 0) {
                    assert_eq!(pin.name.load(Ordering::Relaxed), 10);
                    pin.memory.with(|_| ());
                }
            })
        };
        if let Some(claimed) = slab.retire_and_claim(0, 0, 1) {
            claimed.memory.with_mut(|_| ());
            claimed.name.store(11, Ordering::Relaxed);
            claimed.publish();
            assert!(slab.pin(0, 0).is_none() && slab.pin(0, 1).is_some());
        }
        reader.join().unwrap();
    });
}

/// If one thread holds a slot and another retires and claims it, one is first, and the other fails.
#[test]
fn a_slot_is_either_held_or_claimed_again() {
    loom::model(|| {
        let slab = live_slab();
        let holder = {
            let slab = Arc::clone(&slab);
            thread::spawn(move || slab.hold(0, 0))
        };
        let claimed_again = slab.retire_and_claim(0, 0, 1).is_some();
        assert!(claimed_again ^ holder.join().unwrap());
    });
}

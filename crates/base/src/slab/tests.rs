//! The slab's life cycle, and many threads at once.

use super::*;
use crate::sync::Ordering;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64 as Value;

fn publish(slab: &Slab<Value>, value: u64) -> (u32, u32) {
    let claimed = slab.claim().unwrap();
    claimed.store(value, Ordering::Relaxed);
    let name = (claimed.index(), claimed.generation());
    claimed.publish();
    name
}

#[test]
fn a_slot_with_56_bytes_of_data_is_one_cache_line() {
    assert_eq!(size_of::<Slot<[u64; 7]>>(), 64);
}

#[test]
fn a_slot_is_claimed_published_pinned_retired_and_released() {
    let slab = Slab::<Value>::new(4);
    assert_eq!(slab.peek(0), None);
    assert!(slab.get(0).is_none());
    let claimed = slab.claim().unwrap();
    assert_eq!((claimed.index(), claimed.generation()), (0, 0));
    assert_eq!(slab.peek(0), Some((0, State::Claimed)));
    assert!(slab.pin(0, 0).is_none());
    claimed.store(7, Ordering::Relaxed);
    claimed.publish_as(5);
    assert!(slab.pin(0, 0).is_none());
    assert!(slab.pin(1, 5).is_none());
    assert!(slab.pin(4, 5).is_none());
    assert!(slab.pin(u32::MAX, 5).is_none());
    let pin = slab.pin(0, 5).unwrap();
    assert_eq!(pin.load(Ordering::Relaxed), 7);
    let second = slab.pin(0, 5).unwrap();
    assert_eq!(slab.pins(0), 2);
    assert!(slab.retire(0, 4).is_none());
    let retired = slab.retire(0, 5).unwrap();
    assert!(slab.retire(0, 5).is_none());
    assert!(slab.pin(0, 5).is_none());
    assert!(pin.is_retired());
    drop(second);
    assert!(!retired.is_drained());
    let retired = retired.release(6).unwrap_err();
    drop(pin);
    assert!(retired.is_drained());
    assert_eq!(slab.live(), 1);
    retired.release(6).unwrap();
    assert_eq!(slab.peek(0), Some((6, State::Free)));
    assert!(slab.pin(0, 6).is_none());
    assert_eq!(slab.live(), 0);
    let again = slab.claim().unwrap();
    assert_eq!((again.index(), again.generation()), (0, 6));
}

#[test]
fn dropping_a_claim_frees_the_slot() {
    let slab = Slab::<Value>::new(1);
    drop(slab.claim().unwrap());
    assert_eq!(slab.live(), 0);
    let claimed = slab.claim().unwrap();
    assert!(slab.claim().is_none());
    drop(claimed);
    assert!(slab.claim().is_some());
}

#[test]
fn a_dropped_retirement_can_be_resumed_once() {
    let slab = Slab::<Value>::new(1);
    let (index, generation) = publish(&slab, 1);
    let pin = slab.pin(index, generation).unwrap();
    assert!(slab.resume(index, generation).is_none());
    let retired = slab.retire(index, generation).unwrap();
    assert!(slab.resume(index, generation).is_none());
    drop(retired);
    assert_eq!(slab.peek(index), Some((generation, State::Retired)));
    assert!(slab.claim().is_none());
    let resumed = slab.resume(index, generation).unwrap();
    assert!(slab.resume(index, generation).is_none());
    drop(pin);
    resumed.release(1).unwrap();
    assert!(slab.claim().is_some());
}

#[test]
fn slots_are_reused_in_lifo_order_except_those_released_last() {
    let slab = Slab::<Value>::new(5);
    for value in 0..4 {
        publish(&slab, value);
    }
    slab.retire(2, 0).unwrap().release_last(9).unwrap();
    slab.retire(0, 0).unwrap().release(1).unwrap();
    slab.retire(1, 0).unwrap().release_last(9).unwrap();
    slab.retire(3, 0).unwrap().release(1).unwrap();
    let order: Vec<_> = (0..5).map(|_| publish(&slab, 0)).collect();
    assert_eq!(order, [(3, 1), (0, 1), (4, 0), (2, 9), (1, 9)]);
    assert!(slab.claim().is_none());
    slab.retire(4, 0).unwrap().release_last(3).unwrap();
    assert_eq!(publish(&slab, 0), (4, 3));
}

#[test]
fn slots_of_many_chunks_have_distinct_names() {
    let count = if cfg!(miri) { 600 } else { 10_000 };
    let slab = Slab::<Value>::new(count);
    let names: Vec<_> = (0..u64::from(count))
        .map(|value| publish(&slab, value))
        .collect();
    assert!(slab.claim().is_none());
    assert_eq!(slab.live(), count as usize);
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), count as usize);
    for (value, &(index, generation)) in names.iter().enumerate() {
        assert_eq!(
            slab.pin(index, generation).unwrap().load(Ordering::Relaxed),
            value as u64
        );
    }
    for &(index, generation) in names.iter().step_by(2) {
        slab.retire(index, generation)
            .unwrap()
            .release(generation + 1)
            .unwrap();
    }
    assert_eq!(slab.live(), count as usize / 2);
    let left: Vec<_> = slab.iter_live().map(|pin| pin.index()).collect();
    assert!(left.iter().copied().eq((1..count).step_by(2)));
}

#[test]
fn a_slab_without_slots_refuses_claims_and_pins() {
    let slab = Slab::<Value>::new(0);
    assert!(slab.claim().is_none());
    assert!(slab.pin(0, 0).is_none());
    assert_eq!(slab.iter_live().count(), 0);
}

/// Every slot holds its own name, and a pin must find that name, regardless of what other threads do.
#[test]
fn threads_never_see_a_slot_under_a_wrong_generation() {
    const ROUNDS: u32 = if cfg!(miri) { 100 } else { 20_000 };
    let slab = Slab::<Value>::new(8);
    let name = |index: u32, generation: u32| u64::from(index) << 32 | u64::from(generation);
    std::thread::scope(|scope| {
        for owner in 0..2 {
            let slab = &slab;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let Some(claimed) = slab.claim() else {
                        continue;
                    };
                    let (index, generation) = (claimed.index(), claimed.generation());
                    claimed.store(name(index, generation), Ordering::Relaxed);
                    claimed.publish();
                    if (round + owner) % 3 == 0 {
                        std::thread::yield_now();
                    }
                    let mut retired = slab.retire(index, generation).unwrap();
                    while let Err(busy) = retired.release(generation.wrapping_add(1)) {
                        retired = busy;
                        std::thread::yield_now();
                    }
                }
            });
        }
        for reader in 0..2 {
            let slab = &slab;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let index = (round + reader) % 8;
                    let Some((generation, _)) = slab.peek(index) else {
                        continue;
                    };
                    if let Some(pin) = slab.pin(index, generation) {
                        assert_eq!(pin.load(Ordering::Relaxed), name(index, generation));
                        if round % 64 == 0 {
                            std::thread::yield_now();
                            assert_eq!(pin.load(Ordering::Relaxed), name(index, generation));
                        }
                    }
                }
            });
        }
    });
    assert_eq!(slab.live(), 0);
}

/// The same order of reuse, with a list that the caller keeps.
#[test]
fn the_caller_may_keep_the_free_list_of_a_slab() {
    let slab = Slab::<Value>::new(3);
    let mut free = FreeList::new();
    let publish = |free: &mut FreeList| {
        let claimed = slab.claim_from(free)?;
        let name = (claimed.index(), claimed.generation());
        claimed.publish();
        Some(name)
    };
    for index in 0..3 {
        assert_eq!(publish(&mut free), Some((index, 0)));
    }
    assert_eq!((publish(&mut free), free.used()), (None, 3));
    let look = slab.look(1).unwrap();
    assert!(look.is_live(0) && !look.is_live(1) && slab.look(999).is_none());
    slab.retire(0, 0)
        .unwrap()
        .release_last_to(&mut free, 7)
        .unwrap();
    let retired = slab.retire(1, 0).unwrap();
    assert!(!look.is_live(0));
    retired.release_to(&mut free, 4).unwrap();
    assert_eq!(
        slab.iter_live().map(|pin| pin.index()).collect::<Vec<_>>(),
        [2]
    );
    assert_eq!(publish(&mut free), Some((1, 4)));
    assert_eq!(publish(&mut free), Some((0, 7)));
}

#[test]
fn a_retired_slot_can_be_revived_under_its_old_generation() {
    let slab = Slab::<Value>::new(1);
    let (index, generation) = publish(&slab, 1);
    let pin = slab.pin(index, generation).unwrap();
    let retired = slab.retire(index, generation).unwrap();
    let retired = retired.revive(false).unwrap_err();
    drop(pin);
    retired.store(2, Ordering::Relaxed);
    retired.revive(false).unwrap();
    assert_eq!(
        slab.pin(index, generation).unwrap().load(Ordering::Relaxed),
        2
    );
}

/// One step ends an idle slot's life and claims it; a slot that is pinned or held keeps its life.
#[test]
fn only_an_idle_slot_is_reclaimed() {
    let slab = Slab::<Value>::new(2);
    let mut free = FreeList::new();
    let claimed = slab.claim_from(&mut free).unwrap();
    let index = claimed.index();
    claimed.publish();
    assert!(
        slab.retire_and_claim(index, 1, 2).is_none(),
        "another generation"
    );
    let pin = slab.pin(index, 0).unwrap();
    assert!(slab.retire_and_claim(index, 0, 1).is_none(), "pinned");
    drop(pin);
    assert!(slab.hold(index, 0) && !slab.hold(index, 1));
    assert!(slab.retire_and_claim(index, 0, 1).is_none(), "held");
    assert!(slab.pin(index, 0).is_some() && slab.look(index).unwrap().is_live(0));
    slab.unhold(index, 1);
    assert!(
        slab.retire_and_claim(index, 0, 1).is_none(),
        "another generation's hold"
    );
    slab.unhold(index, 0);
    drop(slab.retire_and_claim(index, 0, 1).unwrap());
    assert_eq!(slab.peek(index), Some((1, State::Claimed)));
    assert!(!slab.hold(index, 0) && slab.pin(index, 0).is_none());
    assert!(slab.claimed(index, 0).is_none());

    slab.claimed(index, 1).unwrap().publish_held();
    assert!(slab.retire_and_claim(index, 1, 2).is_none());
    let retired = slab.retire(index, 1).unwrap();
    retired.revive(true).unwrap();
    assert!(slab.retire_and_claim(index, 1, 2).is_none());
    slab.unhold(index, 1);
    slab.retire_and_claim(index, 1, 2)
        .unwrap()
        .release_to(&mut free);
    assert_eq!((slab.peek(index), free.used()), (Some((2, State::Free)), 0));
    let again = slab.claim_from(&mut free).unwrap();
    assert_eq!((again.index(), again.generation()), (index, 2));
}

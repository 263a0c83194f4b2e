//! Several threads register, deregister, bind and check at once, and no byte is granted after its owner took it back.

use rkey_base::range::VaRange;
use rkey_core::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

const ROUNDS: u32 = if cfg!(miri) { 20 } else { 20_000 };
const SLOTS: usize = 8;
const FREE: u64 = 0;

/// For each part of a simulated memory, a word and the key of its region. The owner stores the number of the round in
/// the word before it registers the part, and zero once the deregistration is drained. The holder of a grant must not
/// see zero.
struct Arena {
    used: [AtomicU64; SLOTS],
    keys: [AtomicU32; SLOTS],
}

fn address(slot: usize) -> u64 {
    0x10_0000 + slot as u64 * 0x1000
}

fn look_at(arena: &Arena, grant: &Grant<'_>, asked: usize) {
    let span = grant.single().unwrap();
    assert_eq!(span.start(), address(asked) + 8, "bytes of another region");
    let before = arena.used[asked].load(Ordering::Acquire);
    assert_ne!(before, FREE, "the memory was taken back under a grant");
    thread::yield_now();
    assert_eq!(arena.used[asked].load(Ordering::Acquire), before);
}

/// Checks all keys repeatedly: with pins, or in a section behind a lock.
fn check_all_the_time(
    table: &Protection,
    arena: &Arena,
    who: Accessor,
    stop: &AtomicBool,
    section: Option<&SectionLock<Section>>,
) -> u64 {
    let mut granted = 0;
    while !stop.load(Ordering::Relaxed) {
        for slot in 0..SLOTS {
            let key = RKey::Device(Key(arena.keys[slot].load(Ordering::Relaxed)));
            let addr = address(slot) + 8;
            let guard = section.map(SectionLock::lock);
            let grant = match &guard {
                Some(section) => section.check_remote(&who, key, addr, 64, Operation::Write),
                None => table.check_remote(&who, key, addr, 64, Operation::Write),
            };
            if let Ok(grant) = grant {
                look_at(arena, &grant, slot);
                granted += 1;
            }
        }
        thread::yield_now();
    }
    granted
}

/// Waits, as an owner does before it reuses the memory.
fn wait_for(mut deregistering: Deregistering<'_>, section: &SectionLock<Section>) {
    section.drain_section(&mut deregistering);
    while let Err(busy) = deregistering.finish() {
        deregistering = busy;
        thread::yield_now();
    }
}

fn arena() -> Arena {
    Arena {
        used: Default::default(),
        keys: Default::default(),
    }
}

#[test]
fn memory_belongs_to_the_owner_once_deregistration_is_drained() {
    let table = Arc::new(Protection::new(Limits::default(), Secrets([1, 2, 3, 4])));
    let domain = table.create_domain().unwrap();
    let section = SectionLock::new(table.section().unwrap());
    let (arena, stop) = (arena(), AtomicBool::new(false));
    let who = Accessor {
        domain,
        qp: 1,
        peer: None,
    };
    let granted = thread::scope(|scope| {
        let checkers = [None, Some(&section)].map(|section| {
            let (table, arena, stop) = (&table, &arena, &stop);
            scope.spawn(move || check_all_the_time(table, arena, who, stop, section))
        });
        let owners = [0, 1].map(|owner| {
            let (table, arena, section) = (&table, &arena, &section);
            scope.spawn(move || {
                let magazine = table.magazine();
                for round in 1..=ROUNDS {
                    let slot = owner + 2 * (round as usize % (SLOTS / 2));
                    arena.used[slot].store(u64::from(round), Ordering::Release);
                    let ranges = [VaRange::new(address(slot), 256).unwrap()];
                    let spec = RegionSpec::new(domain, &ranges, Access::all());
                    let with_lock = round % 3 == 0;
                    let region = match with_lock {
                        true => table.register(&spec),
                        false => table.register_from(&magazine, &spec),
                    };
                    let region = region.unwrap();
                    arena.keys[slot].store(region.key.0, Ordering::Relaxed);
                    if round % 4 == 0 {
                        thread::yield_now();
                    }
                    let deregistering = match with_lock {
                        true => table.deregister(region.id),
                        false => table.deregister_into(&magazine, region.id),
                    };
                    wait_for(deregistering.unwrap(), section);
                    arena.used[slot].store(FREE, Ordering::Release);
                }
            })
        });
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        checkers
            .map(|checker| checker.join().unwrap())
            .iter()
            .sum::<u64>()
    });
    let snapshot = table.snapshot();
    assert_eq!((snapshot.regions.len(), snapshot.total_bytes), (0, 0));
    table.close_domain(domain).unwrap();
    println!("{granted} accesses granted");
}

#[test]
fn revoking_a_region_ends_access_through_its_windows_under_load() {
    for kind in [WindowKind::Type1, WindowKind::Type2B] {
        let table = Arc::new(Protection::new(Limits::default(), Secrets([1, 2, 3, 4])));
        let domain = table.create_domain().unwrap();
        let section = SectionLock::new(table.section().unwrap());
        let (arena, stop) = (arena(), AtomicBool::new(false));
        let who = Accessor {
            domain,
            qp: 1,
            peer: None,
        };
        thread::scope(|scope| {
            let checkers = [None, Some(&section)].map(|section| {
                let (table, arena, stop) = (&table, &arena, &stop);
                scope.spawn(move || check_all_the_time(table, arena, who, stop, section))
            });
            let window = table.create_window(domain, kind).unwrap();
            for round in 1..=ROUNDS / 4 {
                let slot = round as usize % SLOTS;
                arena.used[slot].store(u64::from(round), Ordering::Release);
                let ranges = [VaRange::new(address(slot), 256).unwrap()];
                let spec = RegionSpec::new(domain, &ranges, Access::all());
                let region = table.register(&spec).unwrap();
                let new_key = window.key.with_consumer_bits(slot as u8);
                let key = table
                    .bind_window(&BindRequest {
                        window: window.id,
                        region: BindRegion::Id(region.id),
                        range: VaRange::new(address(slot) + 8, 64).unwrap(),
                        access: Access::REMOTE_WRITE,
                        zero_based: false,
                        new_key: Some(new_key).filter(|_| kind.is_type2()),
                        qp: Some(1),
                        domain,
                        rules: Rules::VERBS,
                    })
                    .unwrap();
                arena.keys[slot].store(key.0, Ordering::Relaxed);
                if round % 4 == 0 {
                    thread::yield_now();
                }
                wait_for(table.revoke_and_deregister(region.id).unwrap(), &section);
                arena.used[slot].store(FREE, Ordering::Release);
            }
            stop.store(true, Ordering::Relaxed);
            for checker in checkers {
                checker.join().unwrap();
            }
        });
    }
}

#[test]
fn requested_keys_grant_their_own_regions_under_load() {
    let table = Arc::new(Protection::new(Limits::default(), Secrets([1, 2, 3, 4])));
    let domain = table.create_domain().unwrap();
    let section = SectionLock::new(table.section().unwrap());
    let who = Accessor {
        domain,
        qp: 1,
        peer: None,
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let checker = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for key in 0..SLOTS {
                    let asked = RKey::Requested(key as u64);
                    let addr = address(key) + 8;
                    if let Ok(grant) = table.check_remote(&who, asked, addr, 8, Operation::Read) {
                        assert_eq!(grant.single().unwrap().start(), addr);
                    }
                }
            }
        });
        for round in 0..ROUNDS as usize {
            let key = round % SLOTS;
            let ranges = [VaRange::new(address(key), 256).unwrap()];
            let spec = RegionSpec::new(domain, &ranges, Access::all());
            let spec = RegionSpec {
                requested_key: Some(key as u64),
                ..spec
            };
            let region = table.register(&spec).unwrap();
            wait_for(table.deregister(region.id).unwrap(), &section);
        }
        stop.store(true, Ordering::Relaxed);
        checker.join().unwrap();
    });
}

//! The lock-free checks under loom: rebinding of a slot, requested keys, and accesses racing with their revocation.
//!
//! The spawned thread reads, and the model's first thread writes: loom remembers only the last access to a word, and a
//! writer that reads a word before changing it would hide the reader's access.

use crate::keys::key_table::KeyTable;
use crate::keys::requested::{Requested, Vacancy};
use crate::protection::entry::{BoundTo, Entry};
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Access, Accessor, Addressing, BindRegion, BindRequest, Change, CoreError, Deregistering,
    DomainId, Limits, Magazine, Operation, Protection, RKey, Region, RegionId, RegionSpec, Rules,
    Secrets, Section, SectionLock, WindowKind,
};
use loom::sync::Arc;
use loom::thread;
use rkey_base::range::VaRange;

/// Every field identifies the binding that it belongs to.
fn binding(of: u32) -> BoundTo {
    BoundTo {
        offset: u64::from(of),
        len: u64::from(of),
        base: u64::from(of),
        access: Access::REMOTE_READ,
        qp: Some(of),
        consumer_bits: of as u8,
        region: of,
        region_generation: of,
    }
}

/// A reader sees a binding as a whole or not at all.
#[test]
fn a_reader_sees_a_whole_binding_or_none() {
    loom::model(|| {
        let slot = Arc::new(Entry::default());
        slot.rebind(Some(&binding(1)));
        let reader = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                if let Some((seen, _)) = slot.binding() {
                    assert!(seen == binding(1) || seen == binding(2), "{seen:?}");
                }
            })
        };
        slot.rebind(None);
        slot.rebind(Some(&binding(2)));
        reader.join().unwrap();
        assert_eq!(slot.binding().unwrap().0, binding(2));
    });
}

fn first_use(index: u32) -> RegionId {
    let generation = 0;
    RegionId { index, generation }
}

fn add(table: &Requested, domain: DomainId, key: u64, index: u32) {
    let adding = table.adding();
    let Vacancy::Room(room) = adding.vacancy(domain, key) else {
        panic!("no room");
    };
    room.fill(first_use(index));
}

/// Looks up `key` while key 7 is removed, key 8 takes its cell, and key 5 stays in the newest level.
fn look_up_against_changes(key: u64, right: fn(Option<(u32, u32)>) -> bool) {
    loom::model(move || {
        let table = Arc::new(Requested::new(1));
        let domain = DomainId(1);
        add(&table, domain, 7, 70);
        add(&table, domain, 5, 50);
        let reader = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let found = table.find(domain, key);
                assert!(right(found), "{found:?}");
            })
        };
        table.remove(domain, 7, first_use(70));
        add(&table, domain, 8, 80);
        reader.join().unwrap();
        assert_eq!(table.find(domain, 7), None);
        assert_eq!(table.find(domain, 8), Some((80, 0)));
    });
}

/// A cell that is reused for another key is never taken for the old key's, and vice versa.
#[test]
fn a_reused_cell_is_never_taken_for_another_key() {
    look_up_against_changes(7, |found| matches!(found, None | Some((70, 0))));
    look_up_against_changes(8, |found| matches!(found, None | Some((80, 0))));
}

#[test]
fn a_requested_key_that_stays_is_always_found() {
    look_up_against_changes(5, |found| found == Some((50, 0)));
}

/// A device key is found with its own slot or not at all; a key that stays is always found, even while the table grows.
#[test]
fn a_device_key_is_found_with_its_own_slot_or_not_at_all() {
    loom::model(|| {
        let (goes, stays, comes, grows) = (0x100, 0x200, 0x300, 0x500);
        let table = Arc::new(KeyTable::new());
        assert!(table.insert(goes, 1, 0) && table.insert(stays, 2, 0));
        let reader = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert_eq!(table.find(stays), Some((2, 0)));
                assert!(matches!(table.find(goes), None | Some((1, 0))));
                assert!(matches!(table.find(comes), None | Some((3, 0))));
            })
        };
        table.end(goes, 1, 0);
        assert!(table.insert(comes, 3, 0) && table.insert(grows, 4, 0));
        reader.join().unwrap();
        assert_eq!(table.find(goes), None);
        assert_eq!(table.find(comes), Some((3, 0)));
        assert_eq!(table.find(grows), Some((4, 0)));
    });
}

const OURS: u64 = 0;
const REGISTERED: u64 = 1;
const START: u64 = 0x1000;

/// A table with one region, the lock of an engine, and a word that says who owns the memory.
struct World {
    table: std::sync::Arc<Protection>,
    engine: SectionLock<Section>,
    memory: AtomicU64,
    who: Accessor,
}

impl World {
    fn new() -> (Arc<Self>, Region) {
        let limits = Limits {
            key_slots: 4,
            ..Limits::default()
        };
        let table = std::sync::Arc::new(Protection::new(limits, Secrets([1, 2, 3, 4])));
        let domain = table.create_domain().unwrap();
        let world = Arc::new(Self {
            engine: SectionLock::new(table.section().unwrap()),
            table,
            memory: AtomicU64::new(REGISTERED),
            who: Accessor {
                domain,
                qp: 1,
                peer: None,
            },
        });
        let region = world.register();
        (world, region)
    }

    fn register(&self) -> Region {
        let ranges = [VaRange::new(START, 64).unwrap()];
        let spec = RegionSpec::new(self.who.domain, &ranges, Access::all());
        self.table.register(&spec).unwrap()
    }

    /// A peer's access: memory that is granted must still belong to the region.
    fn access_with_a_pin(&self, key: RKey) {
        let grant = self
            .table
            .check_remote(&self.who, key, START, 8, Operation::Write);
        if grant.is_ok() {
            assert_eq!(self.memory.load(Ordering::Relaxed), REGISTERED);
        }
    }

    /// A peer's access in a section.
    fn access_in_section(&self, key: RKey) {
        let section = self.engine.lock();
        let grant = section.check_remote(&self.who, key, START, 8, Operation::Write);
        if grant.is_ok() {
            assert_eq!(self.memory.load(Ordering::Relaxed), REGISTERED);
        }
    }

    /// The owner's steps before it reuses the memory; false if a grant still holds it.
    fn take_back(&self, mut deregistering: Deregistering<'_>) -> bool {
        self.engine.drain_section(&mut deregistering);
        let drained = deregistering.finish().is_ok();
        if drained {
            self.memory.store(OURS, Ordering::Relaxed);
        }
        drained
    }
}

#[test]
fn deregistering_waits_for_access_in_a_section() {
    loom::model(|| {
        let (world, region) = World::new();
        let peer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.access_in_section(RKey::Device(region.key)))
        };
        let deregistering = world.table.deregister(region.id).unwrap();
        assert!(world.take_back(deregistering), "there is no pin");
        peer.join().unwrap();
    });
}

#[test]
fn deregistering_waits_for_access_with_a_pin() {
    loom::model(|| {
        let (world, region) = World::new();
        let peer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.access_with_a_pin(RKey::Device(region.key)))
        };
        let deregistering = world.table.deregister(region.id).unwrap();
        world.take_back(deregistering);
        peer.join().unwrap();
    });
}

/// A slot is reused while an old key is looked up: the old key grants no access to the new region.
#[test]
fn an_old_key_does_not_reach_the_next_region_in_its_slot() {
    loom::model(|| {
        let (world, region) = World::new();
        let peer = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let section = world.engine.lock();
                let key = RKey::Device(region.key);
                let grant = section.check_remote(&world.who, key, START, 8, Operation::Write);
                grant.is_ok_and(|grant| {
                    assert_eq!(grant.single().map(|span| span.start()), Some(START));
                    true
                })
            })
        };
        let mut deregistering = world.table.deregister(region.id).unwrap();
        world.engine.lock().drain_section(&mut deregistering);
        assert!(deregistering.finish().is_ok());
        let ranges = [VaRange::new(8 * START, 64).unwrap()];
        let spec = RegionSpec::new(world.who.domain, &ranges, Access::all());
        let next = world.table.register(&spec).unwrap();
        assert_eq!(next.id.index, region.id.index, "the same slot");
        peer.join().unwrap();
    });
}

/// A region is changed in place, under the same keys. A grant covers either the old memory, which is not yet returned,
/// or the new memory, and never the start of one with the length of the other.
fn access_against_a_change(addr: u64) {
    loom::model(move || {
        let (world, _) = World::new();
        let [before, after] =
            [(START, 64), (8 * START, 128)].map(|(at, len)| [VaRange::new(at, len).unwrap()]);
        let spec = RegionSpec {
            addressing: Addressing::Zero,
            ..RegionSpec::new(world.who.domain, &before, Access::all())
        };
        let region = world.table.register(&spec).unwrap();
        let peer = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let section = world.engine.lock();
                let key = RKey::Device(region.key);
                let grant = section.check_remote(&world.who, key, addr, 8, Operation::Write);
                let Ok(grant) = grant else { return };
                let start = grant.single().unwrap().start();
                if start == START + addr {
                    assert!(addr < 64, "the old memory was shorter");
                    assert_eq!(world.memory.load(Ordering::Relaxed), REGISTERED);
                } else {
                    assert_eq!(start, 8 * START + addr);
                }
            })
        };
        let change = Change {
            ranges: Some((&after, Addressing::Zero)),
            ..Change::default()
        };
        let mut changing = world.table.change_region(region.id, &change).unwrap();
        world.engine.drain_section(&mut changing);
        if changing.finish().is_ok() {
            world.memory.store(OURS, Ordering::Relaxed);
        }
        peer.join().unwrap();
    });
}

#[test]
fn a_change_in_place_waits_for_access_in_a_section() {
    access_against_a_change(0);
}

#[test]
fn the_length_after_a_change_applies_only_to_the_new_memory() {
    access_against_a_change(64);
}

/// A window is unbound: grants through it end before its region's memory belongs to the owner.
#[test]
fn deregistering_waits_for_access_through_an_unbound_window() {
    loom::model(|| {
        let (world, region) = World::new();
        let window = world
            .table
            .create_window(world.who.domain, WindowKind::Type1)
            .unwrap();
        let bind = |len| BindRequest {
            window: window.id,
            region: BindRegion::Id(region.id),
            range: VaRange::new(START, len).unwrap(),
            access: Access::REMOTE_WRITE,
            zero_based: false,
            new_key: None,
            qp: None,
            domain: world.who.domain,
            rules: Rules::default(),
        };
        let key = world.table.bind_window(&bind(32)).unwrap();
        let peer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.access_in_section(RKey::Device(key)))
        };
        world.table.bind_window(&bind(0)).unwrap();
        let deregistering = world.table.deregister(region.id).unwrap();
        world.take_back(deregistering);
        peer.join().unwrap();
    });
}

impl World {
    fn register_from(&self, magazine: &Magazine, start: u64) -> Result<Region, CoreError> {
        let ranges = [VaRange::new(start, 64).unwrap()];
        let spec = RegionSpec::new(self.who.domain, &ranges, Access::all());
        self.table.register_from(magazine, &spec)
    }
}

/// Runs a model with so many steps that loom tries at most three preemptions.
fn long_model(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A region ends into a magazine, and another region gets its slot at once.
fn access_against_a_magazine(access: fn(&World, RKey)) {
    long_model(move || {
        let (world, region) = World::new();
        let magazine = world.table.magazine();
        let peer = {
            let world = Arc::clone(&world);
            thread::spawn(move || access(&world, RKey::Device(region.key)))
        };
        let deregistering = world.table.deregister_into(&magazine, region.id).unwrap();
        world.take_back(deregistering);
        let next = world.register_from(&magazine, 8 * START).unwrap();
        assert_ne!(next.key, region.key);
        peer.join().unwrap();
    });
}

#[test]
fn deregistering_into_a_magazine_waits_for_access_in_a_section() {
    access_against_a_magazine(World::access_in_section);
}

#[test]
fn deregistering_into_a_magazine_waits_for_access_with_a_pin() {
    access_against_a_magazine(World::access_with_a_pin);
}

/// A region that is bound to something does not end. A region that has ended is not bound, and neither is the next region in
/// its slot.
#[test]
fn a_region_is_either_bound_or_deregistered_into_a_magazine() {
    loom::model(|| {
        let (world, region) = World::new();
        let magazine = world.table.magazine();
        let binder = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.table.bind_endpoint(region.id, 7))
        };
        let deregistered = world.table.deregister_into(&magazine, region.id).map(drop);
        if deregistered.is_ok() {
            world.register_from(&magazine, 8 * START).unwrap();
        }
        match (deregistered, binder.join().unwrap()) {
            (Ok(()), Err(CoreError::NoSuchRegion(_))) => {
                assert_eq!(world.table.forget_endpoint(7), 0);
            }
            (Err(CoreError::RegionBusy { .. }), Ok(())) => {
                assert_eq!(world.table.forget_endpoint(7), 1);
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Counts stay exact when another thread empties a magazine that its own thread is using.
#[test]
fn counts_stay_exact_when_another_thread_empties_a_magazine() {
    long_model(|| {
        let (world, region) = World::new();
        let magazine = world.table.magazine();
        let owner = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let own = world.register_from(&magazine, 8 * START);
                let own = own.map(|own| world.table.deregister_into(&magazine, own.id).map(drop));
                (magazine, own)
            })
        };
        drop(world.table.deregister(region.id).unwrap());
        // The domain closes when nothing is registered, even if regions are prepaid.
        let early = world.table.close_domain(world.who.domain).is_ok();
        let (magazine, registered) = owner.join().unwrap();
        match registered {
            Ok(deregistered) => deregistered.unwrap(),
            Err(error) => assert!(early, "{error}"),
        }
        assert!(early || world.table.close_domain(world.who.domain).is_ok());
        drop(magazine);
    });
}

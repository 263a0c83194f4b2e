//! The end and the change of a region: what waits for grants, and what is left afterwards.

use crate::fixture::Fixture;
use crate::table::{ALL, over, range, remote, table, table_within};
use rkey_core::*;
use std::sync::Arc;

#[test]
fn deregistering_waits_for_the_grant() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let region = table
        .register(&RegionSpec::new(domain, &ranges, ALL))
        .unwrap();
    let grant = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap();
    let deregistering = table.deregister(region.id).unwrap();
    assert!(!deregistering.is_drained());
    let refused = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap_err();
    assert_eq!(refused, Reason::Deregistering);
    assert_eq!(
        table.deregister(region.id).unwrap_err(),
        CoreError::NoSuchRegion(region.id)
    );
    let deregistering = deregistering.finish().unwrap_err();
    drop(grant);
    assert!(deregistering.is_drained());
    deregistering.finish().unwrap();
    let refused = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap_err();
    assert_eq!(refused, Reason::StaleKey { now: SlotNow::Free });
}

#[test]
fn grants_of_a_section_do_not_delay_deregistration() {
    let (table, domain) = table();
    let table = Arc::new(table);
    let mut section = table.section().unwrap();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec {
        requested_key: Some(9),
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let who = over(domain, 1);
    let region = table.register(&spec).unwrap();
    table.bind_counter(region.id, 5).unwrap();
    let write = Operation::Write;
    let ask = |section: &Section, key| {
        let grant = section.check_remote(&who, key, 0x1000, 8, write);
        grant.map(drop)
    };
    let key = RKey::Device(region.key);
    let grant = section.check_remote(&who, key, 0x1000, 8, write).unwrap();
    assert_eq!(grant.single(), Some(range(0x1000, 8)));
    assert_eq!(
        (grant.region(), grant.counter()),
        (Some(region.id), Some(5))
    );
    assert!(ask(&section, RKey::Requested(9)).is_ok());
    let local = region.local_key;
    assert!(
        section
            .check_local(domain, local, 0x1000, 8, LocalUse::Send)
            .is_ok()
    );
    table.unbind_counter(region.id).unwrap();
    let mut deregistering = table.deregister(region.id).unwrap();
    // The compiler refuses `drain_section` while a grant of the section exists.
    drop(grant);
    section.drain_section(&mut deregistering);
    deregistering.finish().unwrap();
    let denied = ask(&section, key).unwrap_err();
    assert!(matches!(denied.reason, Reason::StaleKey { .. }), "{denied}");
}

/// Grants of a section are not counted, so a region ends only when exclusive access to the section has proved that they
/// have ended.
#[test]
fn a_region_ends_once_its_tables_section_is_drained() {
    let (table, domain) = table();
    let table = Arc::new(table);
    let mut section = table.section().unwrap();
    assert!(table.section().is_none(), "a table has only one");
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec::new(domain, &ranges, ALL);
    let [first, second, third] = [(); 3].map(|()| table.register(&spec).unwrap());

    let deregistering = table.deregister(first.id).unwrap();
    let mut deregistering = deregistering.finish().unwrap_err();
    let mut of_another = Arc::new(self::table().0).section().unwrap();
    of_another.drain_section(&mut deregistering);
    assert!(!deregistering.is_drained(), "the section of another table");
    section.drain_section(&mut deregistering);
    assert!(deregistering.is_drained());
    deregistering.finish().unwrap();

    let lock = SectionLock::new(section);
    let changing = table.change_region(second.id, &Change::default()).unwrap();
    let mut changing = changing.finish().unwrap_err();
    lock.drain_section(&mut changing);
    changing.finish().unwrap();

    let deregistering = table.deregister(third.id).unwrap();
    let deregistering = deregistering.finish().unwrap_err();
    drop(lock);
    deregistering.finish().unwrap();
    assert!(table.section().is_some(), "the next section");
}

/// A section remembers the slot in which a key was found. A slot has 2048 generations; when they wrap, the remembered
/// slot holds another region.
#[test]
fn a_stale_key_stays_refused_in_a_section_when_generations_wrap() {
    const GENERATIONS: usize = 2048;
    let limits = Limits {
        key_slots: 1,
        ..Limits::default()
    };
    let (table, domain) = table_within(limits);
    let table = Arc::new(table);
    let mut section = table.section().unwrap();
    let who = over(domain, 1);
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec::new(domain, &ranges, ALL);
    let ask = |section: &Section, key: Key| {
        let key = RKey::Device(key);
        let grant = section.check_remote(&who, key, 0x1000, 8, Operation::Write);
        grant.map(drop)
    };
    let first = table.register(&spec).unwrap();
    assert!(ask(&section, first.key).is_ok());
    let mut last = first.id;
    for _ in 0..GENERATIONS {
        let mut deregistering = table.deregister(last).unwrap();
        section.drain_section(&mut deregistering);
        deregistering.finish().unwrap();
        last = table.register(&spec).unwrap().id;
    }
    assert_eq!(last, first.id, "the same slot and generation");
    let denied = ask(&section, first.key).unwrap_err();
    assert!(matches!(denied.reason, Reason::StaleKey { .. }), "{denied}");
}

#[test]
fn a_dropped_deregistration_finishes_when_the_grant_ends() {
    let limits = Limits {
        key_slots: 1,
        ..Limits::default()
    };
    let (table, domain) = table_within(limits);
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec::new(domain, &ranges, ALL);
    let region = table.register(&spec).unwrap();
    let grant = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap();
    drop(table.deregister(region.id).unwrap());
    let none_left = CoreError::LimitReached {
        limit: Limit::KeySlots,
        value: 1,
    };
    assert_eq!(table.register(&spec), Err(none_left));
    drop(grant);
    assert!(table.register(&spec).is_ok());
}

#[test]
fn a_reregistration_gives_new_keys_or_changes_nothing() {
    let (table, domain) = table();
    let other = table.create_domain().unwrap();
    let ranges = [range(0x1000, 64)];
    let old = table
        .register(&RegionSpec::new(domain, &ranges, Access::REMOTE_READ))
        .unwrap();
    let change = Change {
        access: Some(Access::REMOTE_WRITE),
        rules: Rules::VERBS,
        ..Change::default()
    };
    assert!(table.reregister(old.id, &change).is_err());
    assert!(remote(&table, domain, old.key, 0x1000, 8, Operation::Read).is_ok());

    let moved = [range(0x8000, 32)];
    let change = Change {
        domain: Some(other),
        ranges: Some((&moved, Addressing::Zero)),
        access: Some(Access::REMOTE_WRITE),
        rules: Rules::empty(),
    };
    let grant = remote(&table, domain, old.key, 0x1000, 8, Operation::Read).unwrap();
    let (new, deregistering) = table.reregister(old.id, &change).unwrap();
    assert!(!deregistering.is_drained());
    drop(grant);
    deregistering.finish().unwrap();
    assert!(new.key != old.key && new.local_key != old.local_key && new.id != old.id);
    let refused = remote(&table, domain, old.key, 0x1000, 8, Operation::Read).unwrap_err();
    assert!(matches!(refused, Reason::StaleKey { .. }));
    let granted = remote(&table, other, new.key, 24, 8, Operation::Write).unwrap();
    assert_eq!(granted.single(), Some(range(0x8018, 8)));
    assert_eq!(table.snapshot().total_bytes, 32);
}

#[test]
fn a_change_in_place_keeps_keys_and_handle() {
    let (table, domain) = table();
    let other = table.create_domain().unwrap();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec::new(domain, &ranges, Access::REMOTE_READ);
    let region = table
        .register(&RegionSpec {
            requested_key: Some(3),
            ..spec
        })
        .unwrap();
    let moved = [range(0x8000, 16), range(0x9000, 16)];
    let change = Change {
        domain: Some(other),
        ranges: Some((&moved, Addressing::Zero)),
        access: Some(Access::REMOTE_WRITE),
        rules: Rules::empty(),
    };
    let wrong = Change {
        ranges: Some((&[], Addressing::Zero)),
        ..change
    };
    assert_eq!(
        table.change_region(region.id, &wrong).unwrap_err(),
        CoreError::Empty
    );
    let grant = remote(&table, domain, region.key, 0x1000, 8, Operation::Read).unwrap();
    let changing = table.change_region(region.id, &change).unwrap();
    let refused = remote(&table, domain, region.key, 0x1000, 8, Operation::Read).unwrap_err();
    assert_eq!(refused, Reason::Deregistering);
    let changing = changing.finish().unwrap_err();
    drop(grant);
    assert!(changing.is_drained());
    assert_eq!(changing.finish().unwrap(), region);
    let granted = remote(&table, other, region.key, 12, 8, Operation::Write).unwrap();
    assert_eq!(
        granted.spans().map(|span| span.range()).collect::<Vec<_>>(),
        [range(0x800c, 4), range(0x9000, 4)]
    );
    drop(granted);
    table.close_domain(domain).unwrap();
    // Dropping an unfinished change deregisters the region, and nothing of it remains.
    let change = Change {
        access: Some(Access::REMOTE_READ),
        ..Change::default()
    };
    let changing = table.change_region(region.id, &change).unwrap();
    let who = over(other, 1);
    let asked = || {
        let refused = table.check_remote(&who, RKey::Requested(3), 0, 8, Operation::Read);
        refused.unwrap_err().reason
    };
    assert_eq!(
        asked(),
        Reason::Deregistering,
        "the key stays known during the change"
    );
    drop(changing);
    assert_eq!(asked(), Reason::UnknownKey);
    assert_eq!(
        table.enable(region.id),
        Err(CoreError::NoSuchRegion(region.id))
    );
    assert_eq!(table.snapshot().total_bytes, 0);
    table.close_domain(other).unwrap();
}

/// The handles of a free slot's next generations have not been issued yet.
#[test]
fn a_handle_of_a_future_generation_is_unknown() {
    let it = Fixture::new();
    let id = it.region.id.to_bits();
    it.close().unwrap();
    let ask = |later: u64| {
        let region = RegionId::from_bits(id + (later << 32));
        let grant = it
            .table
            .check_region(it.domain, region, 0x1000, 8, LocalUse::Send);
        grant.map(drop).map_err(|denial| denial.reason)
    };
    assert!(matches!(ask(0), Err(Reason::StaleKey { .. })));
    for later in 1..4 {
        assert_eq!(ask(later), Err(Reason::UnknownKey), "{later}");
    }
}

/// Only a region whose every later access needs the same check is granted as a whole.
#[test]
fn only_plain_regions_are_granted_as_a_whole() {
    let (table, domain) = table();
    let table = Arc::new(table);
    let section = table.section().unwrap();
    let ranges = [range(0x1000, 64)];
    let plain = RegionSpec {
        addressing: Addressing::Iova(0x9000),
        requested_key: Some(9),
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let who = over(domain, 1);
    let whole = |key, addr, len, want| section.whole_region(&who, key, addr, len, want);
    let write = Operation::Write;
    let region = table.register(&plain).unwrap();
    let expected = PlainRegion {
        region: region.id,
        base: 0x9000,
        memory: range(0x1000, 64),
    };
    for key in [RKey::Device(region.key), RKey::Requested(9)] {
        assert_eq!(whole(key, 0x9008, 8, write).unwrap(), Some(expected));
        let denied = whole(key, 0x9040, 1, write).unwrap_err();
        assert!(
            matches!(denied.reason, Reason::OutOfRange { .. }),
            "{denied}"
        );
    }
    let window = table.create_window(domain, WindowKind::Type1).unwrap();
    let key = table.bind_window(&BindRequest {
        window: window.id,
        region: BindRegion::Id(region.id),
        range: range(0x9000, 8),
        access: Access::REMOTE_WRITE,
        zero_based: false,
        new_key: None,
        qp: None,
        domain,
        rules: Rules::default(),
    });
    let key = RKey::Device(key.unwrap());
    assert_eq!(whole(key, 0x9000, 8, write).unwrap(), None, "a window");
    table.bind_counter(region.id, 5).unwrap();
    let key = RKey::Device(region.key);
    assert_eq!(whole(key, 0x9000, 8, write).unwrap(), None, "a counter");
    let readable = RegionSpec {
        access: Access::REMOTE_READ,
        requested_key: None,
        ..plain
    };
    let readable = table.register(&readable).unwrap();
    let denied = whole(RKey::Device(readable.key), 0x9000, 8, write);
    assert!(matches!(denied.unwrap_err().reason, Reason::Right { .. }));
}

#[test]
fn scattered_and_shared_regions_and_those_of_one_peer_are_not_granted_as_a_whole() {
    let (table, domain) = table();
    let table = Arc::new(table);
    let section = table.section().unwrap();
    let ranges = [range(0x1000, 64)];
    let plain = RegionSpec::new(domain, &ranges, ALL);
    let who = over(domain, 1);
    let two = [range(0x1000, 64), range(0x3000, 64)];
    let unusual = [
        RegionSpec {
            ranges: &two,
            addressing: Addressing::Zero,
            ..plain
        },
        RegionSpec {
            memory: MemoryKind::Shared {
                segment: 1,
                offset: 0,
            },
            addressing: Addressing::Zero,
            ..plain
        },
        RegionSpec {
            peer: Some(3),
            addressing: Addressing::Zero,
            ..plain
        },
    ];
    for (spec, peer) in unusual.iter().zip([None, None, Some(3)]) {
        let key = RKey::Device(table.register(spec).unwrap().key);
        let who = Accessor { peer, ..who };
        let whole = section.whole_region(&who, key, 0, 8, Operation::Write);
        assert_eq!(whole.unwrap(), None, "{spec:?}");
    }
}

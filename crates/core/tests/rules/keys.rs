//! Keys of regions: those that the program asks for, and those of the device, which do not come again.

use crate::table::{ALL, over, range, table, table_within};
use rkey_core::*;

/// Proves: FI-034, FI-113, FI-I33, FI-I41
#[test]
fn requested_keys_are_unique_among_the_live_regions_of_a_domain() {
    let (table, domain) = table();
    let other = table.create_domain().unwrap();
    let ranges = [range(0x1000, 64)];
    let register = |domain, key| {
        let spec = RegionSpec::new(domain, &ranges, Access::REMOTE_WRITE);
        table.register(&RegionSpec {
            requested_key: Some(key),
            ..spec
        })
    };
    let ask = |domain, key| {
        let who = over(domain, 1);
        let key = WireKey::Requested(key);
        table
            .check_remote(&who, key, 0x1000, 8, Operation::Write)
            .map(|lease| lease.region())
    };
    let key = 0x1234_5678_9abc;
    let first = register(domain, key).unwrap();
    assert_eq!(first.requested, Some(key));
    assert_eq!(register(domain, key), Err(CoreError::KeyTaken(key)));
    let second = register(other, key).unwrap();
    assert_eq!(ask(domain, key).unwrap(), Some(first.id));
    assert_eq!(ask(other, key).unwrap(), Some(second.id));
    table.close_region(first.id).unwrap().finish().unwrap();
    assert_eq!(ask(domain, key).unwrap_err().reason, Reason::UnknownKey);
    let third = register(domain, key).unwrap();
    assert_eq!(ask(domain, key).unwrap(), Some(third.id));
    assert_eq!(
        register(domain, u64::MAX),
        Err(CoreError::KeyReserved(u64::MAX))
    );
    // A region without remote rights gets no remote key, and may ask for one that is taken.
    let local = RegionSpec::new(domain, &ranges, Access::SEND);
    let local = table
        .register(&RegionSpec {
            requested_key: Some(key),
            ..local
        })
        .unwrap();
    assert_eq!(local.requested, None);
    let shown = format!("{:?}", table.snapshot());
    assert!(
        !shown.contains(&key.to_string()),
        "keys are nobody's business"
    );
}

/// A stale key stays stale for as long as there are other keys to give out: with four slots, for all 8,192 of them.
#[test]
#[cfg_attr(miri, ignore = "thousands of registrations")]
fn keys_repeat_only_when_all_are_used_up() {
    let limits = Limits {
        key_slots: 4,
        ..Limits::default()
    };
    let (table, domain) = table_within(limits);
    let ranges = [range(0x1000, 64)];
    let mut seen = std::collections::HashSet::new();
    for round in 0..4 * 2048 {
        let region = table
            .register(&RegionSpec::new(domain, &ranges, ALL))
            .unwrap();
        assert!(
            seen.insert(region.key.0),
            "{} came again in round {round}",
            region.key
        );
        assert!(
            seen.insert(region.local_key.0),
            "{} came again",
            region.local_key
        );
        table.close_region(region.id).unwrap().finish().unwrap();
    }
    let again = table
        .register(&RegionSpec::new(domain, &ranges, ALL))
        .unwrap();
    assert!(seen.contains(&again.key.0));
}

//! Keys of regions: those that the program requests, and those that the device chooses, which it does not issue twice.

use crate::table::{ALL, over, range, table, table_within};
use rkey_core::*;
use std::collections::HashSet;

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
        let key = RKey::Requested(key);
        table
            .check_remote(&who, key, 0x1000, 8, Operation::Write)
            .map(|grant| grant.region())
    };
    let key = 0x1234_5678_9abc;
    let first = register(domain, key).unwrap();
    assert_eq!(first.requested, Some(key));
    assert_eq!(register(domain, key), Err(CoreError::KeyTaken(key)));
    let second = register(other, key).unwrap();
    assert_eq!(ask(domain, key).unwrap(), Some(first.id));
    assert_eq!(ask(other, key).unwrap(), Some(second.id));
    table.deregister(first.id).unwrap().finish().unwrap();
    assert_eq!(ask(domain, key).unwrap_err().reason, Reason::UnknownKey);
    let third = register(domain, key).unwrap();
    assert_eq!(ask(domain, key).unwrap(), Some(third.id));
    assert_eq!(
        register(domain, u64::MAX),
        Err(CoreError::KeyReserved(u64::MAX))
    );
    // A region without remote rights gets no remote key, and may request one that is taken.
    let local = RegionSpec::new(domain, &ranges, Access::SEND);
    let local = table
        .register(&RegionSpec {
            requested_key: Some(key),
            ..local
        })
        .unwrap();
    assert_eq!(local.requested, None);
    let shown = format!("{:?}", table.snapshot());
    assert!(!shown.contains(&key.to_string()), "keys are not printed");
}

/// A stale key stays stale even when the generations of its slot have wrapped (four slots with 2,048 generations each).
#[test]
#[cfg_attr(miri, ignore = "thousands of registrations")]
fn remote_keys_do_not_repeat_when_generations_wrap() {
    let limits = Limits {
        key_slots: 4,
        ..Limits::default()
    };
    let (table, domain) = table_within(limits);
    let ranges = [range(0x1000, 64)];
    let (mut remote, mut local) = (HashSet::new(), HashSet::new());
    let mut first = None;
    for round in 0..3 * 4 * 2048 {
        let region = table
            .register(&RegionSpec::new(domain, &ranges, ALL))
            .unwrap();
        let key = region.key;
        assert!(remote.insert(key.0), "{key} came again in round {round}");
        let again = !local.insert(region.local_key.0);
        assert_eq!(again, round >= 4 * 2048, "{} in {round}", region.local_key);
        table.deregister(region.id).unwrap().finish().unwrap();
        let first = *first.get_or_insert(key);
        let who = over(domain, 1);
        for key in [first, key] {
            let asked = table.check_remote(&who, RKey::Device(key), 0x1000, 8, Operation::Write);
            let refused = asked.unwrap_err().reason;
            assert!(matches!(refused, Reason::StaleKey { .. }), "{refused:?}");
        }
    }
}

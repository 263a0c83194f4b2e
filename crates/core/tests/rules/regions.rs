//! Regions: their bytes, their addresses, and the accesses that they allow.

use crate::table::{ALL, range, remote, table};
use rkey_core::*;

const OPERATIONS: [Operation; 3] = [Operation::Write, Operation::Read, Operation::Atomic];
const USES: [LocalUse; 6] = [
    LocalUse::Send,
    LocalUse::Recv,
    LocalUse::WriteSource,
    LocalUse::ReadSink,
    LocalUse::AtomicResult,
    LocalUse::Collective,
];

/// Every set of rights grants exactly the accesses that it contains.
///
/// Proves: VB-018, VB-010, VB-011, VB-012, FI-021, FI-096
#[test]
fn each_right_grants_its_own_kind_of_access_only() {
    let (table, domain) = table();
    // Miri is slow: it does not run every combination.
    for bits in (0..=ALL.bits()).step_by(if cfg!(miri) { 251 } else { 1 }) {
        let access = Access::from_bits_truncate(bits);
        let ranges = [range(0x1000, 64)];
        let region = table
            .register(&RegionSpec::new(domain, &ranges, access))
            .unwrap();
        for want in OPERATIONS {
            let granted = remote(&table, domain, region.key, 0x1000, 8, want);
            assert_eq!(
                granted.is_ok(),
                access.contains(want.needs()),
                "{access}: {want:?}"
            );
        }
        for want in USES {
            let granted = table.check_local(domain, region.local_key, 0x1000, 8, want);
            assert_eq!(
                granted.is_ok(),
                access.contains(want.needs()),
                "{access}: {want:?}"
            );
        }
        table.deregister(region.id).unwrap().finish().unwrap();
    }
}

/// Each rule applies only if it is requested.
///
/// Proves: X-01, VB-014, VB-015, VB-016, VB-017
#[test]
fn rules_of_one_api_do_not_bind_another() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let register = |access, rules| {
        table.register(&RegionSpec {
            rules,
            ..RegionSpec::new(domain, &ranges, access)
        })
    };
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert!(register(access, Rules::LIBFABRIC).is_ok());
        assert!(register(access, Rules::UDAPL).is_ok());
        let refused = register(access, Rules::VERBS).unwrap_err();
        let asked = access | Access::LOCAL_READ;
        assert!(matches!(
            refused,
            CoreError::AccessNeeds {
                missing: Access::LOCAL_WRITE,
                ..
            }
        ));
        assert!(register(asked | Access::LOCAL_WRITE, Rules::VERBS).is_ok());
    }
    for access in [Access::empty(), Access::REMOTE_READ, Access::BIND] {
        assert!(register(access, Rules::VERBS).is_ok(), "{access}");
    }
    let send = |region: Region| {
        table
            .check_local(domain, region.local_key, 0x1000, 8, LocalUse::Send)
            .is_ok()
    };
    assert!(send(register(Access::empty(), Rules::VERBS).unwrap()));
    assert!(!send(register(Access::empty(), Rules::UDAPL).unwrap()));
    let atomic =
        |region: Region| remote(&table, domain, region.key, 0x1000, 8, Operation::Atomic).is_ok();
    let writable = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    assert!(atomic(register(writable, Rules::LIBFABRIC).unwrap()));
    assert!(!atomic(register(writable, Rules::VERBS).unwrap()));
}

/// Proves: FI-033, FI-053, FI-054, FI-060, VB-002, VB-I03, VB-I04
#[test]
fn the_first_and_last_byte_are_accessible_in_each_addressing_mode() {
    let (table, domain) = table();
    let ranges = [range(0x5003, 100)];
    let bases = [
        (Addressing::Virtual, 0x5003),
        (Addressing::Zero, 0),
        (Addressing::Iova(77), 77),
    ];
    for (addressing, base) in bases {
        let spec = RegionSpec {
            addressing,
            ..RegionSpec::new(domain, &ranges, ALL)
        };
        let key = table.register(&spec).unwrap().key;
        let ask = |addr, len| remote(&table, domain, key, addr, len, Operation::Write);
        assert_eq!(ask(base, 1).unwrap().single(), Some(range(0x5003, 1)));
        assert_eq!(
            ask(base + 99, 1).unwrap().single(),
            Some(range(0x5003 + 99, 1))
        );
        assert_eq!(ask(base, 100).unwrap().single(), Some(range(0x5003, 100)));
        assert!(ask(base + 100, 1).is_err());
        assert!(ask(base + 99, 2).is_err());
        assert!(ask(base.wrapping_sub(1), 1).is_err());
    }
}

/// No sum of an address and a length wraps around.
#[test]
fn requests_whose_end_wraps_around_are_refused() {
    let (table, domain) = table();
    let top = u64::MAX - 8;
    let ranges = [range(top, 8)];
    for addressing in [Addressing::Virtual, Addressing::Zero] {
        let spec = RegionSpec {
            addressing,
            ..RegionSpec::new(domain, &ranges, ALL)
        };
        let key = table.register(&spec).unwrap().key;
        for (addr, len) in [
            (u64::MAX - 3, 8),
            (u64::MAX, 1),
            (u64::MAX, u64::MAX),
            (top, 10),
        ] {
            let refused = remote(&table, domain, key, addr, len, Operation::Read).unwrap_err();
            assert_eq!(refused, Reason::Wraps, "{addr:#x} {len:#x}");
        }
        assert!(remote(&table, domain, key, 1, u64::MAX - 1, Operation::Read).is_err());
    }
    let spec = RegionSpec {
        addressing: Addressing::Iova(u64::MAX - 7),
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    assert!(matches!(
        table.register(&spec),
        Err(CoreError::Wraps { .. })
    ));
}

/// Proves: FI-109, FI-I38
#[test]
fn several_segments_make_one_region() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 10), range(0x9000, 10), range(0x3000, 10)];
    let spec = RegionSpec::new(domain, &ranges, ALL);
    let joined = table
        .register(&RegionSpec {
            addressing: Addressing::Zero,
            ..spec
        })
        .unwrap();
    let all = remote(&table, domain, joined.key, 0, 30, Operation::Read).unwrap();
    assert_eq!(
        all.spans().map(|span| span.range()).collect::<Vec<_>>(),
        ranges
    );
    let across = remote(&table, domain, joined.key, 8, 4, Operation::Read).unwrap();
    assert_eq!(
        across.spans().map(|span| span.range()).collect::<Vec<_>>(),
        [range(0x1008, 2), range(0x9000, 2)]
    );
    assert_eq!((across.len(), across.single()), (4, None));
    assert!(remote(&table, domain, joined.key, 29, 2, Operation::Read).is_err());

    let apart = table.register(&spec).unwrap();
    let ask = |addr, len| remote(&table, domain, apart.key, addr, len, Operation::Read);
    assert_eq!(ask(0x9002, 8).unwrap().single(), Some(range(0x9002, 8)));
    assert_eq!(ask(0x1008, 4).unwrap_err(), Reason::CrossesSegments);
    assert_eq!(ask(0x5000, 4).unwrap_err(), Reason::CrossesSegments);
    assert!(matches!(
        ask(0x900a, 1).unwrap_err(),
        Reason::OutOfRange { .. }
    ));
}

/// Proves: FI-I40
#[test]
fn overlapping_regions_have_their_own_rights() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let read = table
        .register(&RegionSpec::new(domain, &ranges, Access::REMOTE_READ))
        .unwrap();
    let write = table
        .register(&RegionSpec::new(domain, &ranges, Access::REMOTE_WRITE))
        .unwrap();
    assert!(remote(&table, domain, read.key, 0x1000, 8, Operation::Write).is_err());
    assert!(remote(&table, domain, write.key, 0x1000, 8, Operation::Write).is_ok());
}

/// A request of no bytes needs no valid key: InfiniBand ignores the key, and so do we.
#[test]
fn an_empty_request_accesses_nothing_and_is_granted() {
    let (table, domain) = table();
    for key in [0, 1, u32::MAX] {
        let grant = remote(&table, domain, Key(key), 0, 0, Operation::Write).unwrap();
        assert_eq!(
            (grant.len(), grant.spans().count(), grant.region()),
            (0, 0, None)
        );
        let grant = table
            .check_local(domain, LKey(key), 1, 0, LocalUse::Recv)
            .unwrap();
        assert!(grant.is_empty());
    }
}

/// A region of two segments that meet at offset 12, addressed from zero.
fn two_segments() -> (Protection, DomainId, Key) {
    let (table, domain) = table();
    let segments = [range(0x1000, 12), range(0x9000, 12)];
    let spec = RegionSpec {
        addressing: Addressing::Zero,
        ..RegionSpec::new(domain, &segments, ALL)
    };
    let key = table.register(&spec).unwrap().key;
    (table, domain, key)
}

#[test]
fn an_atomic_inside_one_of_several_segments_is_granted() {
    let (table, domain, key) = two_segments();
    let ask = |addr| remote(&table, domain, key, addr, 8, Operation::Atomic);
    assert_eq!(ask(0).unwrap().single(), Some(range(0x1000, 8)));
    assert_eq!(ask(12).unwrap().single(), Some(range(0x9000, 8)));
}

#[test]
fn an_atomic_across_two_segments_is_misaligned() {
    let (table, domain, key) = two_segments();
    let ask = |operation| remote(&table, domain, key, 8, 8, operation);
    assert_eq!(ask(Operation::Atomic).unwrap_err(), Reason::Misaligned);
    assert_eq!(ask(Operation::Write).unwrap().spans().count(), 2);
}

#[test]
fn atomics_need_eight_aligned_bytes_of_memory() {
    let (table, domain) = table();
    let ranges = [range(0x1004, 64)];
    let spec = RegionSpec {
        addressing: Addressing::Zero,
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let key = table.register(&spec).unwrap().key;
    let ask = |addr| remote(&table, domain, key, addr, 8, Operation::Atomic);
    assert_eq!(ask(4).unwrap().single(), Some(range(0x1008, 8)));
    for addr in [0, 1, 2, 3, 5, 8] {
        assert_eq!(ask(addr).unwrap_err(), Reason::Misaligned);
    }
}

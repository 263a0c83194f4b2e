//! Regions from registration to close, right by right and limit by limit.

use rkey_base::range::VaRange;
use rkey_core::*;

const ALL: Access = Access::all();

fn table() -> (Protection, DomainId) {
    let table = Protection::new(Limits::default(), Secrets([5, 6, 7, 8]));
    let domain = table.create_domain().unwrap();
    (table, domain)
}

fn range(start: u64, len: u64) -> VaRange {
    VaRange::new(start, len).unwrap()
}

fn remote(
    table: &Protection,
    domain: DomainId,
    key: Key,
    addr: u64,
    len: u64,
    want: Operation,
) -> Result<Lease<'_>, Reason> {
    let who = Accessor {
        domain,
        qp: 1,
        peer: None,
    };
    table
        .check_remote(&who, WireKey::Device(key), addr, len, want)
        .map_err(|denial| denial.reason)
}

const OPERATIONS: [Operation; 3] = [Operation::Write, Operation::Read, Operation::Atomic];
const USES: [LocalUse; 6] = [
    LocalUse::Send,
    LocalUse::Recv,
    LocalUse::WriteSource,
    LocalUse::ReadSink,
    LocalUse::AtomicResult,
    LocalUse::Collective,
];

/// Every set of rights grants exactly what is in it.
///
/// Proves: VB-018, VB-010, VB-011, VB-012, FI-021, FI-096
#[test]
fn each_right_grants_its_own_kind_of_access_only() {
    let (table, domain) = table();
    // Slow under Miri: there not every combination.
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
        table.close_region(region.id).unwrap().finish().unwrap();
    }
}

/// One rule at a time, and none by default.
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
fn first_and_last_byte_by_each_addressing() {
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
fn nothing_wraps() {
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
fn several_pieces_make_one_region() {
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
    assert_eq!(all.spans().collect::<Vec<_>>(), ranges);
    let across = remote(&table, domain, joined.key, 8, 4, Operation::Read).unwrap();
    assert_eq!(
        across.spans().collect::<Vec<_>>(),
        [range(0x1008, 2), range(0x9000, 2)]
    );
    assert_eq!((across.len(), across.single()), (4, None));
    assert!(remote(&table, domain, joined.key, 29, 2, Operation::Read).is_err());

    let apart = table.register(&spec).unwrap();
    let ask = |addr, len| remote(&table, domain, apart.key, addr, len, Operation::Read);
    assert_eq!(ask(0x9002, 8).unwrap().single(), Some(range(0x9002, 8)));
    assert_eq!(ask(0x1008, 4).unwrap_err(), Reason::NotInOnePiece);
    assert_eq!(ask(0x5000, 4).unwrap_err(), Reason::NotInOnePiece);
    assert!(matches!(
        ask(0x900a, 1).unwrap_err(),
        Reason::OutOfRange { .. }
    ));
}

/// Proves: FI-I40
#[test]
fn overlapping_regions_have_rights_of_their_own() {
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

/// No bytes, no key: InfiniBand does not look at the key of such a request, nor do we.
#[test]
fn a_request_of_no_bytes_touches_nothing_and_is_granted() {
    let (table, domain) = table();
    for key in [0, 1, u32::MAX] {
        let lease = remote(&table, domain, Key(key), 0, 0, Operation::Write).unwrap();
        assert_eq!(
            (lease.len(), lease.spans().count(), lease.region()),
            (0, 0, None)
        );
        let lease = table
            .check_local(domain, LocalKey(key), 1, 0, LocalUse::Recv)
            .unwrap();
        assert!(lease.is_empty());
    }
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
        let who = Accessor {
            domain,
            qp: 1,
            peer: None,
        };
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
}

/// Proves: FI-072, FI-073, FI-075, FI-198, FI-199
#[test]
fn a_disabled_region_is_tied_then_enabled() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec {
        disabled: true,
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let region = table.register(&spec).unwrap();
    let ask = || remote(&table, domain, region.key, 0x1000, 8, Operation::Write);
    assert_eq!(ask().unwrap_err(), Reason::Disabled);
    table.bind_counter(region.id, 3).unwrap();
    table.bind_endpoint(region.id, 4).unwrap();
    let tied = CoreError::AlreadyTied {
        region: region.id,
        to: 3,
    };
    assert_eq!(table.bind_counter(region.id, 5), Err(tied));
    assert_eq!(ask().unwrap_err(), Reason::Disabled);
    table.enable(region.id).unwrap();
    assert_eq!(ask().unwrap().counter(), Some(3));
    let late = CoreError::AlreadyEnabled(region.id);
    assert_eq!(table.bind_counter(region.id, 3), Err(late.clone()));
    assert_eq!(table.bind_endpoint(region.id, 4), Err(late.clone()));
    assert_eq!(table.enable(region.id), Err(late));
    let busy = CoreError::RegionBusy {
        region: region.id,
        windows: 0,
        bindings: 2,
    };
    assert_eq!(table.close_region(region.id).unwrap_err(), busy);
    assert!(ask().is_ok(), "a refused close changes nothing");
    table.unbind_counter(region.id).unwrap();
    assert_eq!(table.forget_endpoint(4), 1);
    table.close_region(region.id).unwrap().finish().unwrap();
}

/// Proves: FI-076, FI-077
#[test]
fn a_region_of_one_endpoint_serves_no_other() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec {
        needs_endpoint: true,
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let region = table.register(&spec).unwrap();
    let ask = |qp| {
        let (who, key) = (
            Accessor {
                domain,
                qp,
                peer: None,
            },
            WireKey::Device(region.key),
        );
        table
            .check_remote(&who, key, 0x1000, 8, Operation::Read)
            .map_err(|denial| denial.reason)
    };
    assert_eq!(ask(4).unwrap_err(), Reason::Disabled);
    assert_eq!(
        table.enable(region.id),
        Err(CoreError::NeedsEndpoint(region.id))
    );
    table.bind_endpoint(region.id, 4).unwrap();
    table.enable(region.id).unwrap();
    assert!(ask(4).is_ok());
    assert_eq!(
        ask(5).unwrap_err(),
        Reason::WrongEndpoint { bound: Some(4) }
    );
    table.forget_endpoint(4);
    assert_eq!(ask(4).unwrap_err(), Reason::WrongEndpoint { bound: None });
}

/// Proves: FI-212
#[test]
fn a_region_of_one_peer_serves_no_other() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec {
        peer: Some(7),
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let region = table.register(&spec).unwrap();
    let ask = |key, peer| {
        let who = Accessor {
            domain,
            qp: 1,
            peer,
        };
        let lease = table.check_remote(&who, WireKey::Device(key), 0x1010, 8, Operation::Write);
        lease.map(drop).map_err(|denial| denial.reason)
    };
    let serves_seven_only = |key| {
        assert_eq!(ask(key, Some(7)), Ok(()));
        assert_eq!(ask(key, Some(8)), Err(Reason::OtherPeer));
        assert_eq!(ask(key, None), Err(Reason::OtherPeer));
    };
    serves_seven_only(region.key);
    let own = table.check_local(domain, region.local_key, 0x1000, 8, LocalUse::Send);
    assert!(own.is_ok(), "the owner is no peer");
    drop(own);
    // Nor does a window let others in.
    let window = table.create_window(domain, WindowKind::Type1).unwrap();
    let bind = |range| {
        let request = BindRequest {
            window: window.id,
            region: BindRegion::Key(region.local_key),
            range,
            access: Access::REMOTE_WRITE,
            zero_based: false,
            new_key: None,
            qp: None,
            domain,
            rules: Rules::VERBS,
        };
        table.bind_window(&request).unwrap()
    };
    serves_seven_only(bind(range(0x1010, 16)));
    bind(range(0, 0));
    // A change of the region leaves it to the same peer.
    let other = [range(0x1000, 128)];
    let change = Change {
        ranges: Some((&other, Addressing::Virtual)),
        ..Change::default()
    };
    let (changed, closing) = table.reregister(region.id, &change).unwrap();
    closing.finish().unwrap();
    serves_seven_only(changed.key);
}

#[test]
fn a_close_waits_for_the_lease() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let region = table
        .register(&RegionSpec::new(domain, &ranges, ALL))
        .unwrap();
    let lease = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap();
    let closing = table.close_region(region.id).unwrap();
    assert!(!closing.is_drained());
    let refused = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap_err();
    assert_eq!(refused, Reason::Closing);
    assert_eq!(
        table.close_region(region.id).unwrap_err(),
        CoreError::NoSuchRegion(region.id)
    );
    let closing = closing.finish().unwrap_err();
    drop(lease);
    assert!(closing.is_drained());
    closing.finish().unwrap();
    let refused = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap_err();
    assert_eq!(refused, Reason::StaleKey { now: SlotNow::Free });
}

#[test]
fn checks_in_a_section_hold_up_nothing() {
    let (table, domain) = table();
    let section = table.section();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec {
        requested_key: Some(9),
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let who = Accessor {
        domain,
        qp: 1,
        peer: None,
    };
    let region = table.register(&spec).unwrap();
    table.bind_counter(region.id, 5).unwrap();
    let write = Operation::Write;
    let ask = |key| table.check_remote_in(&section, &who, key, 0x1000, 8, write);
    let key = WireKey::Device(region.key);
    let lease = ask(key).unwrap();
    assert_eq!(lease.single(), Some(range(0x1000, 8)));
    assert_eq!(
        (lease.region(), lease.counter()),
        (Some(region.id), Some(5))
    );
    assert!(ask(WireKey::Requested(9)).is_ok());
    let local = region.local_key;
    assert!(
        table
            .check_local_in(&section, domain, local, 0x1000, 8, LocalUse::Send)
            .is_ok()
    );
    table.unbind_counter(region.id).unwrap();
    table.close_region(region.id).unwrap().finish().unwrap();
    assert!(matches!(
        ask(key).unwrap_err().reason,
        Reason::StaleKey { .. }
    ));
}

#[test]
fn a_close_that_nobody_waits_for_ends_later() {
    let limits = Limits {
        key_slots: 1,
        ..Limits::default()
    };
    let table = Protection::new(limits, Secrets([1, 2, 3, 4]));
    let domain = table.create_domain().unwrap();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec::new(domain, &ranges, ALL);
    let region = table.register(&spec).unwrap();
    let lease = remote(&table, domain, region.key, 0x1000, 8, Operation::Write).unwrap();
    drop(table.close_region(region.id).unwrap());
    let none_left = CoreError::LimitReached {
        limit: Limit::KeySlots,
        value: 1,
    };
    assert_eq!(table.register(&spec), Err(none_left));
    drop(lease);
    assert!(table.register(&spec).is_ok());
}

#[test]
fn a_reregistration_changes_keys_or_nothing() {
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
    let lease = remote(&table, domain, old.key, 0x1000, 8, Operation::Read).unwrap();
    let (new, closing) = table.reregister(old.id, &change).unwrap();
    assert!(!closing.is_drained());
    drop(lease);
    closing.finish().unwrap();
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
    let lease = remote(&table, domain, region.key, 0x1000, 8, Operation::Read).unwrap();
    let changing = table.change_region(region.id, &change).unwrap();
    let refused = remote(&table, domain, region.key, 0x1000, 8, Operation::Read).unwrap_err();
    assert_eq!(refused, Reason::Closing);
    let changing = changing.finish().unwrap_err();
    drop(lease);
    assert!(changing.is_drained());
    assert_eq!(changing.finish().unwrap(), region);
    let granted = remote(&table, other, region.key, 12, 8, Operation::Write).unwrap();
    assert_eq!(
        granted.spans().collect::<Vec<_>>(),
        [range(0x800c, 4), range(0x9000, 4)]
    );
    drop(granted);
    table.close_domain(domain).unwrap();
    // Once more, and given up half way: the region is gone and nothing is left of it.
    let change = Change {
        access: Some(Access::REMOTE_READ),
        ..Change::default()
    };
    let changing = table.change_region(region.id, &change).unwrap();
    let who = Accessor {
        domain: other,
        qp: 1,
        peer: None,
    };
    let asked = || {
        let refused = table.check_remote(&who, WireKey::Requested(3), 0, 8, Operation::Read);
        refused.unwrap_err().reason
    };
    assert_eq!(asked(), Reason::Closing, "the key stays known meanwhile");
    drop(changing);
    assert_eq!(asked(), Reason::UnknownKey);
    assert_eq!(
        table.enable(region.id),
        Err(CoreError::NoSuchRegion(region.id))
    );
    assert_eq!(table.snapshot().total_bytes, 0);
    table.close_domain(other).unwrap();
}

/// Each limit says its name, its value and how to raise it.
#[test]
fn limits_name_themselves() {
    let limits = Limits {
        max_regions: 2,
        max_region_bytes: 100,
        max_total_bytes: 150,
        max_windows: 1,
        max_domains: 1,
        max_segments: 2,
        key_slots: 100,
    };
    let table = Protection::new(limits, Secrets([1, 2, 3, 4]));
    let domain = table.create_domain().unwrap();
    let says = |error: CoreError, text: &str| assert_eq!(error.to_string(), text);
    says(
        table.create_domain().unwrap_err(),
        "the limit of 1 open domains is reached (raise it with RKEY_MAX_DOMAINS)",
    );
    let register = |ranges: &[VaRange]| {
        table
            .register(&RegionSpec::new(domain, ranges, ALL))
            .map(|region| region.id)
    };
    says(
        register(&[range(1, 101)]).unwrap_err(),
        "the limit of 100 bytes in one region is reached (raise it with RKEY_MAX_REGION_BYTES)",
    );
    says(
        register(&[range(1, 1); 3]).unwrap_err(),
        "the limit of 2 pieces of a scatter list is reached (raise it with RKEY_MAX_SEGMENTS)",
    );
    let first = register(&[range(1, 100)]).unwrap();
    says(
        register(&[range(1, 51)]).unwrap_err(),
        "the limit of 150 registered bytes is reached (raise it with RKEY_MAX_TOTAL_BYTES)",
    );
    register(&[range(1, 50)]).unwrap();
    says(
        register(&[range(1, 1)]).unwrap_err(),
        "the limit of 2 live regions is reached (raise it with RKEY_MAX_REGIONS)",
    );
    table.create_window(domain, WindowKind::Type2A).unwrap();
    says(
        table.create_window(domain, WindowKind::Type1).unwrap_err(),
        "the limit of 1 live windows is reached (raise it with RKEY_MAX_WINDOWS)",
    );
    table.close_region(first).unwrap().finish().unwrap();
    register(&[range(1, 100)]).unwrap();
    assert_eq!(register(&[]), Err(CoreError::Empty));
    assert_eq!(register(&[range(5, 0)]), Err(CoreError::Empty));
    let unknown = RegionSpec::new(domain, &[], Access::from_bits_retain(1 << 20));
    let one = [range(1, 1)];
    let unknown = RegionSpec {
        ranges: &one,
        ..unknown
    };
    assert_eq!(
        table.register(&unknown),
        Err(CoreError::UnknownAccess(1 << 20))
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
    let table = Protection::new(limits, Secrets([9, 9, 9, 9]));
    let domain = table.create_domain().unwrap();
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

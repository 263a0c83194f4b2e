//! Windows of any kind: what a bind requires, what a window grants, and how it and its region end.

use crate::fixture::Fixture;
use crate::table::{ALL, over, range};
use rkey_core::*;

/// Proves: VB-021, DA-I16
#[test]
fn a_region_with_a_bound_window_cannot_be_deregistered() {
    for kind in WindowKind::ALL {
        let it = Fixture::new();
        let window = it.window(kind);
        let key = Some(window.key).filter(|_| kind.is_type2());
        let key = it.bind(&BindRequest {
            new_key: key,
            ..it.request(window.id)
        });
        let busy = CoreError::RegionBusy {
            region: it.region.id,
            windows: 1,
            bindings: 0,
        };
        assert_eq!(it.close(), Err(busy));
        assert!(it.write(key, 1, 0x1010, 8).is_ok());
        assert!(it.write(it.region.key, 1, 0x1010, 8).is_ok());
        it.table.deallocate_window(window.id).unwrap();
        assert!(matches!(
            it.write(key, 1, 0x1010, 8),
            Err(Reason::StaleKey { .. })
        ));
        it.close().unwrap();
    }
}

/// Proves: DA-I16
#[test]
fn a_rebind_to_another_region_releases_the_first() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Dat);
    it.bind(&it.request(window.id));
    let second = it
        .table
        .register(&RegionSpec::new(it.domain, &[range(0x9000, 64)], ALL))
        .unwrap();
    let request = it.request(window.id);
    let region = BindRegion::Id(second.id);
    let key = it.bind(&BindRequest {
        region,
        range: range(0x9000, 8),
        ..request
    });
    it.close().unwrap();
    assert_eq!(it.write(key, 1, 0x9000, 8), Ok(range(0x9000, 8)));
}

#[test]
fn zero_based_windows_count_from_their_own_start() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Type2B);
    let request = BindRequest {
        zero_based: true,
        new_key: Some(window.key),
        ..it.request(window.id)
    };
    let key = it.bind(&request);
    assert_eq!(it.write(key, 1, 0, 16), Ok(range(0x1010, 16)));
    assert_eq!(it.write(key, 1, 15, 1), Ok(range(0x101f, 1)));
    assert!(matches!(
        it.write(key, 1, 16, 1),
        Err(Reason::OutOfRange { .. })
    ));
    assert_eq!(
        it.write(key, 1, 0x1012, 4),
        Err(Reason::ZeroBased { len: 16, offset: 2 })
    );
    let window = it.window(WindowKind::Type1);
    let request = BindRequest {
        zero_based: true,
        ..it.request(window.id)
    };
    let refused = it.table.bind_window(&request);
    assert_eq!(refused, Err(BindError::ZeroBased(WindowKind::Type1)));
}

#[test]
fn windows_work_on_scatter_lists_and_zero_based_regions() {
    let it = Fixture::new();
    let segments = [range(0x4000, 10), range(0x8000, 10)];
    let spec = RegionSpec::new(it.domain, &segments, ALL);
    let region = it
        .table
        .register(&RegionSpec {
            addressing: Addressing::Zero,
            ..spec
        })
        .unwrap();
    let window = it.window(WindowKind::Dat);
    let key = it.bind(&BindRequest {
        region: BindRegion::Id(region.id),
        range: range(8, 4),
        rules: Rules::UDAPL,
        ..it.request(window.id)
    });
    let who = over(it.domain, 1);
    let grant = it
        .table
        .check_remote(&who, RKey::Device(key), 8, 4, Operation::Write)
        .unwrap();
    assert_eq!(
        grant.spans().map(|span| span.range()).collect::<Vec<_>>(),
        [range(0x4008, 2), range(0x8000, 2)]
    );
    assert_eq!(grant.region(), Some(region.id));
    assert!(grant.through_window());
}

/// Proves: VB-013, DA-027, DA-029, DA-030, DA-032, DA-I18
#[test]
fn a_bind_must_stay_within_the_rights_and_range_of_the_region() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Type1);
    let bind = |access: Access, wanted: Access, rules| {
        let ranges = [range(0x1000, 256)];
        let spec = RegionSpec::new(it.domain, &ranges, access);
        let region = it.table.register(&spec).unwrap();
        let request = it.request(window.id);
        let region = BindRegion::Id(region.id);
        it.table.bind_window(&BindRequest {
            region,
            access: wanted,
            rules,
            ..request
        })
    };
    let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    let lacks = |asked, missing| Err(BindError::RegionLacks { asked, missing });
    assert_eq!(
        bind(Access::LOCAL_WRITE, write, Rules::VERBS),
        lacks(write, Access::BIND)
    );
    assert_eq!(
        bind(Access::BIND, write, Rules::VERBS),
        lacks(write, Access::LOCAL_WRITE)
    );
    assert!(bind(Access::BIND, read, Rules::VERBS).is_ok());
    assert_eq!(
        bind(Access::LOCAL_READ, write, Rules::UDAPL),
        lacks(write, Access::LOCAL_WRITE)
    );
    assert_eq!(
        bind(Access::LOCAL_WRITE, read, Rules::UDAPL),
        lacks(read, Access::LOCAL_READ)
    );
    assert!(
        bind(
            Access::LOCAL_READ | Access::LOCAL_WRITE,
            read | write,
            Rules::UDAPL
        )
        .is_ok()
    );
    assert!(bind(Access::empty(), read | write, Rules::empty()).is_ok());
    let local = bind(ALL, Access::SEND | read, Rules::empty());
    assert_eq!(local, Err(BindError::NotRemote(Access::SEND)));
    for (start, len) in [
        (0xfff, 8),
        (0x10f9, 8),
        (0x2000, 1),
        (0x1000, 257),
        (1, u64::MAX - 1),
    ] {
        let request = BindRequest {
            range: range(start, len),
            ..it.request(window.id)
        };
        let refused = it.table.bind_window(&request);
        assert!(
            matches!(refused, Err(BindError::OutOfRange { .. })),
            "{refused:?}"
        );
    }
}

/// Proves: DA-005, DA-007, DA-008
#[test]
fn a_window_grants_its_own_rights_only() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Dat);
    for bits in 0..8 {
        let access = Access::from_bits_truncate(bits * Access::REMOTE_READ.bits());
        let key = it.bind(&BindRequest {
            access,
            ..it.request(window.id)
        });
        for want in [Operation::Write, Operation::Read, Operation::Atomic] {
            let who = over(it.domain, 1);
            let granted = it
                .table
                .check_remote(&who, RKey::Device(key), 0x1010, 8, want);
            assert_eq!(
                granted.is_ok(),
                access.contains(want.needs()),
                "{access}: {want:?}"
            );
        }
    }
}

#[test]
fn window_region_and_queue_pair_must_share_a_domain() {
    let it = Fixture::new();
    let other = it.table.create_domain().unwrap();
    let window = it.window(WindowKind::Dat);
    let request = it.request(window.id);
    let refused = it
        .table
        .bind_window(&BindRequest {
            domain: other,
            ..request
        })
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the window is in domain 1, but the queue pair is in domain 2: use objects of the same domain"
    );
    let far = it
        .table
        .register(&RegionSpec::new(other, &[range(0x1000, 256)], ALL))
        .unwrap();
    let request = BindRequest {
        region: BindRegion::Id(far.id),
        ..request
    };
    let refused = it.table.bind_window(&request).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the window is in domain 1, but the region is in domain 2: use objects of the same domain"
    );
}

/// Proves: DA-I08
#[test]
fn an_unbind_depends_only_on_its_length() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Dat);
    let key = it.bind(&it.request(window.id));
    let request = it.request(window.id);
    let garbage = BindRegion::Key(LKey(0xdead_beef));
    let range = range(0xffff_ffff, 0);
    it.bind(&BindRequest {
        region: garbage,
        range,
        access: Access::all(),
        ..request
    });
    assert!(it.write(key, 1, 0x1010, 8).is_err());
    it.close().unwrap();
}

/// A grant through a window delays the end of the region, even if the window is unbound in the meantime.
#[test]
fn a_grant_through_a_window_outlives_the_binding_but_not_the_region() {
    for kind in WindowKind::ALL {
        let it = Fixture::new();
        let window = it.window(kind);
        let new_key = Some(window.key).filter(|_| kind.is_type2());
        let key = it.bind(&BindRequest {
            new_key,
            ..it.request(window.id)
        });
        let who = over(it.domain, 1);
        let grant = it
            .table
            .check_remote(&who, RKey::Device(key), 0x1010, 8, Operation::Write)
            .unwrap();
        it.table.deallocate_window(window.id).unwrap();
        let deregistering = it.table.deregister(it.region.id).unwrap();
        assert!(!deregistering.is_drained());
        drop(grant);
        deregistering.finish().unwrap();
    }
}

#[test]
fn revoking_a_region_unbinds_its_windows() {
    let it = Fixture::new();
    let keys = WindowKind::ALL.map(|kind| {
        let window = it.window(kind);
        let new_key = Some(window.key).filter(|_| kind.is_type2());
        it.bind(&BindRequest {
            new_key,
            ..it.request(window.id)
        })
    });
    it.table
        .revoke_and_deregister(it.region.id)
        .unwrap()
        .finish()
        .unwrap();
    for key in keys {
        assert_eq!(it.write(key, 1, 0x1010, 8), Err(Reason::Unbound));
    }
}

/// A front end may pass any number as the handle of a region: one that names a window's slot is refused as unknown.
#[test]
fn a_region_handle_never_names_a_window() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Type1);
    it.bind(&it.request(window.id));
    let ask = |bits| {
        let region = RegionId::from_bits(bits);
        let grant = it
            .table
            .check_region(it.domain, region, 0x1010, 8, LocalUse::Send);
        grant.map(drop).map_err(|denial| denial.reason)
    };
    for bits in (0..16_u64).flat_map(|index| (0..16).map(move |now| now << 32 | index)) {
        let answer = ask(bits);
        if bits == it.region.id.to_bits() {
            assert_eq!(answer, Ok(()));
            continue;
        }
        let nothing = [Reason::UnknownKey, Reason::Deregistering];
        let stale = matches!(answer, Err(Reason::StaleKey { .. }));
        assert!(
            stale || nothing.iter().any(|no| answer.as_ref() == Err(no)),
            "{bits:#x}: {answer:?}"
        );
    }
}

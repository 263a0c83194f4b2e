//! Windows from bind to invalidation, by kind.

use rkey_base::range::VaRange;
use rkey_core::*;
use std::collections::HashSet;

const ALL: Access = Access::all();

struct Fixture {
    table: Protection,
    domain: DomainId,
    region: Region,
}

fn range(start: u64, len: u64) -> VaRange {
    VaRange::new(start, len).unwrap()
}

impl Fixture {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let table = Protection::new(limits, Secrets([5, 6, 7, 8]));
        let domain = table.create_domain().unwrap();
        let region = table
            .register(&RegionSpec::new(domain, &[range(0x1000, 256)], ALL))
            .unwrap();
        Self {
            table,
            domain,
            region,
        }
    }

    fn window(&self, kind: WindowKind) -> Window {
        self.table.create_window(self.domain, kind).unwrap()
    }

    fn request(&self, window: WindowId) -> BindRequest {
        BindRequest {
            window,
            region: BindRegion::Key(self.region.local_key),
            range: range(0x1010, 16),
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            zero_based: false,
            new_key: None,
            qp: Some(1),
            domain: self.domain,
            rules: Rules::VERBS,
        }
    }

    fn bind(&self, request: &BindRequest) -> Key {
        self.table.bind_window(request).unwrap()
    }

    fn unbind(&self, window: WindowId) -> Key {
        self.bind(&BindRequest {
            range: range(0, 0),
            ..self.request(window)
        })
    }

    fn write(&self, key: Key, qp: u32, addr: u64, len: u64) -> Result<VaRange, Reason> {
        let who = Accessor {
            domain: self.domain,
            qp,
            peer: None,
        };
        let lease =
            self.table
                .check_remote(&who, WireKey::Device(key), addr, len, Operation::Write);
        lease
            .map(|lease| lease.single().unwrap())
            .map_err(|denial| denial.reason)
    }

    fn close(&self) -> Result<(), CoreError> {
        self.table
            .close_region(self.region.id)
            .map(|closing| closing.finish().unwrap())
    }
}

/// Proves: VB-I17, DA-003, DA-018, DA-025, DA-039
#[test]
fn device_keys_change_at_every_bind_and_old_ones_are_refused() {
    for kind in [WindowKind::Type1, WindowKind::Dat] {
        let it = Fixture::new();
        let window = it.window(kind);
        assert_eq!(it.write(window.key, 1, 0x1010, 8), Err(Reason::Unbound));
        let first = it.bind(&it.request(window.id));
        assert_ne!(first, window.key);
        assert!(matches!(
            it.write(window.key, 1, 0x1010, 8),
            Err(Reason::StaleKey { .. })
        ));
        assert_eq!(it.write(first, 1, 0x1010, 16), Ok(range(0x1010, 16)));
        assert_eq!(
            it.write(first, 99, 0x1010, 16),
            Ok(range(0x1010, 16)),
            "any queue pair"
        );
        assert!(matches!(
            it.write(first, 1, 0x100f, 2),
            Err(Reason::OutOfRange { .. })
        ));
        assert!(matches!(
            it.write(first, 1, 0x101f, 2),
            Err(Reason::OutOfRange { .. })
        ));
        let second = it.bind(&BindRequest {
            range: range(0x1080, 8),
            ..it.request(window.id)
        });
        assert_ne!(second, first);
        assert!(matches!(
            it.write(first, 1, 0x1010, 8),
            Err(Reason::StaleKey { .. })
        ));
        assert_eq!(it.write(second, 1, 0x1080, 8), Ok(range(0x1080, 8)));
        it.unbind(window.id);
        assert!(it.write(second, 1, 0x1080, 8).is_err());
        it.close().unwrap();
    }
}

/// Proves: DA-I17
#[test]
#[cfg_attr(miri, ignore = "thousands of binds")]
fn thousands_of_rebinds_never_revive_a_key() {
    for kind in [WindowKind::Type1, WindowKind::Dat] {
        let it = Fixture::new();
        let window = it.window(kind);
        let mut old: Vec<Key> = vec![window.key];
        let mut seen: HashSet<Key> = old.iter().copied().collect();
        for round in 0..5_000 {
            let key = it.bind(&it.request(window.id));
            assert!(seen.insert(key), "{key} came again at bind {round}");
            assert!(it.write(key, 1, 0x1010, 8).is_ok());
            let sample = old.iter().rev().take(3).chain(old.iter().step_by(311));
            for key in sample {
                assert!(
                    it.write(*key, 1, 0x1010, 8).is_err(),
                    "{key} lives at bind {round}"
                );
            }
            old.push(key);
        }
    }
}

/// Proves: VB-021, DA-I16
#[test]
fn a_region_with_a_bound_window_does_not_close() {
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
        it.table.close_window(window.id).unwrap();
        assert!(matches!(
            it.write(key, 1, 0x1010, 8),
            Err(Reason::StaleKey { .. })
        ));
        it.close().unwrap();
    }
}

/// Proves: DA-I16
#[test]
fn a_rebind_to_another_region_lets_the_first_go() {
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

/// Proves: VB-I18
#[test]
fn type_2_keys_are_the_consumers_and_the_queue_pairs() {
    for kind in [WindowKind::Type2A, WindowKind::Type2B] {
        let it = Fixture::new();
        let window = it.window(kind);
        assert_eq!(it.write(window.key, 1, 0x1010, 8), Err(Reason::Unbound));
        let mine = |bits| Some(window.key.with_consumer_bits(bits));
        let first = BindRequest {
            new_key: mine(7),
            ..it.request(window.id)
        };
        let key = it.bind(&first);
        assert_eq!(Some(key), mine(7));
        assert!(it.write(key, 1, 0x1010, 8).is_ok());
        assert_eq!(
            it.write(key, 2, 0x1010, 8),
            Err(Reason::WrongEndpoint { bound: Some(1) })
        );
        let other = key.with_consumer_bits(8);
        let rebound = Reason::StaleKey {
            now: SlotNow::Rebound,
        };
        assert_eq!(it.write(other, 1, 0x1010, 8), Err(rebound));
        let again = BindRequest {
            new_key: mine(8),
            ..first
        };
        assert_eq!(
            it.table.bind_window(&again),
            Err(BindError::StillBound(key))
        );
        let nothing = BindRequest {
            range: range(0, 0),
            ..again
        };
        assert_eq!(it.table.bind_window(&nothing), Err(BindError::ZeroLength));

        let owner = Accessor {
            domain: it.domain,
            qp: 1,
            peer: None,
        };
        let stranger = Accessor {
            domain: it.domain,
            qp: 2,
            peer: None,
        };
        let refused = it.table.invalidate(key, &stranger, true).unwrap_err();
        assert_eq!(refused.reason, Reason::WrongEndpoint { bound: Some(1) });
        assert_eq!(
            it.table.invalidate(other, &owner, true).unwrap_err().reason,
            rebound
        );
        assert!(
            it.write(key, 1, 0x1010, 8).is_ok(),
            "a refused invalidation changes nothing"
        );
        it.table.invalidate(key, &owner, true).unwrap();
        assert_eq!(it.write(key, 1, 0x1010, 8), Err(Reason::Unbound));
        it.table.invalidate(key, &owner, false).unwrap();
        assert_eq!(it.bind(&again), other);
        assert_eq!(it.write(key, 1, 0x1010, 8), Err(rebound));
        assert_eq!(it.table.forget_endpoint(1), 1);
        assert_eq!(it.write(other, 1, 0x1010, 8), Err(Reason::Unbound));
        it.close().unwrap();
    }
}

#[test]
fn type_2_binds_name_a_key_of_the_window_and_a_queue_pair() {
    let it = Fixture::new();
    let (window, other) = (it.window(WindowKind::Type2B), it.window(WindowKind::Type2B));
    let request = it.request(window.id);
    assert_eq!(
        it.table.bind_window(&request),
        Err(BindError::KeyAndQpNeeded)
    );
    let foreign = BindRequest {
        new_key: Some(other.key),
        ..request
    };
    let error = BindError::ForeignKey {
        given: other.key,
        current: window.key,
    };
    assert_eq!(it.table.bind_window(&foreign), Err(error));
    let nobody = BindRequest {
        new_key: Some(window.key),
        qp: None,
        ..request
    };
    assert_eq!(
        it.table.bind_window(&nobody),
        Err(BindError::KeyAndQpNeeded)
    );
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
fn windows_on_scatter_lists_and_zero_based_regions() {
    let it = Fixture::new();
    let pieces = [range(0x4000, 10), range(0x8000, 10)];
    let spec = RegionSpec::new(it.domain, &pieces, ALL);
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
    let who = Accessor {
        domain: it.domain,
        qp: 1,
        peer: None,
    };
    let lease = it
        .table
        .check_remote(&who, WireKey::Device(key), 8, 4, Operation::Write)
        .unwrap();
    assert_eq!(
        lease.spans().collect::<Vec<_>>(),
        [range(0x4008, 2), range(0x8000, 2)]
    );
    assert_eq!(lease.region(), Some(region.id));
    assert!(lease.through_window());
}

/// Proves: VB-013, DA-027, DA-029, DA-030, DA-032, DA-I18
#[test]
fn a_bind_asks_the_region_for_rights_and_room() {
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
            let who = Accessor {
                domain: it.domain,
                qp: 1,
                peer: None,
            };
            let granted = it
                .table
                .check_remote(&who, WireKey::Device(key), 0x1010, 8, want);
            assert_eq!(
                granted.is_ok(),
                access.contains(want.needs()),
                "{access}: {want:?}"
            );
        }
    }
}

#[test]
fn window_region_and_queue_pair_meet_in_one_domain() {
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
        "the window is in domain 1, the queue pair in domain 2"
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
        "the window is in domain 1, the region in domain 2"
    );
}

/// Proves: DA-I08
#[test]
fn an_unbind_looks_at_nothing_but_its_length() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Dat);
    let key = it.bind(&it.request(window.id));
    let request = it.request(window.id);
    let garbage = BindRegion::Key(LocalKey(0xdead_beef));
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

#[test]
fn a_promised_key_is_the_one_that_the_bind_gives() {
    let it = Fixture::new();
    let window = it.window(WindowKind::Type1);
    let first = it.table.next_window_key(window.id).unwrap();
    let second = it.table.next_window_key(window.id).unwrap();
    assert_eq!(
        it.write(first, 1, 0x1010, 8),
        Err(Reason::Unbound),
        "not before the bind"
    );
    let request = BindRequest {
        new_key: Some(first),
        ..it.request(window.id)
    };
    assert_eq!(it.bind(&request), first);
    assert!(it.write(first, 1, 0x1010, 8).is_ok());
    let error = BindError::ForeignKey {
        given: first,
        current: first,
    };
    assert_eq!(
        it.table.bind_window(&request),
        Err(error),
        "a promise is kept once"
    );
    let failing = BindRequest {
        range: range(0, 1),
        new_key: Some(second),
        ..request
    };
    assert!(it.table.bind_window(&failing).is_err());
    assert!(
        it.write(first, 1, 0x1010, 8).is_ok(),
        "a failed bind changes nothing"
    );
    assert!(matches!(
        it.write(second, 1, 0x1010, 8),
        Err(Reason::StaleKey { .. })
    ));
    let third = it.table.next_window_key(window.id).unwrap();
    it.table.forfeit_window_key(window.id, third);
    assert!(matches!(
        it.write(third, 1, 0x1010, 8),
        Err(Reason::StaleKey { .. })
    ));
}

#[test]
fn only_type_2_windows_are_invalidated() {
    let it = Fixture::new();
    let who = Accessor {
        domain: it.domain,
        qp: 1,
        peer: None,
    };
    let why = |key| it.table.invalidate(key, &who, true).unwrap_err().reason;
    assert_eq!(why(it.region.key), Reason::NotAWindow);
    assert_eq!(why(Key(it.region.local_key.0)), Reason::NotAWindow);
    for kind in [WindowKind::Type1, WindowKind::Dat] {
        let window = it.window(kind);
        let key = it.bind(&it.request(window.id));
        assert_eq!(why(key), Reason::WindowKind(kind));
    }
    assert_eq!(why(Key(3)), Reason::UnknownKey);
    let window = it.window(WindowKind::Type2B);
    it.table.close_window(window.id).unwrap();
    assert!(matches!(why(window.key), Reason::StaleKey { .. }));
}

/// A lease through a window holds up the close of the region, also when the window is unbound meanwhile.
#[test]
fn a_lease_through_a_window_outlives_the_binding_not_the_region() {
    for kind in WindowKind::ALL {
        let it = Fixture::new();
        let window = it.window(kind);
        let new_key = Some(window.key).filter(|_| kind.is_type2());
        let key = it.bind(&BindRequest {
            new_key,
            ..it.request(window.id)
        });
        let who = Accessor {
            domain: it.domain,
            qp: 1,
            peer: None,
        };
        let lease = it
            .table
            .check_remote(&who, WireKey::Device(key), 0x1010, 8, Operation::Write)
            .unwrap();
        it.table.close_window(window.id).unwrap();
        let closing = it.table.close_region(it.region.id).unwrap();
        assert!(!closing.is_drained());
        drop(lease);
        closing.finish().unwrap();
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
        .revoke_region(it.region.id)
        .unwrap()
        .finish()
        .unwrap();
    for key in keys {
        assert_eq!(it.write(key, 1, 0x1010, 8), Err(Reason::Unbound));
    }
}

/// New type 2 windows share no key with old ones, whatever low bits either had.
#[test]
#[cfg_attr(miri, ignore = "thousands of windows")]
fn a_new_type_2_window_revives_no_old_key() {
    let it = Fixture::new();
    let mut upper = HashSet::new();
    for _ in 0..40_000 {
        let window = it.window(WindowKind::Type2B);
        assert!(
            upper.insert(window.key.with_consumer_bits(0)),
            "{} came again",
            window.key
        );
        it.table.close_window(window.id).unwrap();
    }
}

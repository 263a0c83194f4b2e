//! Keys of windows: the device chooses a new one at every bind; for type 2, the consumer chooses the low 8 bits.

use crate::fixture::Fixture;
use crate::table::{over, range};
use rkey_core::*;
use std::collections::HashSet;

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

#[test]
fn a_bind_uses_its_reserved_key() {
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
        "a reservation is used once"
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

/// Proves: VB-I18
#[test]
fn type_2_keys_are_chosen_by_the_consumer_and_tied_to_a_queue_pair() {
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

        let owner = over(it.domain, 1);
        let stranger = over(it.domain, 2);
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
fn a_type_2_bind_must_name_the_windows_key_and_a_queue_pair() {
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
    let without_qp = BindRequest {
        new_key: Some(window.key),
        qp: None,
        ..request
    };
    assert_eq!(
        it.table.bind_window(&without_qp),
        Err(BindError::KeyAndQpNeeded)
    );
}

#[test]
fn only_type_2_windows_can_be_invalidated() {
    let it = Fixture::new();
    let who = over(it.domain, 1);
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
    it.table.deallocate_window(window.id).unwrap();
    assert!(matches!(why(window.key), Reason::StaleKey { .. }));
}

/// New type 2 windows share no key with old ones, regardless of the low bits, which the program chooses.
#[test]
#[cfg_attr(miri, ignore = "thousands of windows")]
fn a_new_type_2_window_revives_no_old_key() {
    let it = Fixture::new();
    let mut upper = HashSet::new();
    for _ in 0..40_000 {
        let window = it.window(WindowKind::Type2B);
        assert!(
            upper.insert(window.key.with_consumer_bits(0)),
            "{} was issued twice",
            window.key
        );
        it.table.deallocate_window(window.id).unwrap();
    }
}

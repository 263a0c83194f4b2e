//! Regions that are bound to counters and endpoints before they are enabled, or that serve one peer.

use crate::table::{ALL, over, range, remote, table};
use rkey_core::*;

/// Proves: FI-072, FI-073, FI-075, FI-198, FI-199
#[test]
fn a_disabled_region_is_bound_then_enabled() {
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
    let bound = CoreError::AlreadyBound {
        region: region.id,
        to: 3,
    };
    assert_eq!(table.bind_counter(region.id, 5), Err(bound));
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
    assert_eq!(table.deregister(region.id).unwrap_err(), busy);
    assert!(ask().is_ok(), "a refused close changes nothing");
    table.unbind_counter(region.id).unwrap();
    assert_eq!(table.forget_endpoint(4), 1);
    table.deregister(region.id).unwrap().finish().unwrap();
}

/// Proves: FI-076, FI-077
#[test]
fn a_region_bound_to_an_endpoint_serves_no_other_endpoint() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec {
        needs_endpoint: true,
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let region = table.register(&spec).unwrap();
    let ask = |qp| {
        let (who, key) = (over(domain, qp), RKey::Device(region.key));
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

/// A window does not bypass the endpoint of its region.
#[test]
fn a_window_serves_only_the_endpoint_of_its_region() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let spec = RegionSpec {
        needs_endpoint: true,
        ..RegionSpec::new(domain, &ranges, ALL)
    };
    let region = table.register(&spec).unwrap();
    table.bind_endpoint(region.id, 4).unwrap();
    table.enable(region.id).unwrap();
    let window = table.create_window(domain, WindowKind::Type1).unwrap();
    let request = BindRequest {
        window: window.id,
        region: BindRegion::Key(region.local_key),
        range: range(0x1010, 16),
        access: Access::REMOTE_WRITE,
        zero_based: false,
        new_key: None,
        qp: None,
        domain,
        rules: Rules::VERBS,
    };
    let key = table.bind_window(&request).unwrap();
    let ask = |qp| {
        let (who, key) = (over(domain, qp), RKey::Device(key));
        let grant = table.check_remote(&who, key, 0x1010, 8, Operation::Write);
        grant.map(drop).map_err(|denial| denial.reason)
    };
    assert_eq!(ask(4), Ok(()));
    assert_eq!(ask(5), Err(Reason::WrongEndpoint { bound: Some(4) }));
    table.forget_endpoint(4);
    assert_eq!(ask(4), Err(Reason::WrongEndpoint { bound: None }));
}

/// Proves: FI-212
#[test]
fn a_region_for_one_peer_serves_no_other_peer() {
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
        let grant = table.check_remote(&who, RKey::Device(key), 0x1010, 8, Operation::Write);
        grant.map(drop).map_err(|denial| denial.reason)
    };
    let serves_seven_only = |key| {
        assert_eq!(ask(key, Some(7)), Ok(()));
        assert_eq!(ask(key, Some(8)), Err(Reason::OtherPeer));
        assert_eq!(ask(key, None), Err(Reason::OtherPeer));
    };
    serves_seven_only(region.key);
    let own = table.check_local(domain, region.local_key, 0x1000, 8, LocalUse::Send);
    assert!(own.is_ok(), "the owner is not a peer");
    drop(own);
    // A window on the region does not admit other peers either.
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
    // After a change, the region still serves the same peer only.
    let other = [range(0x1000, 128)];
    let change = Change {
        ranges: Some((&other, Addressing::Virtual)),
        ..Change::default()
    };
    let (changed, deregistering) = table.reregister(region.id, &change).unwrap();
    deregistering.finish().unwrap();
    serves_seven_only(changed.key);
}

/// The requesting peer matters only for regions that serve one peer, also on the slow path.
#[test]
fn a_region_without_a_peer_serves_all_peers() {
    let (table, domain) = table();
    let segments = [range(0x1000, 16), range(0x9000, 16)];
    let apart = table
        .register(&RegionSpec::new(domain, &segments, ALL))
        .unwrap();
    let plain = table
        .register(&RegionSpec::new(domain, &segments[..1], ALL))
        .unwrap();
    let window = table.create_window(domain, WindowKind::Type1).unwrap();
    let request = BindRequest {
        window: window.id,
        region: BindRegion::Key(plain.local_key),
        range: range(0x1000, 16),
        access: Access::REMOTE_WRITE,
        zero_based: false,
        new_key: None,
        qp: None,
        domain,
        rules: Rules::VERBS,
    };
    let through = table.bind_window(&request).unwrap();
    for key in [apart.key, plain.key, through] {
        for peer in [None, Some(7)] {
            let who = Accessor {
                domain,
                qp: 1,
                peer,
            };
            let grant = table.check_remote(&who, RKey::Device(key), 0x1000, 8, Operation::Write);
            assert!(grant.is_ok(), "{peer:?}: {grant:?}");
        }
    }
}

//! Magazines: what they have prepaid is not visible, and does not make other registrations fail.

use crate::table::{ALL, range};
use rkey_base::range::VaRange;
use rkey_core::*;
use std::collections::HashSet;
use std::sync::Arc;

fn table(limits: Limits) -> (Arc<Protection>, DomainId) {
    let table = Arc::new(Protection::new(limits, Secrets([1, 2, 3, 4])));
    let domain = table.create_domain().unwrap();
    (table, domain)
}

fn register(
    table: &Protection,
    magazine: &Magazine,
    domain: DomainId,
    bytes: VaRange,
) -> Result<Region, CoreError> {
    table.register_from(magazine, &RegionSpec::new(domain, &[bytes], ALL))
}

fn close(table: &Protection, magazine: &Magazine, region: Region) {
    let deregistering = table.deregister_into(magazine, region.id);
    deregistering.unwrap().finish().unwrap();
}

fn reason(table: &Protection, domain: DomainId, key: RKey) -> Option<Reason> {
    let who = Accessor {
        domain,
        qp: 1,
        peer: None,
    };
    let answer = table.check_remote(&who, key, 0x1000, 1, Operation::Read);
    answer.err().map(|denial| denial.reason)
}

#[test]
fn a_snapshot_omits_prepaid_slots() {
    let (table, domain) = table(Limits::default());
    let magazine = table.magazine();
    let shown = || {
        let all = table.snapshot();
        let program = table.regions_of_program(domain).unwrap();
        assert_eq!(all.domains[0].children.regions, program);
        assert_eq!(all.regions.len() as u32, program);
        (program, all.total_bytes)
    };
    let first = register(&table, &magazine, domain, range(0x1000, 10)).unwrap();
    let second = register(&table, &magazine, domain, range(0x1000, 20)).unwrap();
    assert_eq!(shown(), (2, 30));
    assert_eq!(format!("{table:?}"), "Protection(2 regions, 0 windows)");
    close(&table, &magazine, first);
    assert_eq!(shown(), (1, 20));
    close(&table, &magazine, second);
    assert_eq!(shown(), (0, 0));
}

/// Another magazine, or a thread without one, can use the slots and bytes that a magazine has prepaid.
#[test]
fn prepaid_slots_of_a_magazine_do_not_count_against_limits() {
    let limits = Limits {
        max_regions: 3,
        max_total_bytes: 60,
        key_slots: 4,
        ..Limits::default()
    };
    let (table, domain) = table(limits);
    let magazines = [table.magazine(), table.magazine()];
    let bytes = range(0x1000, 20);
    for _ in 0..20 {
        let [one, two] = [0, 1].map(|n| register(&table, &magazines[n], domain, bytes).unwrap());
        let spec = RegionSpec::new(domain, std::slice::from_ref(&bytes), ALL);
        let three = table.register(&spec).unwrap();
        for magazine in &magazines {
            let refused = register(&table, magazine, domain, bytes).unwrap_err();
            assert!(matches!(
                refused,
                CoreError::LimitReached {
                    limit: Limit::Regions,
                    ..
                }
            ));
        }
        close(&table, &magazines[1], one);
        let too_much = register(&table, &magazines[0], domain, range(0x1000, 21)).unwrap_err();
        assert!(matches!(
            too_much,
            CoreError::LimitReached {
                limit: Limit::TotalBytes,
                ..
            }
        ));
        close(&table, &magazines[0], two);
        close(&table, &magazines[0], three);
    }
}

#[test]
fn a_domain_closes_while_a_magazine_holds_slots_for_it() {
    let (table, domain) = table(Limits::default());
    let (magazine, other) = (table.magazine(), table.create_domain().unwrap());
    let region = register(&table, &magazine, domain, range(0x1000, 8)).unwrap();
    let busy = table.close_domain(domain).unwrap_err();
    let children = DomainChildren {
        regions: 1,
        ..DomainChildren::default()
    };
    assert_eq!(busy, CoreError::DomainBusy { domain, children });
    close(&table, &magazine, region);
    table.close_domain(domain).unwrap();
    let gone = register(&table, &magazine, domain, range(0x1000, 8)).unwrap_err();
    assert_eq!(gone, CoreError::NoSuchDomain(domain));
    // One magazine serves two domains in turn, and ends regions of both.
    let domain = table.create_domain().unwrap();
    for _ in 0..40 {
        let all = [domain, other]
            .map(|domain| register(&table, &magazine, domain, range(0x1000, 8)).unwrap());
        all.into_iter()
            .for_each(|region| close(&table, &magazine, region));
    }
    assert_eq!(table.snapshot().total_bytes, 0);
    table.close_domain(domain).unwrap();
    table.close_domain(other).unwrap();
}

#[test]
fn a_dropped_magazine_returns_its_slots() {
    let limits = Limits {
        key_slots: 4,
        ..Limits::default()
    };
    let (table, domain) = table(limits);
    for _ in 0..5 {
        let magazine = table.magazine();
        let all: Vec<Region> = (0..4)
            .map(|_| register(&table, &magazine, domain, range(0x1000, 8)).unwrap())
            .collect();
        assert!(register(&table, &magazine, domain, range(0x1000, 8)).is_err());
        all.into_iter()
            .for_each(|region| close(&table, &magazine, region));
    }
    table.close_domain(domain).unwrap();
}

#[test]
fn a_region_with_bindings_is_not_deregistered_into_a_magazine() {
    let (table, domain) = table(Limits::default());
    let magazine = table.magazine();
    let region = register(&table, &magazine, domain, range(0x1000, 64)).unwrap();
    let is_busy = || {
        let answer = table.deregister_into(&magazine, region.id);
        matches!(answer, Err(CoreError::RegionBusy { .. }))
    };
    table.bind_counter(region.id, 5).unwrap();
    assert!(is_busy());
    table.bind_endpoint(region.id, 1).unwrap();
    table.unbind_counter(region.id).unwrap();
    assert!(is_busy());
    assert_eq!(table.forget_endpoint(1), 1);
    let window = table.create_window(domain, WindowKind::Type1).unwrap();
    let bind = |len| BindRequest {
        window: window.id,
        region: BindRegion::Id(region.id),
        range: range(0x1000, len),
        access: Access::REMOTE_READ,
        zero_based: false,
        new_key: None,
        qp: None,
        domain,
        rules: Rules::default(),
    };
    table.bind_window(&bind(8)).unwrap();
    assert!(is_busy());
    table.bind_window(&bind(0)).unwrap();
    close(&table, &magazine, region);
    let gone = table.deregister_into(&magazine, region.id).unwrap_err();
    assert_eq!(gone, CoreError::NoSuchRegion(region.id));
}

#[test]
fn revoking_into_a_magazine_also_ends_bindings() {
    let (table, domain) = table(Limits::default());
    let magazine = table.magazine();
    for bound in [false, true, false] {
        let region = register(&table, &magazine, domain, range(0x1000, 64)).unwrap();
        if bound {
            table.bind_counter(region.id, 5).unwrap();
            table.bind_endpoint(region.id, 1).unwrap();
        }
        let deregistering = table
            .revoke_and_deregister_into(&magazine, region.id)
            .unwrap();
        deregistering.finish().unwrap();
        let stale = reason(&table, domain, RKey::Device(region.key));
        assert!(matches!(stale, Some(Reason::StaleKey { .. })), "{stale:?}");
        assert_eq!(table.forget_endpoint(1), 0, "nothing is bound to it");
        let gone = table
            .revoke_and_deregister_into(&magazine, region.id)
            .unwrap_err();
        assert_eq!(gone, CoreError::NoSuchRegion(region.id));
        assert_eq!(table.regions_of_program(domain).unwrap(), 0);
    }
}

/// A slot has more regions than generations, one after the other: each key is new, and the earlier ones are stale.
#[test]
fn keys_of_deregistered_regions_are_stale() {
    let limits = Limits {
        key_slots: 1,
        ..Limits::default()
    };
    let (table, domain) = table(limits);
    let magazine = table.magazine();
    let mut had = HashSet::new();
    for round in 0..if cfg!(miri) { 10 } else { 5_000_u64 } {
        let bytes = [range(0x1000, 8)];
        let spec = RegionSpec {
            requested_key: Some(round % 3),
            ..RegionSpec::new(domain, &bytes, ALL)
        };
        let region = table.register_from(&magazine, &spec).unwrap();
        let (key, requested) = (RKey::Device(region.key), RKey::Requested(round % 3));
        assert!(had.insert(region.key), "a key twice");
        assert_eq!(reason(&table, domain, key), None);
        assert_eq!(reason(&table, domain, requested), None);
        close(&table, &magazine, region);
        let stale = reason(&table, domain, key);
        assert!(matches!(stale, Some(Reason::StaleKey { .. })), "{stale:?}");
        let unknown = Some(Reason::UnknownKey);
        assert_eq!(reason(&table, domain, requested), unknown);
    }
}

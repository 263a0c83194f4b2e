//! Protection domains and their objects.

use crate::table::{ALL, range, table};
use rkey_core::*;

#[test]
fn a_domain_that_is_in_use_cannot_be_closed() {
    let (table, domain) = table();
    let ranges = [range(0x1000, 64)];
    let region = table
        .register(&RegionSpec::new(domain, &ranges, ALL))
        .unwrap();
    let window = table.create_window(domain, WindowKind::Type1).unwrap();
    table.hold_domain(domain).unwrap();
    let children = DomainChildren {
        regions: 1,
        windows: 1,
        holders: 1,
    };
    let busy = table.close_domain(domain).unwrap_err();
    assert_eq!(busy, CoreError::DomainBusy { domain, children });
    assert_eq!(
        busy.to_string(),
        "domain 1 is busy: 1 region, 1 window, 1 queue pair or shared receive queue"
    );
    table.release_domain(domain).unwrap();
    table.deallocate_window(window.id).unwrap();
    table.deregister(region.id).unwrap().finish().unwrap();
    table.close_domain(domain).unwrap();
    assert_eq!(
        table.close_domain(domain),
        Err(CoreError::NoSuchDomain(domain))
    );
    let refused = table.register(&RegionSpec::new(domain, &ranges, ALL));
    assert_eq!(refused, Err(CoreError::NoSuchDomain(domain)));
    assert_ne!(table.create_domain().unwrap(), domain);
}

/// A front end's own regions do not count as the program's, even after they are changed.
#[test]
fn internal_regions_do_not_count_as_regions_of_the_program() {
    let (table, domain) = table();
    let other = table.create_domain().unwrap();
    let ranges = [range(0x1000, 64)];
    let plain = RegionSpec::new(domain, &ranges, ALL);
    let of_program = table.register(&plain).unwrap();
    let internal = RegionSpec {
        internal: true,
        ..plain
    };
    let [first, second] = [(); 2].map(|()| table.register(&internal).unwrap());
    let counts = || [domain, other].map(|id| table.regions_of_program(id).unwrap());
    assert_eq!(counts(), [1, 0]);
    let there = Change {
        domain: Some(other),
        ..Change::default()
    };
    let (first, deregistering) = table.reregister(first.id, &there).unwrap();
    deregistering.finish().unwrap();
    let changing = table.change_region(second.id, &there).unwrap();
    assert_eq!(changing.finish().unwrap().id, second.id);
    assert_eq!(counts(), [1, 0]);
    let changing = table.change_region(of_program.id, &there).unwrap();
    assert_eq!(counts(), [0, 1]);
    drop(changing);
    assert_eq!(counts(), [0, 0]);
    for region in [first, second] {
        table.deregister(region.id).unwrap().finish().unwrap();
    }
    for domain in [domain, other] {
        table.close_domain(domain).unwrap();
        let gone = CoreError::NoSuchDomain(domain);
        assert_eq!(table.regions_of_program(domain), Err(gone));
    }
}

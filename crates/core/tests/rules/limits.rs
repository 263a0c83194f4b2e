//! Limits of a table, and how each error names its limit.

use crate::table::{ALL, range, table_within};
use rkey_base::range::VaRange;
use rkey_core::*;

/// Each error gives the limit's name, its value and how to raise it.
#[test]
fn errors_name_their_limit() {
    let limits = Limits {
        max_regions: 2,
        max_region_bytes: 100,
        max_total_bytes: 150,
        max_windows: 1,
        max_domains: 1,
        max_segments: 2,
        key_slots: 100,
    };
    let (table, domain) = table_within(limits);
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
        "the limit of 2 segments in one scatter list is reached (raise it with RKEY_MAX_SEGMENTS)",
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
    table.deregister(first).unwrap().finish().unwrap();
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

//! Null regions: what they grant, to whom, and which operations they refuse.

use crate::table::{over, range, table};
use rkey_base::range::VaRange;
use rkey_core::*;

const ZEROS: (u64, u64) = (0x1000, 0x100);
const SINK: (u64, u64) = (0x8000, 0x80);

fn memory((start, len): (u64, u64)) -> VaRange {
    range(start, len)
}

fn null() -> (Protection, DomainId, Region) {
    let (table, domain) = table();
    let region = table
        .register_null(domain, memory(ZEROS), memory(SINK))
        .unwrap();
    (table, domain, region)
}

fn spans(
    table: &Protection,
    domain: DomainId,
    key: LKey,
    len: u64,
    want: LocalUse,
) -> Vec<(u64, u64)> {
    let grant = table.check_local(domain, key, 77, len, want).unwrap();
    assert_eq!(grant.len(), len);
    grant
        .spans()
        .map(|span| (span.start(), span.len()))
        .collect()
}

#[test]
fn reads_return_zeros_and_writes_go_to_the_sink() {
    let (table, domain, region) = null();
    let key = region.local_key;
    for want in [LocalUse::Send, LocalUse::WriteSource] {
        assert_eq!(spans(&table, domain, key, 8, want), [(0x1000, 8)]);
        assert_eq!(spans(&table, domain, key, 0x100, want), [ZEROS]);
        assert_eq!(
            spans(&table, domain, key, 0x203, want),
            [ZEROS, ZEROS, (0x1000, 3)]
        );
    }
    for want in [LocalUse::Recv, LocalUse::ReadSink, LocalUse::AtomicResult] {
        assert_eq!(spans(&table, domain, key, 8, want), [(0x8000, 8)]);
        assert_eq!(spans(&table, domain, key, 0x100, want), [SINK, SINK]);
        assert_eq!(spans(&table, domain, key, 0x81, want), [SINK, (0x8000, 1)]);
    }
}

#[test]
fn a_null_region_accepts_every_address_that_does_not_wrap() {
    let (table, domain, region) = null();
    let check = |addr, len| {
        let answer = table.check_local(domain, region.local_key, addr, len, LocalUse::Send);
        answer
            .map(|grant| grant.len())
            .map_err(|denial| denial.reason)
    };
    for addr in [0, 1, 0x1234_5678_9abc, u64::MAX - 64] {
        assert_eq!(check(addr, 64), Ok(64));
    }
    assert_eq!(check(u64::MAX - 63, 65), Err(Reason::Wraps));
    assert_eq!(check(0, u32::MAX.into()), Ok(u32::MAX.into()));
}

#[test]
fn peers_and_other_domains_cannot_reach_a_null_region() {
    let (table, domain, region) = null();
    let other = table.create_domain().unwrap();
    let denied = table.check_local(other, region.local_key, 0, 8, LocalUse::Send);
    assert_eq!(
        denied.unwrap_err().reason,
        Reason::OtherDomain { owner: domain }
    );
    let who = over(domain, 1);
    for want in [Operation::Write, Operation::Read, Operation::Atomic] {
        let denied = table.check_remote(&who, RKey::Device(region.key), 0, 8, want);
        let reason = denied.unwrap_err().reason;
        assert!(
            matches!(reason, Reason::Right { .. }),
            "{want:?}: {reason:?}"
        );
    }
}

#[test]
fn a_null_region_can_only_be_deregistered() {
    let (table, domain, region) = null();
    let wanted = Change {
        access: Some(Access::all()),
        ..Change::default()
    };
    let null = CoreError::Null(region.id);
    assert_eq!(table.reregister(region.id, &wanted).unwrap_err(), null);
    assert_eq!(table.change_region(region.id, &wanted).unwrap_err(), null);
    assert_eq!(table.snapshot().total_bytes, 0, "it holds nothing");
    assert!(table.close_domain(domain).is_err());
    table.deregister(region.id).unwrap().finish().unwrap();
    let denied = table.check_local(domain, region.local_key, 0, 8, LocalUse::Send);
    assert!(matches!(
        denied.unwrap_err().reason,
        Reason::StaleKey { .. }
    ));
    // The next null region may reuse its scatter list, but grants its own memory.
    let next = table
        .register_null(domain, memory(SINK), memory(ZEROS))
        .unwrap();
    assert_eq!(
        spans(&table, domain, next.local_key, 8, LocalUse::Send),
        [(0x8000, 8)]
    );
    let nothing = range(0, 0);
    let empty = table.register_null(domain, nothing, memory(SINK));
    assert_eq!(empty.unwrap_err(), CoreError::Empty);
}

//! A table for tests.

use rkey_base::range::VaRange;
use rkey_core::*;

pub(crate) const ALL: Access = Access::all();

pub(crate) fn range(start: u64, len: u64) -> VaRange {
    VaRange::new(start, len).unwrap()
}

/// A table with a domain.
pub(crate) fn table() -> (Protection, DomainId) {
    table_within(Limits::default())
}

pub(crate) fn table_within(limits: Limits) -> (Protection, DomainId) {
    let table = Protection::new(limits, Secrets([5, 6, 7, 8]));
    let domain = table.create_domain().unwrap();
    (table, domain)
}

/// The accessor of a queue pair.
pub(crate) fn over(domain: DomainId, qp: u32) -> Accessor {
    Accessor {
        domain,
        qp,
        peer: None,
    }
}

/// The answer to a peer that requests these bytes by a device key.
pub(crate) fn remote(
    table: &Protection,
    domain: DomainId,
    key: Key,
    addr: u64,
    len: u64,
    want: Operation,
) -> Result<Grant<'_>, Reason> {
    let who = over(domain, 1);
    table
        .check_remote(&who, RKey::Device(key), addr, len, want)
        .map_err(|denial| denial.reason)
}

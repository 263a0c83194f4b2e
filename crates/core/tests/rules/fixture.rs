//! A region to bind windows to.

use crate::table::{ALL, over, range, table_within};
use rkey_base::range::VaRange;
use rkey_core::*;

/// A table with a region in it.
pub(crate) struct Fixture {
    pub(crate) table: Protection,
    pub(crate) domain: DomainId,
    pub(crate) region: Region,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let (table, domain) = table_within(limits);
        let region = table
            .register(&RegionSpec::new(domain, &[range(0x1000, 256)], ALL))
            .unwrap();
        Self {
            table,
            domain,
            region,
        }
    }

    pub(crate) fn window(&self, kind: WindowKind) -> Window {
        self.table.create_window(self.domain, kind).unwrap()
    }

    pub(crate) fn request(&self, window: WindowId) -> BindRequest {
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

    pub(crate) fn bind(&self, request: &BindRequest) -> Key {
        self.table.bind_window(request).unwrap()
    }

    pub(crate) fn unbind(&self, window: WindowId) -> Key {
        self.bind(&BindRequest {
            range: range(0, 0),
            ..self.request(window)
        })
    }

    pub(crate) fn write(&self, key: Key, qp: u32, addr: u64, len: u64) -> Result<VaRange, Reason> {
        let who = over(self.domain, qp);
        let grant = self
            .table
            .check_remote(&who, RKey::Device(key), addr, len, Operation::Write);
        grant
            .map(|grant| grant.single().unwrap())
            .map_err(|denial| denial.reason)
    }

    pub(crate) fn close(&self) -> Result<(), CoreError> {
        self.table
            .deregister(self.region.id)
            .map(|deregistering| deregistering.finish().unwrap())
    }
}

//! The protection table (being filled in).
#![allow(clippy::unimplemented, missing_docs, unused_variables)]

use crate::*;
use rkey_base::range::VaRange;
use std::marker::PhantomData;

/// Random numbers from the device.
#[derive(Clone)]
pub struct Secrets(pub [u64; 4]);

pub struct Protection {
    limits: Limits,
}

pub struct Closing<'a>(PhantomData<&'a Protection>);
impl Closing<'_> {
    /// No access holds the region any more.
    pub fn is_drained(&self) -> bool {
        unimplemented!()
    }
    /// Ends the close; gives itself back when an access still holds the region.
    pub fn finish(self) -> Result<(), Self> {
        unimplemented!()
    }
}

pub struct Lease<'a>(PhantomData<&'a Protection>);
pub struct Spans<'a>(PhantomData<&'a Protection>);
impl Iterator for Spans<'_> {
    type Item = VaRange;
    fn next(&mut self) -> Option<VaRange> {
        unimplemented!()
    }
}
impl Lease<'_> {
    /// The one range, when it is one (always so for plain regions).
    pub fn single(&self) -> Option<VaRange> {
        unimplemented!()
    }
    pub fn spans(&self) -> Spans<'_> {
        unimplemented!()
    }
    pub fn counter(&self) -> Option<u32> {
        unimplemented!()
    }
    /// None for an access of no bytes.
    pub fn region(&self) -> Option<RegionId> {
        unimplemented!()
    }
    pub fn len(&self) -> u64 {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Protection {
    pub fn new(limits: Limits, secrets: Secrets) -> Self {
        unimplemented!()
    }
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
    pub fn create_domain(&self) -> Result<DomainId, CoreError> {
        unimplemented!()
    }
    pub fn close_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// Counts a queue pair or another user of the domain.
    pub fn hold_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        unimplemented!()
    }
    pub fn release_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        unimplemented!()
    }

    pub fn register(&self, spec: &RegionSpec<'_>) -> Result<Region, CoreError> {
        unimplemented!()
    }
    pub fn enable(&self, region: RegionId) -> Result<(), CoreError> {
        unimplemented!()
    }
    pub fn bind_endpoint(&self, region: RegionId, endpoint: u32) -> Result<(), CoreError> {
        unimplemented!()
    }
    pub fn unbind_endpoint(&self, region: RegionId) -> Result<(), CoreError> {
        unimplemented!()
    }
    pub fn bind_counter(&self, region: RegionId, counter: u32) -> Result<(), CoreError> {
        unimplemented!()
    }
    pub fn unbind_counter(&self, region: RegionId) -> Result<(), CoreError> {
        unimplemented!()
    }
    /// The new region (other handle, other keys) and the end of the old one, which may still be in use.
    pub fn reregister(
        &self,
        region: RegionId,
        change: &Change<'_>,
    ) -> Result<(Region, Closing<'_>), CoreError> {
        unimplemented!()
    }
    pub fn close_region(&self, region: RegionId) -> Result<Closing<'_>, CoreError> {
        unimplemented!()
    }
    /// Unbinds every window and takes away endpoint and counter, then closes.
    pub fn revoke_region(&self, region: RegionId) -> Result<Closing<'_>, CoreError> {
        unimplemented!()
    }
    pub fn region_memory(&self, region: RegionId) -> Result<MemoryKind, CoreError> {
        unimplemented!()
    }

    pub fn create_window(&self, domain: DomainId, kind: WindowKind) -> Result<Window, CoreError> {
        unimplemented!()
    }
    pub fn close_window(&self, window: WindowId) -> Result<(), CoreError> {
        unimplemented!()
    }
    pub fn bind_window(&self, request: &BindRequest) -> Result<Key, BindError> {
        unimplemented!()
    }
    /// The key that a coming bind will give (type 1, DAT); of type 2: the present key.
    pub fn next_window_key(&self, window: WindowId) -> Result<Key, BindError> {
        unimplemented!()
    }
    /// Takes a promise back whose bind will not be executed.
    pub fn forfeit_window_key(&self, window: WindowId, key: Key) {
        unimplemented!()
    }
    pub fn invalidate(&self, key: Key, who: &Accessor, remote: bool) -> Result<(), Box<Denial>> {
        unimplemented!()
    }
    /// Unbinds the type 2 windows of a queue pair that goes; returns how many.
    pub fn forget_endpoint(&self, qp: u32) -> usize {
        unimplemented!()
    }

    pub fn check_remote(
        &self,
        who: &Accessor,
        key: WireKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Result<Lease<'_>, Box<Denial>> {
        unimplemented!()
    }
    pub fn check_local(
        &self,
        domain: DomainId,
        key: LocalKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Lease<'_>, Box<Denial>> {
        unimplemented!()
    }
    pub fn check_region(
        &self,
        domain: DomainId,
        region: RegionId,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Lease<'_>, Box<Denial>> {
        unimplemented!()
    }
    pub fn snapshot(&self) -> Snapshot {
        unimplemented!()
    }
}

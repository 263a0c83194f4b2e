//! Regions of foreign memory: bytes that only their own runtime or driver may copy.
//!
//! Such a region has a scatter list that names the copier of each segment, so checks of other regions cost nothing
//! extra. Its grants name the copier of each range ([`rkey_base::foreign::Span`]) and are never a single plain range.

use crate::protection::table::Protection;
use crate::{CoreError, MemoryKind, Region, RegionSpec};
use rkey_base::foreign::Copier;

impl Protection {
    /// Registers memory with one copier for each range; `None` is the processor. The copiers are dropped after the
    /// region has ended.
    ///
    /// # Errors
    /// Same as [`Self::register`]; [`CoreError::Empty`] if the numbers of ranges and copiers differ.
    pub fn register_foreign(
        &self,
        spec: &RegionSpec<'_>,
        copiers: &[Copier],
    ) -> Result<Region, CoreError> {
        if copiers.len() != spec.ranges.len() {
            return Err(CoreError::Empty);
        }
        let mut geometry = self.scattered(spec.ranges, spec.addressing)?;
        let segments = geometry.segments.take();
        geometry.segments = segments.map(|segments| segments.copied_by(copiers));
        self.enter_as(spec, geometry, MemoryKind::User)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        Access, Accessor, Addressing, Change, Limits, LocalUse, Operation, RKey, Reason, Secrets,
    };
    use rkey_base::fault::Fault;
    use rkey_base::foreign::ForeignMemory;
    use rkey_base::range::VaRange;
    use std::sync::Arc;

    #[derive(Debug)]
    struct Nowhere;

    impl ForeignMemory for Nowhere {
        fn load(&self, _: &mut [u8], src: u64) -> Result<(), Fault> {
            Err(Fault::at(src))
        }
        fn store(&self, dst: u64, _: &[u8]) -> Result<(), Fault> {
            Err(Fault::at(dst))
        }
    }

    fn range(start: u64, len: u64) -> VaRange {
        VaRange::new(start, len).unwrap()
    }

    #[test]
    fn grants_name_the_copier_of_each_segment() {
        let table = Protection::new(Limits::default(), Secrets([1, 2, 3, 4]));
        let domain = table.create_domain().unwrap();
        let nowhere: Arc<dyn ForeignMemory> = Arc::new(Nowhere);
        let ranges = [range(0x1000, 64), range(0x9000, 64)];
        let spec = RegionSpec {
            addressing: Addressing::Zero,
            ..RegionSpec::new(domain, &ranges, Access::all())
        };
        let copiers = [Some(Arc::clone(&nowhere)), None];
        assert!(table.register_foreign(&spec, &copiers[..1]).is_err());
        let region = table.register_foreign(&spec, &copiers).unwrap();
        let who = Accessor {
            domain,
            qp: 0,
            peer: None,
        };
        let key = RKey::Device(region.key);
        let grant = table.check_remote(&who, key, 32, 64, Operation::Write);
        let grant = grant.unwrap();
        assert_eq!(grant.single(), None);
        let spans: Vec<_> = grant.spans().collect();
        assert_eq!(spans[0].range(), range(0x1020, 32));
        assert_eq!(spans[0].in_process(), None);
        assert_eq!(spans[1].in_process(), Some(range(0x9000, 32)));
        drop(grant);
        let beyond = table.check_remote(&who, key, 65, 64, Operation::Read);
        assert!(matches!(
            beyond.unwrap_err().reason,
            Reason::OutOfRange { .. }
        ));
        // The 8 bytes of an atomic operation must be in one segment.
        let atomic = |at| {
            table
                .check_remote(&who, key, at, 8, Operation::Atomic)
                .map(drop)
        };
        assert!(atomic(56).is_ok() && atomic(64).is_ok());
        assert_eq!(atomic(60).unwrap_err().reason, Reason::Misaligned);
        // A change of rights keeps the copiers.
        let change = Change {
            access: Some(Access::LOCAL_READ),
            ..Change::default()
        };
        let changed = table.change_region(region.id, &change).unwrap().finish();
        let local = changed.unwrap().local_key;
        let grant = table
            .check_local(domain, local, 0, 8, LocalUse::Send)
            .unwrap();
        assert!(grant.spans().all(|span| span.in_process().is_none()));
        drop(grant);
        assert_eq!(Arc::strong_count(&nowhere), 3);
        table.deregister(region.id).unwrap().finish().unwrap();
        drop(copiers);
        assert_eq!(
            Arc::strong_count(&nowhere),
            1,
            "the region has dropped its own"
        );
    }
}

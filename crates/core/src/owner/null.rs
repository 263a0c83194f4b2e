//! Null regions: a local key for no memory. Reads return zeros and writes are dropped, at any address and of any length.
//! Peers cannot reach them.

use crate::denials::denial::Request;
use crate::owner::geometry::Geometry;
use crate::owner::registration::Filling;
use crate::protection::entry::{Entry, flag};
use crate::protection::granted::Granted;
use crate::protection::scatter::ScatterList;
use crate::protection::table::{Protection, reached};
use crate::sync::Ordering;
use crate::{Access, CoreError, DomainId, Limit, MemoryKind, Reason, Region};
use rkey_base::range::VaRange;

impl Protection {
    /// Creates a null region. Its grants name the bytes of `zeros` for reads and of `sink` for writes, repeated to the
    /// length of the access. Both ranges belong to the caller, who never changes `zeros` and never reads `sink`.
    ///
    /// The region has local rights only and keeps them: it can be deregistered, but not changed.
    ///
    /// # Errors
    /// [`CoreError::Empty`], [`CoreError::LimitReached`], [`CoreError::NoSuchDomain`].
    pub fn register_null(
        &self,
        domain: DomainId,
        zeros: VaRange,
        sink: VaRange,
    ) -> Result<Region, CoreError> {
        if zeros.is_empty() || sink.is_empty() {
            return Err(CoreError::Empty);
        }
        let max = self.limits.max_region_bytes;
        let segments =
            ScatterList::new(&[zeros, sink]).ok_or_else(|| reached(Limit::RegionBytes, max))?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let flags = flag::SCATTER | flag::NULL;
        self.enter(Filling {
            geometry: Geometry {
                start: 0,
                // A null region occupies no memory, so it does not count towards the limits on bytes.
                len: 0,
                base: 0,
                flags,
                segments: Some(segments),
            },
            domain,
            rights: access.bits() | flags,
            requested: None,
            endpoint: None,
            peer: None,
            counter: None,
            memory: MemoryKind::User,
        })
    }

    /// The substitute for the memory of a null region in an access of at least one byte.
    pub(crate) fn nothing(
        &self,
        region: &Entry,
        request: &Request,
        needs: Access,
    ) -> Result<Granted, Reason> {
        VaRange::new(request.addr, request.len).ok_or(Reason::Wraps)?;
        let number = region.start.load(Ordering::Relaxed);
        let segments = self.scatter.get(number).ok_or(Reason::Deregistering)?;
        let [zeros, sink] = segments.ranges()[..] else {
            return Err(Reason::Deregistering);
        };
        let puts = Access::LOCAL_WRITE.contains(needs);
        let block = if puts { sink } else { zeros };
        let (times, rest) = (request.len / block.len(), request.len % block.len());
        let rest = block.slice(0, rest).filter(|rest| !rest.is_empty());
        let spans = (0..times).map(|_| block).chain(rest);
        Ok(match (times, rest) {
            (0, Some(one)) => Granted::One(one),
            _ => Granted::several(spans.collect(), Box::default()),
        })
    }
}

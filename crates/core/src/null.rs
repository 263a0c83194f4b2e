//! Null regions: a local key for no memory. What is taken from one is zeros, what is put there is gone, at any address
//! and as long as a request likes. Nothing about it can be reached by peers.

use crate::denial::Ask;
use crate::entry::{Entry, flag};
use crate::lease::Granted;
use crate::registry::{Filling, Geometry};
use crate::scatter::Pieces;
use crate::sync::Ordering;
use crate::table::{Protection, reached};
use crate::{Access, CoreError, DomainId, Limit, MemoryKind, Reason, Region};
use rkey_base::range::VaRange;

impl Protection {
    /// Makes a null region. Leases of it name, as often as they need, the bytes of `zeros` where they are for taking, and
    /// of `sink` where they are for putting: both belong to the caller, who never changes the first and never looks at
    /// the second.
    ///
    /// It has the rights of local requests and no others, and keeps them: it can be closed, but not changed.
    ///
    /// # Errors
    /// [`CoreError::Empty`], limits, [`CoreError::NoSuchDomain`].
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
        let pieces = Pieces::new(&[zeros, sink]).ok_or_else(|| reached(Limit::RegionBytes, max))?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let flags = flag::SCATTER | flag::NULL;
        self.enter(Filling {
            geometry: Geometry {
                start: 0,
                // It holds nothing, and counts for nothing.
                len: 0,
                base: 0,
                flags,
                pieces: Some(pieces),
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

    /// What stands for the memory of a null region in an access of at least one byte.
    pub(crate) fn nothing(
        &self,
        region: &Entry,
        ask: &Ask,
        needs: Access,
    ) -> Result<Granted, Reason> {
        VaRange::new(ask.addr, ask.len).ok_or(Reason::Wraps)?;
        let number = region.start.load(Ordering::Relaxed);
        let pieces = self.scatter.get(number).ok_or(Reason::Closing)?;
        let [zeros, sink] = pieces.ranges()[..] else {
            return Err(Reason::Closing);
        };
        let puts = Access::LOCAL_WRITE.contains(needs);
        let block = if puts { sink } else { zeros };
        let (times, rest) = (ask.len / block.len(), ask.len % block.len());
        let rest = block.slice(0, rest).filter(|rest| !rest.is_empty());
        let spans = (0..times).map(|_| block).chain(rest);
        Ok(match (times, rest) {
            (0, Some(one)) => Granted::One(one),
            _ => Granted::Many(spans.collect()),
        })
    }
}

//! Which memory an address and a length name in a region or window, if they are inside.

use crate::Reason;
use crate::protection::entry::{BoundTo, Entry, flag};
use crate::protection::granted::Granted;
use crate::protection::table::Protection;
use crate::sync::Ordering;
use rkey_base::range::VaRange;

impl Protection {
    /// The offset in the region of `len` bytes at `addr`.
    pub(crate) fn offset_in(&self, region: &Entry, addr: u64, len: u64) -> Result<u64, Reason> {
        let asked = VaRange::new(addr, len).ok_or(Reason::Wraps)?;
        let rights = region.rights();
        let start = region.start.load(Ordering::Relaxed);
        if rights & (flag::SCATTER | flag::VIRTUAL) == flag::SCATTER | flag::VIRTUAL {
            let segments = self.scatter.get(start).ok_or(Reason::Deregistering)?;
            return match segments.offset_of(&asked) {
                Some(offset) => Ok(offset),
                None if segments.hull().contains(&asked) => Err(Reason::CrossesSegments),
                None => Err(Reason::out_of_range(segments.hull(), addr, len)),
            };
        }
        let virtual_start = (rights & flag::SCATTER == 0).then_some(start);
        let base = region.base.load(Ordering::Relaxed);
        inside(
            base,
            region.len.load(Ordering::Relaxed),
            asked,
            virtual_start,
        )
    }

    /// The offset in the region of `len` bytes at `addr` of a window.
    pub(crate) fn offset_in_window(
        &self,
        window: &BoundTo,
        region: &Entry,
        addr: u64,
        len: u64,
    ) -> Result<u64, Reason> {
        let asked = VaRange::new(addr, len).ok_or(Reason::Wraps)?;
        let scattered = region.rights() & flag::SCATTER != 0;
        let virtual_start = region
            .base
            .load(Ordering::Relaxed)
            .checked_add(window.offset);
        let offset = inside(
            window.base,
            window.len,
            asked,
            virtual_start.filter(|_| !scattered),
        )?;
        window.offset.checked_add(offset).ok_or(Reason::Wraps)
    }

    /// The memory of `len` bytes at `offset` in a region. The caller has checked that they are inside.
    pub(crate) fn memory_of(
        &self,
        region: &Entry,
        offset: u64,
        len: u64,
        alignment: u64,
    ) -> Result<Granted, Reason> {
        let start = region.start.load(Ordering::Relaxed);
        let memory = if region.rights() & flag::SCATTER == 0 {
            let whole = VaRange::new(start, region.len.load(Ordering::Relaxed));
            Granted::One(
                whole
                    .and_then(|it| it.slice(offset, len))
                    .ok_or(Reason::Deregistering)?,
            )
        } else {
            let segments = self.scatter.get(start).ok_or(Reason::Deregistering)?;
            segments.memory(offset, len).ok_or(Reason::Deregistering)?
        };
        match &memory {
            Granted::One(range) if range.start() & alignment != 0 => Err(Reason::Misaligned),
            Granted::Many(several) if alignment != 0 => match &several.ranges[..] {
                [one] if one.start() & alignment == 0 => Ok(memory),
                _ => Err(Reason::Misaligned),
            },
            _ => Ok(memory),
        }
    }
}

/// The offset of the range `asked` in `len` bytes whose addresses start at `base`. `virtual_start`, the virtual address
/// of the first byte, is for the hint that a request mixed up offsets and addresses.
fn inside(base: u64, len: u64, asked: VaRange, virtual_start: Option<u64>) -> Result<u64, Reason> {
    let memory = VaRange::new(base, len).ok_or(Reason::Wraps)?;
    if memory.contains(&asked) {
        return Ok(asked.start() - base);
    }
    let fits = |start| VaRange::new(start, len).is_some_and(|range| range.contains(&asked));
    match virtual_start {
        Some(start) if base == 0 && fits(start) => Err(Reason::ZeroBased {
            len,
            offset: asked.start() - start,
        }),
        _ if base > 0 && fits(0) => Err(Reason::NotZeroBased { memory }),
        _ => Err(Reason::out_of_range(memory, asked.start(), asked.len())),
    }
}

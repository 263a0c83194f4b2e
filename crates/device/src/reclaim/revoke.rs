//! Revoking leases.
//!
//! A lease is revoked in three steps: the owner withdraws the lease, so that the peer begins no further copy; issues a heavy
//! barrier, which makes every copy that has begun visible; and waits for those to end. A copy is at most 256 KiB long, so this
//! takes microseconds, unless the peer's thread gets no processor.
//!
//! A peer that was stopped in the middle of a copy may stay stopped forever. After [`TIMEOUT`] the owner detaches the pages that
//! the copy can touch, which the peer announced before the copy ([`Arena::detach`](rkey_base::segment::Arena::detach)). This
//! process keeps the bytes at the same addresses; the peer ends its copy in pages that only it maps. Other leases on these
//! pages are revoked first: otherwise the writes of their holders would be lost. The memory works as before, but these pages
//! can no longer be leased.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rkey_base::barrier;
use rkey_base::process::page_size;
use rkey_core::RegionId;
use rkey_engine::LinkId;
use rkey_link::direct::LeaseId;

use crate::progress::{Backoff, EngineDriver};
use crate::reclaim::lease::{Granted, Leases, overlap};
use crate::reclaim::remote_copies::RemoteCopies;

/// How long the owner waits for a copy in progress before it detaches the memory.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How long the owner then waits for copies of other leases on the same pages.
const TIMEOUT_OTHERS: Duration = Duration::from_millis(200);
/// How many times the owner checks leases before the first pause.
const SPINS: u32 = 200;

/// One lease of one link.
type Name = (LinkId, LeaseId);

impl Granted {
    fn name(&self) -> Name {
        (self.link, self.lease)
    }
}

/// A byte range of a segment.
type Part = (u32, Range<u64>);

impl Leases {
    /// Withdraws the leases that `which` selects: after the next heavy barrier no copy with them begins. Returns their names.
    fn withdraw(&self, which: impl Fn(RegionId, &Granted) -> bool) -> HashSet<Name> {
        let granted = self.granted.lock();
        let mut names = HashSet::new();
        for (region, lease) in all(&granted) {
            if which(region, lease) {
                lease.board.withdraw(&[lease.lease]);
                names.insert(lease.name());
            }
        }
        names
    }

    /// Forgets those of the named leases that have no copy in progress. Returns whether none of them is left.
    fn forget_ended(&self, names: &HashSet<Name>) -> bool {
        let mut rest = false;
        self.retain(|lease| {
            let out = names.contains(&lease.name()) && !lease.board.has_no_copy(lease.lease);
            rest |= out;
            out || !names.contains(&lease.name())
        });
        !rest
    }

    fn retain(&self, mut keep: impl FnMut(&mut Granted) -> bool) {
        self.granted.lock().retain(|_, leases| {
            leases.retain_mut(&mut keep);
            !leases.is_empty()
        });
    }

    /// Waits until withdrawn leases have no copy in progress. Returns `false` if `patience` passed first.
    fn wait(&self, names: &HashSet<Name>, patience: Duration) -> bool {
        for _ in 0..SPINS {
            if self.forget_ended(names) {
                return true;
            }
            rkey_base::hint::pause();
        }
        let deadline = Instant::now() + patience;
        let mut backoff = Backoff::new();
        loop {
            if self.forget_ended(names) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            backoff.sleep();
        }
    }

    /// Forgets the leases of a link that has ended, except those with a copy in progress, for which deregistering their region
    /// still waits. Returns whether any are left.
    pub(crate) fn forget_link(&self, link: LinkId) -> bool {
        for segment in self.segments.lock().values_mut() {
            segment.forget(link);
        }
        let names = self.withdraw(|_, lease| lease.link == link);
        if names.is_empty() {
            return false;
        }
        barrier::heavy();
        self.retain(|lease| {
            lease.lost |= lease.link == link;
            true
        });
        !self.forget_ended(&names)
    }

    /// Forgets leases of lost links whose copies have ended. Returns whether any are left.
    pub(crate) fn recheck_lost_peers(&self) -> bool {
        let mut rest = false;
        self.retain(|lease| {
            let keep = !lease.lost || !lease.board.has_no_copy(lease.lease);
            rest |= keep && lease.lost;
            keep
        });
        rest
    }

    /// Marks the pages that copies in progress can touch, so that they are not leased again. Adds them to `pages`.
    fn mark(&self, names: &HashSet<Name>, pages: &mut Vec<Part>) {
        let granted = self.granted.lock();
        let mut segments = self.segments.lock();
        for (_, lease) in all(&granted).filter(|(_, lease)| names.contains(&lease.name())) {
            let Some(announced) = lease.board.under_way(lease.lease) else {
                continue;
            };
            let part = (lease.segment, pages_of(&lease.bytes, &announced));
            if pages.contains(&part) {
                continue;
            }
            if let Some(segment) = segments.get_mut(&part.0) {
                segment.detached.push(part.1.clone());
            }
            pages.push(part);
        }
    }

    /// Detaches pages from the peers that map them.
    fn detach(&self, (segment, pages): &Part) -> std::io::Result<()> {
        let arena = {
            let segments = self.segments.lock();
            let segment = segments.get(segment);
            segment
                .map(|s| s.arena.clone())
                .and_then(|a| Weak::upgrade(&a))
        };
        // Memory that the program has freed is already unmapped.
        let Some(arena) = arena else { return Ok(()) };
        // The pages are inside the arena, whose length is a `usize`.
        arena.detach(pages.start as usize, (pages.end - pages.start) as usize)
    }

    /// Forgets leases whose copies will end in detached pages.
    fn abandon(&self, names: &HashSet<Name>) {
        self.retain(|lease| {
            let ours = names.contains(&lease.name());
            if ours && !lease.board.has_no_copy(lease.lease) {
                lease.board.abandon(lease.lease);
            }
            !ours
        });
    }

    /// Revokes all leases on a region that already refuses new ones. When this returns, no peer touches the memory through a
    /// lease.
    pub(super) fn revoke(&self, driver: &EngineDriver, copies: &RemoteCopies, region: RegionId) {
        if !self.any_region.load(Ordering::Acquire) {
            return;
        }
        self.regions.lock().remove(&region);
        let names = self.withdraw(|of, _| of == region);
        if names.is_empty() {
            return;
        }
        barrier::heavy();
        if self.wait(&names, TIMEOUT) {
            return;
        }
        tracing::warn!(
            ?region,
            "a peer has stopped in the middle of a copy; detaching the memory from it"
        );
        if let Err(error) = self.detach_copies(driver, copies, names.clone()) {
            tracing::error!(?region, %error, "cannot detach the memory; waiting for the peer");
            while !self.wait(&names, TIMEOUT) {}
        }
    }

    /// Detaches the pages that copies in progress can touch, after revoking other leases on them.
    fn detach_copies(
        &self,
        driver: &EngineDriver,
        copies: &RemoteCopies,
        mut names: HashSet<Name>,
    ) -> std::io::Result<()> {
        let _detaching = self.detaching.lock();
        let mut pages = Vec::new();
        let deadline = Instant::now() + TIMEOUT_OTHERS;
        loop {
            self.mark(&names, &mut pages);
            let touches = |lease: &Granted| {
                pages.iter().any(|(segment, pages)| {
                    *segment == lease.segment && overlap(pages, &lease.bytes)
                })
            };
            let others = self.withdraw(|_, lease| !names.contains(&lease.name()) && touches(lease));
            if others.is_empty() {
                break;
            }
            barrier::heavy();
            let left = deadline.saturating_duration_since(Instant::now());
            self.wait(&others, left);
            names.extend(others);
        }
        copies.pause(driver, || {
            pages.iter().try_for_each(|part| self.detach(part))
        })?;
        self.abandon(&names);
        Ok(())
    }
}

fn all(
    granted: &std::collections::HashMap<RegionId, Vec<Granted>>,
) -> impl Iterator<Item = (RegionId, &Granted)> {
    let of_region = |(region, leases): (&RegionId, _)| {
        let region = *region;
        let leases: &Vec<Granted> = leases;
        leases.iter().map(move |lease| (region, lease))
    };
    granted.iter().flat_map(of_region)
}

/// The pages of a segment that a copy in progress can touch, given the `announced` bytes of a lease. The peer may announce
/// anything, but the copy stays inside the lease.
fn pages_of(lease: &Range<u64>, announced: &Range<u64>) -> Range<u64> {
    let page = page_size() as u64;
    let len = lease.end - lease.start;
    let copy = if announced.start < len {
        announced.start..announced.end.min(len)
    } else {
        0..len
    };
    let start = (lease.start + copy.start) / page * page;
    // The segment consists of whole pages, and the lease lies inside.
    let end = (lease.start + copy.end).next_multiple_of(page);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_pages_cover_the_bytes_that_a_peer_announces_in_its_lease() {
        let page = page_size() as u64;
        let lease = page + 100..9 * page + 1;
        assert_eq!(pages_of(&lease, &(0..1)), page..2 * page);
        assert_eq!(pages_of(&lease, &(page..2 * page)), 2 * page..4 * page);
        assert_eq!(
            pages_of(&lease, &(7 * page..100 * page)),
            8 * page..10 * page
        );
        // A peer that announces bytes outside its lease.
        for said in [100 * page..101 * page, u64::MAX..u64::MAX] {
            assert_eq!(pages_of(&lease, &said), page..10 * page);
        }
    }
}

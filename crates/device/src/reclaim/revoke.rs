//! Taking leases back.
//!
//! A lease is taken back in three steps: it is withdrawn, so that no copy of the peer begins any more; a
//! heavy barrier makes every copy visible that has begun; and the end of that is waited for. A copy is of
//! 256 KiB at most, so this takes microseconds, or as long as the peer's thread does not get a processor.
//!
//! A peer that was stopped in the middle of a copy may stay so for ever. After [`PATIENCE`] the memory is
//! taken away from under it: the pages that the copy can touch (the peer has announced which) are
//! [detached](rkey_base::segment::Arena::detach). This process keeps the bytes at the same addresses, the
//! peer ends its copy in pages that are nobody's any more. Other leases of these pages have to be taken
//! back first: what their holders wrote would get lost. The memory works as before, but these pages can
//! not be leased any more.

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

use crate::progress::Backoff;
use crate::reclaim::lease::{Given, Leases, overlap};
use crate::shared::Shared;

/// How long a copy that is under way is waited for, before the memory is taken away from under it.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same for leases of other regions that are in the way of that.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_millis(200);
/// How long peers that reach into our memory by themselves get to end that.
const QUIET_WITHIN: Duration = Duration::from_millis(200);
/// Looks at a lease before the first pause.
const SPINS: u32 = 200;

/// One lease of one link.
type Name = (LinkId, LeaseId);

impl Given {
    fn name(&self) -> Name {
        (self.link, self.lease)
    }
}

/// Bytes of a segment.
type Part = (u32, Range<u64>);

impl Leases {
    /// Lets no copy begin (after the next heavy barrier) with the leases that `which` names; gives them.
    fn withdraw(&self, which: impl Fn(RegionId, &Given) -> bool) -> HashSet<Name> {
        let given = self.given.lock();
        let mut names = HashSet::new();
        for (region, lease) in all(&given) {
            if which(region, lease) {
                lease.board.withdraw(&[lease.lease]);
                names.insert(lease.name());
            }
        }
        names
    }

    /// Forgets those of the leases that are back; says whether all are.
    fn collect(&self, names: &HashSet<Name>) -> bool {
        let mut rest = false;
        self.retain(|lease| {
            let out = names.contains(&lease.name()) && !lease.board.is_back(lease.lease);
            rest |= out;
            out || !names.contains(&lease.name())
        });
        !rest
    }

    fn retain(&self, mut keep: impl FnMut(&mut Given) -> bool) {
        self.given.lock().retain(|_, leases| {
            leases.retain_mut(&mut keep);
            !leases.is_empty()
        });
    }

    /// Waits until withdrawn leases are back; says whether they are.
    fn wait(&self, names: &HashSet<Name>, patience: Duration) -> bool {
        for _ in 0..SPINS {
            if self.collect(names) {
                return true;
            }
            rkey_base::hint::pause();
        }
        let deadline = Instant::now() + patience;
        let mut backoff = Backoff::new();
        loop {
            if self.collect(names) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            backoff.sleep();
        }
    }

    /// The leases of a link that is gone go with it, except those with a copy under way: somebody may close
    /// the region, and has to wait for these. Says whether there are any.
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
        !self.collect(&names)
    }

    /// Forgets leases of lost links whose copies have ended; says whether there are others.
    pub(crate) fn settle(&self) -> bool {
        let mut rest = false;
        self.retain(|lease| {
            let keep = !lease.lost || !lease.board.is_back(lease.lease);
            rest |= keep && lease.lost;
            keep
        });
        rest
    }

    /// Marks the pages that the copies under way can touch: no lease of them is given from now on. Adds
    /// them to `pages`.
    fn mark(&self, names: &HashSet<Name>, pages: &mut Vec<Part>) {
        let given = self.given.lock();
        let mut segments = self.segments.lock();
        for (_, lease) in all(&given).filter(|(_, lease)| names.contains(&lease.name())) {
            let Some(said) = lease.board.under_way(lease.lease) else {
                continue;
            };
            let part = (lease.segment, pages_of(&lease.bytes, &said));
            if pages.contains(&part) {
                continue;
            }
            if let Some(segment) = segments.get_mut(&part.0) {
                segment.detached.push(part.1.clone());
            }
            pages.push(part);
        }
    }

    /// Lets the pages be ours alone.
    fn detach(&self, (segment, pages): &Part) -> std::io::Result<()> {
        let arena = {
            let segments = self.segments.lock();
            let segment = segments.get(segment);
            segment
                .map(|s| s.arena.clone())
                .and_then(|a| Weak::upgrade(&a))
        };
        // Memory that the program has freed has been unmapped, too.
        let Some(arena) = arena else { return Ok(()) };
        // Inside of the arena, whose length is a usize.
        arena.detach(pages.start as usize, (pages.end - pages.start) as usize)
    }

    /// Forgets leases whose copies can do no harm any more.
    fn abandon(&self, names: &HashSet<Name>) {
        self.retain(|lease| {
            let ours = names.contains(&lease.name());
            if ours && !lease.board.is_back(lease.lease) {
                lease.board.abandon(lease.lease);
            }
            !ours
        });
    }
}

fn all(
    given: &std::collections::HashMap<RegionId, Vec<Given>>,
) -> impl Iterator<Item = (RegionId, &Given)> {
    let of_region = |(region, leases): (&RegionId, _)| {
        let region = *region;
        let leases: &Vec<Given> = leases;
        leases.iter().map(move |lease| (region, lease))
    };
    given.iter().flat_map(of_region)
}

/// The pages of a segment that a copy can touch which is under way in the `said` bytes of a lease. What
/// the peer said may be anything; it cannot be more than the lease.
fn pages_of(lease: &Range<u64>, said: &Range<u64>) -> Range<u64> {
    let page = page_size() as u64;
    let len = lease.end - lease.start;
    let said = if said.start < len {
        said.start..said.end.min(len)
    } else {
        0..len
    };
    let start = (lease.start + said.start) / page * page;
    // The segment consists of whole pages, and the lease lies inside.
    let end = (lease.start + said.end).next_multiple_of(page);
    start..end
}

impl Shared {
    /// Takes back all leases of a region, which refuses new ones already. Returns when no peer touches its
    /// memory any more.
    pub(crate) fn revoke_leases(&self, region: RegionId) {
        if !self.leases.any_region.load(Ordering::Acquire) {
            return;
        }
        self.leases.regions.lock().remove(&region);
        let names = self.leases.withdraw(|of, _| of == region);
        if names.is_empty() {
            return;
        }
        barrier::heavy();
        if self.leases.wait(&names, PATIENCE) {
            return;
        }
        tracing::warn!(
            ?region,
            "a peer stopped in the middle of a copy: the memory is taken away from under it"
        );
        if let Err(error) = self.take_memory_away(names.clone()) {
            tracing::error!(%error, "there is no memory to take it away: waiting for the peer");
            while !self.leases.wait(&names, PATIENCE) {}
        }
    }

    /// Detaches the pages that copies under way can touch, of these leases and of others that are in the
    /// way.
    fn take_memory_away(&self, mut names: HashSet<Name>) -> std::io::Result<()> {
        let leases = &self.leases;
        let _one_at_a_time = leases.detaching.lock();
        let mut pages = Vec::new();
        let deadline = Instant::now() + PATIENCE_WITH_OTHERS;
        loop {
            leases.mark(&names, &mut pages);
            let touches = |lease: &Given| {
                pages.iter().any(|(segment, pages)| {
                    *segment == lease.segment && overlap(pages, &lease.bytes)
                })
            };
            let others =
                leases.withdraw(|_, lease| !names.contains(&lease.name()) && touches(lease));
            if others.is_empty() {
                break;
            }
            barrier::heavy();
            let left = deadline.saturating_duration_since(Instant::now());
            leases.wait(&others, left);
            names.extend(others);
        }
        self.undisturbed(|| pages.iter().try_for_each(|part| leases.detach(part)))?;
        leases.abandon(&names);
        Ok(())
    }

    /// Does something at a moment at which no peer that answers reaches into our memory: what it is
    /// writing by a call of the kernel would go to pages that have been replaced.
    fn undisturbed<R>(&self, act: impl FnOnce() -> R) -> R {
        if self.has_failed() {
            return act();
        }
        self.withdraw_permits();
        self.command(|engine| engine.hold_remote_iovecs_back(true));
        let deadline = Instant::now() + QUIET_WITHIN;
        let mut backoff = Backoff::new();
        let result = loop {
            let engine = self.engine.lock();
            if !engine.has_remote_iovecs() || Instant::now() >= deadline || self.has_failed() {
                break act();
            }
            drop(engine);
            self.drive_now();
            backoff.sleep();
        };
        self.command(|engine| engine.hold_remote_iovecs_back(false));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_what_a_peer_says_and_not_more_than_its_lease() {
        let page = page_size() as u64;
        let lease = page + 100..9 * page + 1;
        assert_eq!(pages_of(&lease, &(0..1)), page..2 * page);
        assert_eq!(pages_of(&lease, &(page..2 * page)), 2 * page..4 * page);
        assert_eq!(
            pages_of(&lease, &(7 * page..100 * page)),
            8 * page..10 * page
        );
        // Lies.
        for said in [100 * page..101 * page, u64::MAX..u64::MAX] {
            assert_eq!(pages_of(&lease, &said), page..10 * page);
        }
    }
}

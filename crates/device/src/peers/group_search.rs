//! Finds the devices that have members of a multicast group.
//!
//! The sender's device reads the names that the members' devices have bound ([`names::group_name`]), connects to those
//! devices as it does to the owner of any queue pair, and sends each of them one copy.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rkey_engine::{Group, LinkId, QpId};

use super::discovery::{Discovery, WaitingQp};
use super::links::Links;
use super::names;
use super::unresponsive::waits_for_a_processor;
use crate::shared::Shared;

/// How long the sender waits for the devices of a group. Devices that are not connected by then miss the datagrams sent
/// until they are, and later datagrams do not wait for them.
const PERSISTENCE: Duration = Duration::from_millis(200);
/// How long the sender waits for a device that cannot answer because its process waits for a processor.
const PERSISTENCE_BUSY: Duration = Duration::from_secs(5);
/// Pauses between two attempts to reach a device that did not answer: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The searches for the devices of groups.
#[derive(Default)]
pub(crate) struct GroupSearch {
    searches: Vec<Search>,
    silent: Silent,
}

/// The search for the devices of one group.
struct Search {
    group: Group,
    blocks: Vec<u16>,
    until: Instant,
    /// When the search ends even if busy devices are missing.
    end: Instant,
}

/// Devices that did not answer in time, by block: they may be stopped, or a process has bound names that do not belong to a
/// device. Such devices are retried periodically, but no datagram waits for them.
#[derive(Debug, Default)]
struct Silent(HashMap<u16, Silence>);

#[derive(Debug)]
struct Silence {
    /// The group that the device claims to have members of.
    group: Group,
    again: Instant,
    pause: Duration,
}

impl Silent {
    fn has(&self, block: u16) -> bool {
        self.0.contains_key(&block)
    }

    fn add(&mut self, block: u16, group: Group, now: Instant) {
        let pause = PAUSES.0;
        let again = now + pause;
        self.0.entry(block).or_insert(Silence {
            group,
            again,
            pause,
        });
    }

    fn remove(&mut self, block: u16) {
        self.0.remove(&block);
    }

    /// Forgets the silent devices of a group whose blocks no longer have members of it, so that the search waits for a device
    /// that later claims such a block.
    fn keep_members(&mut self, group: Group, blocks: &[u16]) {
        self.0
            .retain(|block, silence| silence.group != group || blocks.contains(block));
    }

    /// Whether to try a device now: it is not silent, or its pause has ended. After a pause, the next one is twice as long.
    fn is_due(&mut self, block: u16, now: Instant) -> bool {
        let Some(silence) = self.0.get_mut(&block) else {
            return true;
        };
        if now < silence.again {
            return false;
        }
        silence.pause = (silence.pause * 2).min(PAUSES.1);
        silence.again = now + silence.pause;
        true
    }
}

impl GroupSearch {
    /// Starts the searches that were requested since the last call.
    pub(crate) fn start(
        &mut self,
        shared: &Shared,
        discovery: &mut Discovery,
        links: &Links,
        now: Instant,
    ) {
        for (qp, group) in shared.driver.requests.take_groups() {
            self.look_for(shared, discovery, links, (qp, group), now);
        }
    }

    /// Searches for the devices of a group, for a queue pair that sends to it.
    fn look_for(
        &mut self,
        shared: &Shared,
        discovery: &mut Discovery,
        links: &Links,
        (qp, group): (QpId, Group),
        now: Instant,
    ) {
        let blocks = names::members(shared.scope, group).unwrap_or_default();
        self.silent.keep_members(group, &blocks);
        for &block in &blocks {
            if !shared.qp_numbers.owns(block) && self.silent.is_due(block, now) {
                let peer = u32::from(block) << 8;
                let since = now;
                discovery.want(shared, links, WaitingQp { qp, peer, since });
            }
        }
        self.searches.push(Search {
            group,
            blocks,
            until: now + PERSISTENCE,
            end: now + PERSISTENCE_BUSY,
        });
    }

    /// Ends the searches that have found all devices, or have taken too long. Returns whether one ended.
    pub(crate) fn end(
        &mut self,
        shared: &Shared,
        discovery: &Discovery,
        links: &Links,
        now: Instant,
    ) -> bool {
        let Self { searches, silent } = self;
        let before = searches.len();
        searches.retain_mut(|search| {
            let (found, missing) = search.connected_and_missing(shared, discovery, links);
            for block in &found.blocks {
                silent.remove(*block);
            }
            let hopeful = |&block: &u16| !silent.has(block) && discovery.looks_for(block);
            if now < search.until && missing.iter().any(hopeful) {
                return true;
            }
            let could_not_answer = |block: &u16| {
                hopeful(block)
                    && discovery
                        .dialled_process(*block)
                        .is_some_and(waits_for_a_processor)
            };
            if now < search.end && missing.iter().any(could_not_answer) {
                search.until = (now + PERSISTENCE).min(search.end);
                return true;
            }
            for block in missing {
                silent.add(block, search.group, now);
            }
            shared
                .driver
                .command(|engine| engine.connect_group(search.group, found.links));
            false
        });
        searches.len() < before
    }

    /// The earliest time at which [`GroupSearch::end`] may give up on a search.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.searches.iter().map(|search| search.until).min()
    }
}

/// The devices that a search has found.
#[derive(Default)]
struct Found {
    blocks: Vec<u16>,
    /// The links to them, each once: a device can have several blocks.
    links: Vec<LinkId>,
}

impl Search {
    /// The devices that are connected, and the blocks of those that are not.
    fn connected_and_missing(
        &self,
        shared: &Shared,
        discovery: &Discovery,
        links: &Links,
    ) -> (Found, Vec<u16>) {
        let (mut found, mut missing) = (Found::default(), Vec::new());
        for &block in &self.blocks {
            let link = if shared.qp_numbers.owns(block) {
                Some(shared.driver.use_loopback())
            } else {
                discovery.link_of(links, block)
            };
            match link {
                Some(link) => {
                    found.blocks.push(block);
                    if !found.links.contains(&link) {
                        found.links.push(link);
                    }
                }
                None => missing.push(block),
            }
        }
        (found, missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_devices_are_retried_less_and_less_often() {
        let (group, start) = (Group::Gid([1; 16]), Instant::now());
        let mut silent = Silent::default();
        assert!(silent.is_due(7, start) && !silent.has(7));
        silent.add(7, group, start);
        let mut last = start;
        let mut gaps = Vec::new();
        for tenths in 0..5000u32 {
            let now = start + tenths * Duration::from_millis(100);
            // Another search that misses the device changes nothing.
            silent.add(7, group, now);
            if silent.is_due(7, now) {
                gaps.push((now - last).as_secs());
                last = now;
            }
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60]);
    }

    #[test]
    fn devices_that_left_the_group_are_forgotten() {
        let (group, other) = (Group::Gid([1; 16]), Group::RawFrames);
        let mut silent = Silent::default();
        for (block, of) in [(7, group), (8, group), (9, other)] {
            silent.add(block, of, Instant::now());
        }
        silent.keep_members(group, &[8, 10]);
        assert_eq!(
            [7, 8, 9, 10].map(|b| silent.has(b)),
            [false, true, true, false]
        );
        silent.remove(8);
        assert!(!silent.has(8));
    }
}

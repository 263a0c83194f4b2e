//! Finding the devices that have members of a multicast group.
//!
//! Whoever sends to the group reads the names that its members' devices have bound ([`names::group_name`]),
//! connects to those devices as to the owner of any queue pair, and sends each of them one copy.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rkey_engine::{Group, LinkId, QpId};

use super::discovery::{Discovery, WaitingQp};
use super::link_manager::LinkManager;
use super::names;
use super::unresponsive::waits_for_a_processor;
use crate::shared::Shared;

/// How long the devices of a group may take to be reached; those that are not by then miss what is sent meanwhile,
/// and nobody waits for them again.
const PERSISTENCE: Duration = Duration::from_millis(200);
/// The same for a device whose process waits for a processor: it could not answer.
const PERSISTENCE_BUSY: Duration = Duration::from_secs(5);
/// Pauses between two attempts to reach a device that did not answer: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The search for the devices of a group.
pub(crate) struct Search {
    group: Group,
    blocks: Vec<u16>,
    until: Instant,
    /// When busy devices are not waited for any more either.
    end: Instant,
}

/// Devices that were waited for and did not answer, by their block: they may be stopped, or somebody has bound
/// names that mean nothing. They are tried again now and then, but no datagram waits for them.
#[derive(Debug, Default)]
pub(crate) struct Silent(HashMap<u16, Silence>);

#[derive(Debug)]
struct Silence {
    /// Where it was said to have members.
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

    /// A group has members in these blocks now: others that were said to have some are forgotten, so that whoever
    /// gets their numbers is waited for.
    fn keep(&mut self, group: Group, blocks: &[u16]) {
        self.0
            .retain(|block, silence| silence.group != group || blocks.contains(block));
    }

    /// Whether a device is to be tried now: it is not silent, or its pause is over.
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

impl Discovery {
    /// Starts to look for the devices of a group, for a queue pair that sends to it.
    pub(crate) fn look_for_group(
        &mut self,
        shared: &Shared,
        link_manager: &LinkManager,
        qp: QpId,
        group: Group,
        now: Instant,
    ) {
        let blocks = names::members(shared.scope, group).unwrap_or_default();
        self.silent.keep(group, &blocks);
        for &block in blocks
            .iter()
            .filter(|&&block| !shared.qp_numbers.owns(block))
        {
            if !self.silent.is_due(block, now) {
                continue;
            }
            let peer = u32::from(block) << 8;
            let waiting = WaitingQp {
                qp,
                peer,
                since: now,
            };
            self.want(shared, link_manager, waiting);
        }
        self.searches.push(Search {
            group,
            blocks,
            until: now + PERSISTENCE,
            end: now + PERSISTENCE_BUSY,
        });
    }

    /// Ends the searches that have found everything, or have taken too long. Says whether there were some.
    pub(crate) fn end_searches(
        &mut self,
        shared: &Shared,
        link_manager: &LinkManager,
        now: Instant,
    ) -> bool {
        let mut searches = std::mem::take(&mut self.searches);
        let before = searches.len();
        searches.retain_mut(|search| {
            let mut links: Vec<LinkId> = Vec::new();
            let mut missing = Vec::new();
            for &block in &search.blocks {
                let link = if shared.qp_numbers.owns(block) {
                    Some(shared.driver.use_loopback())
                } else {
                    self.link_of(link_manager, block)
                };
                match link {
                    Some(link) => {
                        self.silent.remove(block);
                        if !links.contains(&link) {
                            links.push(link);
                        }
                    }
                    None => missing.push(block),
                }
            }
            let hopeful = |&block: &u16| !self.silent.has(block) && self.looks_for(block);
            if now < search.until && missing.iter().any(hopeful) {
                return true;
            }
            let could_not_answer = |block: &u16| {
                hopeful(block) && self.asked(*block).is_some_and(waits_for_a_processor)
            };
            if now < search.end && missing.iter().any(could_not_answer) {
                search.until = (now + PERSISTENCE).min(search.end);
                return true;
            }
            for block in missing {
                self.silent.add(block, search.group, now);
            }
            shared
                .driver
                .command(|engine| engine.connect_group(search.group, links));
            false
        });
        let ended = searches.len() < before;
        self.searches = searches;
        ended
    }

    /// When [`Discovery::end_searches`] gives up waiting.
    pub(crate) fn search_deadline(&self) -> Option<Instant> {
        self.searches.iter().map(|search| search.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_devices_are_tried_less_and_less_often() {
        let (group, start) = (Group::Gid([1; 16]), Instant::now());
        let mut silent = Silent::default();
        assert!(silent.is_due(7, start) && !silent.has(7));
        silent.add(7, group, start);
        let mut last = start;
        let mut gaps = Vec::new();
        for tenths in 0..5000u32 {
            let now = start + tenths * Duration::from_millis(100);
            // Searches that find it missing again change nothing.
            silent.add(7, group, now);
            if silent.is_due(7, now) {
                gaps.push((now - last).as_secs());
                last = now;
            }
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60]);
    }

    #[test]
    fn who_is_gone_is_not_remembered() {
        let (group, other) = (Group::Gid([1; 16]), Group::Wire);
        let mut silent = Silent::default();
        for (block, of) in [(7, group), (8, group), (9, other)] {
            silent.add(block, of, Instant::now());
        }
        silent.keep(group, &[8, 10]);
        assert_eq!(
            [7, 8, 9, 10].map(|b| silent.has(b)),
            [false, true, true, false]
        );
        silent.remove(8);
        assert!(!silent.has(8));
    }
}

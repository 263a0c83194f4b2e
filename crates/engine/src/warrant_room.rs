//! The limits for warrants, and which warrant makes room for a new one.
//!
//! Each warrant holds a descriptor, so their number is limited: for a queue pair, a link and the device. At the limit, a new one
//! replaces the one that has not been used for the longest time. For a link and the device, that must be [`UNUSED`]: if all are in
//! use, the peer that asks goes on to send its writes, which is better for both than warrants that are always about to be replaced.
//!
//! Peers say themselves when they have used a warrant. So a process that claims to use many must not keep others from getting any: at
//! the device's limit, a process with at least two more than the one that asks gives one up in any case.

use crate::{LinkId, Process, QpId};
use std::time::Duration;

/// The maximum number of warrants of one queue pair.
pub(crate) const WARRANTS_PER_QP: usize = 4;
/// The maximum number of warrants of one link, with those that were revoked while the peer was copying.
const PER_LINK: usize = 16;
/// The maximum number of warrants of a device.
const PER_DEVICE: usize = 64;
/// How many more there may be for a moment, because peers are still copying with those that were replaced.
const COPYING: usize = 16;
/// A warrant that was not used for this long may be replaced by one for another queue pair.
const UNUSED: Duration = Duration::from_millis(100);

/// Who has a warrant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) link: LinkId,
    pub(crate) qp: QpId,
    /// The process at the other end of the link.
    pub(crate) process: Process,
    /// Whether it has been revoked. The peer may still be copying.
    pub(crate) revoked: bool,
}

/// How to make room for a new warrant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The limits allow one more.
    Free,
    /// This one must be revoked.
    Replaces(usize),
    /// No warrant can be issued now.
    None,
}

/// How to make room for the warrant `new`. `same` is the index of one of its queue pair for the same region. `unused_for` says for how
/// long the warrant with an index has not been used.
pub(crate) fn room(
    all: &[Holder],
    new: &Holder,
    same: Option<usize>,
    unused_for: impl Fn(usize) -> Duration,
) -> Room {
    let valid = || all.iter().enumerate().filter(|it| !it.1.revoked);
    let oldest = |which: &dyn Fn(&Holder) -> bool, least: Duration| {
        let found = valid().filter(|it| which(it.1));
        let unused = found.map(|(index, _)| (unused_for(index), index));
        // The first one if several are equal.
        let oldest = unused.min_by_key(|(unused, index)| (std::cmp::Reverse(*unused), *index));
        oldest.filter(|it| it.0 >= least).map(|it| it.1)
    };
    let count = |which: &dyn Fn(&Holder) -> bool| all.iter().filter(|it| which(it)).count();
    let of_qp = |it: &Holder| it.qp == new.qp;
    let of_link = |it: &Holder| it.link == new.link;
    let in_qp = valid().filter(|it| of_qp(it.1)).count();
    let replaced = if same.is_some() {
        same
    } else if in_qp >= WARRANTS_PER_QP {
        oldest(&of_qp, Duration::ZERO)
    } else if count(&of_link) >= PER_LINK {
        oldest(&of_link, UNUSED)
    } else if valid().count() >= PER_DEVICE {
        let of_process = |process| count(&|it: &Holder| !it.revoked && it.process == process);
        let richest = valid()
            .map(|it| it.1.process)
            .max_by_key(|it| of_process(*it));
        let fair = |it: &Holder| {
            Some(it.process) == richest && of_process(it.process) >= of_process(new.process) + 2
        };
        oldest(&|_| true, UNUSED).or_else(|| oldest(&fair, Duration::ZERO))
    } else {
        return if_bounded(all, Room::Free);
    };
    replaced.map_or(Room::None, |index| if_bounded(all, Room::Replaces(index)))
}

/// The room, unless peers are still copying with too many revoked warrants.
fn if_bounded(all: &[Holder], room: Room) -> Room {
    if all.len() < PER_DEVICE + COPYING {
        room
    } else {
        Room::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: Duration = Duration::from_secs(60);

    fn process(pid: u32) -> Process {
        Process {
            pid,
            ..Process::default()
        }
    }

    fn holder(pid: u32, link: u32, qp: u32) -> Holder {
        Holder {
            link: LinkId::from((link, 1)),
            qp: QpId::from((qp, 1)),
            process: process(pid),
            revoked: false,
        }
    }

    /// `count` warrants of one process, 4 for each queue pair and 16 for each link. Links and queue pairs have numbers from `first`.
    fn many(pid: u32, first: u32, count: u32) -> Vec<Holder> {
        let one = |n| holder(pid, first + n / 16, first + n / 4);
        (0..count).map(one).collect()
    }

    #[test]
    fn there_is_room_below_the_limits() {
        let all = many(1, 0, 15);
        let new = holder(1, 0, 3);
        assert_eq!(room(&all, &new, None, |_| LONG_AGO), Room::Free);
    }

    #[test]
    fn a_warrant_for_the_same_region_is_replaced() {
        let all = many(1, 0, 16);
        let used = |_| Duration::ZERO;
        assert_eq!(room(&all, &all[6], Some(6), used), Room::Replaces(6));
    }

    #[test]
    fn a_queue_pair_loses_the_one_that_it_has_not_used_for_longest() {
        let all = many(1, 0, 16);
        let new = holder(1, 0, 1);
        let unused = |index| Duration::from_millis([50, 4, 3, 9, 2][index % 5]);
        // Those of the queue pair are 4 to 7.
        assert_eq!(room(&all, &new, None, unused), Room::Replaces(5));
        let used = |_| Duration::ZERO;
        assert_eq!(
            room(&all, &new, None, used),
            Room::Replaces(4),
            "the oldest"
        );
    }

    #[test]
    fn a_link_loses_one_that_is_unused() {
        let all = many(1, 0, 32);
        let new = holder(1, 1, 99);
        let used = |index| match index {
            // Of another link.
            3 => LONG_AGO,
            _ => UNUSED - Duration::from_millis(1),
        };
        assert_eq!(room(&all, &new, None, used), Room::None);
        let two_unused = |index| match index {
            20 => UNUSED,
            21 => UNUSED * 2,
            _ => used(index),
        };
        assert_eq!(room(&all, &new, None, two_unused), Room::Replaces(21));
    }

    #[test]
    fn a_revoked_warrant_counts_but_is_not_replaced() {
        let mut all = many(1, 0, 16);
        all[0].revoked = true;
        let new = holder(1, 0, 99);
        assert_eq!(room(&all, &new, None, |_| Duration::MAX), Room::Replaces(1));
        // Not in the count of its queue pair, which replaces one of its own.
        let new = holder(1, 0, 0);
        assert_eq!(room(&all[..4], &new, None, |_| Duration::ZERO), Room::Free);
        let stuck = many(1, 0, 64 + 16).into_iter().map(|it| Holder {
            revoked: true,
            ..it
        });
        let stuck: Vec<Holder> = stuck.collect();
        let new = holder(2, 90, 99);
        assert_eq!(room(&stuck, &new, None, |_| LONG_AGO), Room::None);
    }

    #[test]
    fn a_device_loses_one_that_is_unused() {
        let all = many(1, 0, 64);
        let new = holder(1, 90, 99);
        let unused = |index| if index == 40 { UNUSED } else { Duration::ZERO };
        assert_eq!(room(&all, &new, None, unused), Room::Replaces(40));
        assert_eq!(room(&all, &new, None, |_| Duration::ZERO), Room::None);
    }

    /// The attack: a process has all warrants of the device and claims to use them all the time.
    #[test]
    fn a_process_cannot_keep_all_warrants_from_others() {
        let claims = |_| Duration::ZERO;
        let mut all = many(666, 0, 64);
        for number in 0..40 {
            let new = holder(1, 50 + number / 16, 50 + number / 4);
            match room(&all, &new, None, claims) {
                Room::Replaces(index) => {
                    assert_eq!(all[index].process, process(666));
                    all.remove(index);
                    all.push(new);
                }
                other => {
                    assert_eq!((number, other), (32, Room::None), "half of them");
                    return;
                }
            }
        }
        panic!("the other process got more than half");
    }
}

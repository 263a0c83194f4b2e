//! The poll set: the links that pollers check without a lock.
//!
//! Pollers check the rings of all links millions of times a second; links change only a few times in the life of a program.
//! So a check costs two plain stores and a load, while a change of the list is expensive: it publishes a new list, issues a
//! barrier on all processors, and waits until every thread that was checking at that moment has finished. Only then does it
//! free the old list, and with it the memory of detached links.
//!
//! A thread announces a check in its own count, which is odd during the check. The order of a check is: announce (plain store),
//! compiler fence, load the list. The order of a change is: store the list, heavy barrier, read the counts. Either the
//! barrier comes after the announcement, and the change waits until the count changes, or the load comes after the barrier,
//! and finds the new list.
//!
//! With many links, a poll does not check all of them, so that its cost does not grow with their number: it checks those in which
//! something was found lately, and the next [`WINDOW`] of the others, in rotation.
// UNSAFETY: the list is read through a raw pointer; the argument above keeps it alive. Fork handlers unlock a mutex by force.
#![allow(unsafe_code)]

use crossbeam_utils::CachePadded;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use std::sync::{Arc, Once, Weak};

use parking_lot::Mutex;
use rkey_base::barrier;
use rkey_engine::LinkId;
use rkey_link::PollHandle;

use crate::cm::fork::make_new;

/// The counts of all threads of the process that have made a check.
static CHECK_COUNTS: Mutex<Vec<Weak<CheckCount>>> = Mutex::new(Vec::new());

/// A thread's count: odd while the thread checks the list of any device. Each count has its own cache line.
type CheckCount = CachePadded<AtomicU32>;

thread_local! {
    static CHECK_COUNT: Arc<CheckCount> = {
        watch_forks();
        let check_count = Arc::new(CheckCount::default());
        let mut counts = CHECK_COUNTS.lock();
        counts.retain(|check_count| check_count.strong_count() > 0);
        counts.push(Arc::downgrade(&check_count));
        check_count
    };
}

/// Makes forked children forget threads that were in a check in the parent. Those threads do not exist in the child, which may
/// open its own device and must not wait for them.
fn watch_forks() {
    static WATCHED: Once = Once::new();

    extern "C" fn before() {
        std::mem::forget(CHECK_COUNTS.lock());
    }
    extern "C" fn in_parent() {
        // SAFETY: this thread has locked it in `before`.
        unsafe { CHECK_COUNTS.force_unlock() };
    }
    extern "C" fn in_child() {
        // SAFETY: the child's only thread has locked it in `before`.
        let counts = unsafe { &*CHECK_COUNTS.data_ptr() };
        for check_count in counts.iter().filter_map(Weak::upgrade) {
            check_count.fetch_add(check_count.load(Ordering::Relaxed) % 2, Ordering::Release);
        }
        // SAFETY: as above. The parent's threads that waited for the lock do not exist here.
        unsafe { make_new(CHECK_COUNTS.raw()) };
    }

    WATCHED.call_once(|| {
        // SAFETY: functions without arguments in a library that is never unloaded. If there is no memory to register the
        // handlers, forked children work as before this call.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// How many links one poll checks in rotation. Polls of fewer links check all of them.
const WINDOW: usize = 64;
/// How many links that had something lately are checked by each poll.
const RECENT: usize = 8;

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollResult {
    /// Nothing.
    Nothing,
    /// Only our delayed acknowledgements, which wait to be published together with others.
    Owed,
    /// Work from a peer. Names the link if no other link that was checked has anything.
    Arrived(Option<LinkId>),
}

impl PollResult {
    /// Checks another link, which may be one that was checked before. A second link with something ends the search.
    fn look(&mut self, (id, link): &Polled) -> ControlFlow<(), bool> {
        let arrived = link.has_arrived();
        if !arrived && !link.owes() {
            return ControlFlow::Continue(false);
        }
        *self = match (*self, arrived) {
            (Self::Arrived(Some(found)), _) if found == *id => Self::Arrived(Some(found)),
            (Self::Nothing, true) => Self::Arrived(Some(*id)),
            (Self::Nothing | Self::Owed, false) => Self::Owed,
            _ => {
                *self = Self::Arrived(None);
                return ControlFlow::Break(());
            }
        };
        ControlFlow::Continue(true)
    }
}

/// A link to check.
pub(crate) type Polled = (LinkId, PollHandle);

/// A list of links, and where polls look first. Several threads may poll: a lost update of these numbers costs a few polls.
#[derive(Debug, Default)]
struct List {
    links: Box<[Polled]>,
    /// Where the next poll begins to check in rotation.
    next: AtomicU32,
    /// The places of links in which something was found lately.
    recent: [AtomicU32; RECENT],
    /// How many times something was found in other links than those.
    found: AtomicU32,
}

impl List {
    /// Checks all links. The loop is written out because a poll with [`PollResult::look`] takes 25 instructions more.
    #[inline(always)]
    fn check(&self) -> PollResult {
        let mut result = PollResult::Nothing;
        for (id, link) in &self.links {
            let arrived = link.has_arrived();
            if !arrived && !link.owes() {
                continue;
            }
            result = match (result, arrived) {
                (PollResult::Nothing, true) => PollResult::Arrived(Some(*id)),
                (PollResult::Nothing | PollResult::Owed, false) => PollResult::Owed,
                _ => {
                    result = PollResult::Arrived(None);
                    break;
                }
            };
        }
        result
    }

    /// Checks the links in which something was found lately, and some of the others.
    #[cold]
    #[inline(never)]
    fn check_some(&self) -> PollResult {
        let mut result = PollResult::Nothing;
        let recent = self.recent.each_ref().map(|it| it.load(Ordering::Relaxed));
        for (index, place) in recent.iter().enumerate() {
            // At first, all are the same link.
            let is_repeated = recent[..index].contains(place);
            let polled = self.links.get(*place as usize).filter(|_| !is_repeated);
            if polled.is_some_and(|polled| result.look(polled).is_break()) {
                return result;
            }
        }
        let first = self.next.load(Ordering::Relaxed) as usize % self.links.len().max(1);
        self.next.store((first + WINDOW) as u32, Ordering::Relaxed);
        let (before, from) = self.links.split_at(first);
        let window = (first..).zip(from).chain((0..).zip(before));
        for (place, polled) in window.take(WINDOW) {
            let looked = result.look(polled);
            if looked != ControlFlow::Continue(false) && !recent.contains(&(place as u32)) {
                let found = self.found.load(Ordering::Relaxed);
                self.recent[found as usize % RECENT].store(place as u32, Ordering::Relaxed);
                self.found.store(found.wrapping_add(1), Ordering::Relaxed);
            }
            if looked.is_break() {
                break;
            }
        }
        result
    }
}

/// The links to check.
#[derive(Debug)]
pub(crate) struct PollSet {
    /// From `Box::into_raw`; never null.
    current: AtomicPtr<List>,
    /// Locked while the list is changed, or read without announcing.
    changing: Mutex<()>,
}

impl Default for PollSet {
    fn default() -> Self {
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::default())),
            changing: Mutex::new(()),
        }
    }
}

impl PollSet {
    /// Checks all links.
    #[inline]
    pub(crate) fn check(&self) -> PollResult {
        self.check_with(List::check)
    }

    /// Checks links for a poll: all of them unless there are many. Repeated calls check each link again and again.
    #[inline]
    pub(crate) fn check_for_poll(&self) -> PollResult {
        self.check_with(|list| match list.links.len() {
            0..=WINDOW => list.check(),
            _ => list.check_some(),
        })
    }

    #[inline(always)]
    fn check_with(&self, check: impl Fn(&List) -> PollResult) -> PollResult {
        // An exiting thread no longer has a count. This makes it drive under the lock instead.
        CHECK_COUNT
            .try_with(|check_count| self.check_as(check_count, check))
            .unwrap_or(PollResult::Arrived(None))
    }

    #[inline(always)]
    fn check_as(
        &self,
        check_count: &CheckCount,
        check: impl Fn(&List) -> PollResult,
    ) -> PollResult {
        // Only this thread writes its count.
        let count = check_count.load(Ordering::Relaxed);
        check_count.store(count.wrapping_add(1), Ordering::Relaxed);
        if barrier::available() {
            barrier::light();
        } else {
            fence(Ordering::SeqCst);
        }
        let list = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer came from `Box::into_raw`, and `replace` frees it only after it has seen our count change after it
        // removed the pointer (see the start of this file).
        let result = check(unsafe { &*list });
        check_count.store(count.wrapping_add(2), Ordering::Release);
        result
    }

    /// Calls `act` for each link, while the list cannot change.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&PollHandle)) {
        let _changing = self.changing.lock();
        // SAFETY: only `replace` frees the list, and it needs the lock that we hold.
        let list = unsafe { &*self.current.load(Ordering::Acquire) };
        list.links.iter().for_each(|(_, link)| act(link));
    }

    /// Replaces the list, and frees the old one once no thread is checking it.
    pub(crate) fn replace(&self, links: Box<[Polled]>) {
        let changing = self.changing.lock();
        let new = Box::into_raw(Box::new(List {
            links,
            ..List::default()
        }));
        let old = self.current.swap(new, Ordering::AcqRel);
        drop(changing);
        barrier::heavy();
        let counts: Vec<Arc<CheckCount>> = CHECK_COUNTS
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for check_count in counts {
            let seen = check_count.load(Ordering::Acquire);
            // A check takes nanoseconds, but its thread may not be running.
            let backoff = crossbeam_utils::Backoff::new();
            while seen % 2 == 1 && check_count.load(Ordering::Acquire) == seen {
                backoff.snooze();
            }
        }
        // SAFETY: `old` came from `Box::into_raw`, only this call took it out of `current`, and no thread is checking it:
        // threads that were checking at that moment have finished, and all others find the new list.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl Drop for PollSet {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`, and `&mut self` is the only reference.
        drop(unsafe { Box::from_raw(*self.current.get_mut()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::fork::tests::succeeds_in_child;
    use std::sync::atomic::AtomicBool;

    use rkey_link::loopback::Loopback;
    use rkey_link::{Header, Link, NodeId, Op};

    /// A thread that was in a check when its process forked does not exist in the child, where its count stays odd.
    #[test]
    fn a_forked_child_does_not_wait_for_checks_of_its_parents_threads() {
        assert_eq!(PollSet::default().check(), PollResult::Nothing);
        let check_count = Arc::new(CheckCount::new(AtomicU32::new(1)));
        CHECK_COUNTS.lock().push(Arc::downgrade(&check_count));
        // SAFETY: the child uses no state of other threads, and ends without running the parent's destructors.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above; the alarm ends a child that waits.
            unsafe {
                libc::alarm(20);
                PollSet::default().replace(Box::new([]));
                libc::_exit(7);
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child; `status` is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(
            check_count.swap(2, Ordering::Release),
            1,
            "still checking here"
        );
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
    }

    #[test]
    fn the_list_of_check_counts_is_unlocked_in_a_forked_child() {
        assert_eq!(PollSet::default().check(), PollResult::Nothing);
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stops.load(Ordering::Relaxed) {
                        let held = CHECK_COUNTS.lock();
                        // Long enough that the others wait.
                        crate::time::sleep(std::time::Duration::from_micros(500));
                        drop(held);
                    }
                });
            }
            let free = (0..20).all(|_| succeeds_in_child(|| CHECK_COUNTS.try_lock().is_some()));
            stops.store(true, Ordering::Relaxed);
            assert!(free);
        });
    }

    #[test]
    fn a_check_names_a_link_only_if_no_other_has_anything() {
        let mut links = [
            Loopback::new(NodeId::default()),
            Loopback::new(NodeId::default()),
        ];
        let mut list = Vec::new();
        for (at, link) in (0..).zip(&links) {
            let views = link.poll_views().into_iter();
            list.extend(views.map(|view| (LinkId::from((at, 0)), PollHandle::from(view))));
        }
        let poll_set = PollSet::default();
        poll_set.replace(list.into());
        assert_eq!(poll_set.check(), PollResult::Nothing);
        let probe = Header {
            len: 0,
            ..Header::new(Op::Probe)
        };
        let second = Some(LinkId::from((1, 0)));
        links[1].send_request(&probe, |_| Ok(())).unwrap();
        assert_eq!(poll_set.check(), PollResult::Arrived(second));
        links[0].send_request(&probe, |_| Ok(())).unwrap();
        assert_eq!(poll_set.check(), PollResult::Arrived(None));
        for link in &mut links {
            assert!(matches!(link.next_request(), Ok(Some(_))));
            link.request_done();
        }
        assert_eq!(poll_set.check(), PollResult::Owed, "acknowledgements");
        links[1].send_request(&probe, |_| Ok(())).unwrap();
        assert_eq!(
            poll_set.check(),
            PollResult::Arrived(None),
            "another link has to acknowledge"
        );
    }

    /// Many links, and the place of each.
    fn many() -> (Vec<Loopback>, PollSet) {
        let links: Vec<Loopback> = (0..3 * WINDOW as u64 + 5)
            .map(|_| Loopback::new(NodeId::default()))
            .collect();
        let mut list = Vec::new();
        for (at, link) in (0..).zip(&links) {
            let view = link.poll_views().into_iter().last().unwrap();
            list.push((LinkId::from((at, 0)), PollHandle::from(view)));
        }
        let poll_set = PollSet::default();
        poll_set.replace(list.into());
        (links, poll_set)
    }

    fn probe(link: &mut Loopback) {
        let header = Header {
            len: 0,
            ..Header::new(Op::Probe)
        };
        link.send_request(&header, |_| Ok(())).unwrap();
    }

    #[test]
    fn polls_find_what_arrives_at_any_of_many_links_and_then_look_there_first() {
        for at in (0..3 * WINDOW + 5).step_by(17) {
            let (mut links, poll_set) = many();
            let polls_to_all = links.len().div_ceil(WINDOW);
            for _ in 0..polls_to_all {
                assert_eq!(poll_set.check_for_poll(), PollResult::Nothing);
            }
            probe(&mut links[at]);
            let here = PollResult::Arrived(Some(LinkId::from((at as u32, 0))));
            assert_eq!(poll_set.check(), here);
            let found = (0..polls_to_all).find(|_| poll_set.check_for_poll() == here);
            assert!(found.is_some(), "link {at}");
            for _ in 0..polls_to_all {
                assert_eq!(poll_set.check_for_poll(), here, "later polls");
            }
        }
    }

    /// An acknowledgement that is due is found by each poll, so that the one that may publish it finds it.
    #[test]
    fn polls_look_first_at_links_that_owe_an_acknowledgement() {
        let (mut links, poll_set) = many();
        let at = 2 * WINDOW + 1;
        probe(&mut links[at]);
        assert!(matches!(links[at].next_request(), Ok(Some(_))));
        links[at].request_done();
        let mut polls = 0..links.len().div_ceil(WINDOW);
        assert!(polls.any(|_| poll_set.check_for_poll() == PollResult::Owed));
        for _ in 0..100 {
            assert_eq!(poll_set.check_for_poll(), PollResult::Owed);
        }
    }

    /// A busy link does not keep polls from finding others.
    #[test]
    fn polls_find_a_second_link_beside_a_busy_one() {
        let (mut links, poll_set) = many();
        let (busy, other) = (WINDOW + 1, 3 * WINDOW + 2);
        probe(&mut links[busy]);
        let mut polls = 0..links.len().div_ceil(WINDOW);
        assert!(polls.any(|_| poll_set.check_for_poll() != PollResult::Nothing));
        probe(&mut links[other]);
        let results: Vec<_> = (0..links.len().div_ceil(WINDOW) + 1)
            .map(|_| poll_set.check_for_poll())
            .collect();
        let named = PollResult::Arrived(Some(LinkId::from((busy as u32, 0))));
        assert!(
            results
                .iter()
                .all(|it| [named, PollResult::Arrived(None)].contains(it))
        );
        assert!(results.contains(&PollResult::Arrived(None)), "{results:?}");
    }

    /// Lists change while many threads check them; a sanitizer or Miri would detect a use after free.
    #[test]
    fn a_poll_set_can_be_replaced_while_threads_check_it() {
        barrier::register();
        let poll_set = PollSet::default();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(poll_set.check(), PollResult::Nothing);
                    }
                });
            }
            for n in 0..200 {
                let links: Vec<Loopback> = (0..n % 5)
                    .map(|_| Loopback::new(NodeId::default()))
                    .collect();
                poll_set.replace(
                    links
                        .iter()
                        .flat_map(Loopback::poll_views)
                        .map(|view| (LinkId::from((0, 0)), PollHandle::from(view)))
                        .collect(),
                );
                drop(links);
            }
            let mut left = 0;
            poll_set.for_each(|_| left += 1);
            assert_eq!(left, 8);
            stop.store(true, Ordering::Relaxed);
        });
    }
}

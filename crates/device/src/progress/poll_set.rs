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
// UNSAFETY: the list is read through a raw pointer; the argument above keeps it alive. Fork handlers unlock a mutex by force.
#![allow(unsafe_code)]

use crossbeam_utils::CachePadded;
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

/// What a check of all links found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollResult {
    /// Nothing.
    Nothing,
    /// Only our delayed acknowledgements, which wait to be published together with others.
    Owed,
    /// Work from a peer. Names the link if no other link has anything.
    Arrived(Option<LinkId>),
}

/// A link to check.
pub(crate) type Polled = (LinkId, PollHandle);

/// The links to check.
#[derive(Debug)]
pub(crate) struct PollSet {
    /// From `Box::into_raw`; never null.
    current: AtomicPtr<Box<[Polled]>>,
    /// Locked while the list is changed, or read without announcing.
    changing: Mutex<()>,
}

impl Default for PollSet {
    fn default() -> Self {
        let empty: Box<[Polled]> = Box::new([]);
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::new(empty))),
            changing: Mutex::new(()),
        }
    }
}

impl PollSet {
    /// Checks all links, for pollers.
    #[inline]
    pub(crate) fn check(&self) -> PollResult {
        // An exiting thread no longer has a count. This makes it drive under the lock instead.
        CHECK_COUNT
            .try_with(|check_count| self.check_as(check_count))
            .unwrap_or(PollResult::Arrived(None))
    }

    #[inline]
    fn check_as(&self, check_count: &CheckCount) -> PollResult {
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
        let list = unsafe { &*list };
        let mut result = PollResult::Nothing;
        for (id, link) in list {
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
        check_count.store(count.wrapping_add(2), Ordering::Release);
        result
    }

    /// Calls `act` for each link, while the list cannot change.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&PollHandle)) {
        let _changing = self.changing.lock();
        // SAFETY: only `replace` frees the list, and it needs the lock that we hold.
        let list = unsafe { &*self.current.load(Ordering::Acquire) };
        list.iter().for_each(|(_, link)| act(link));
    }

    /// Replaces the list, and frees the old one once no thread is checking it.
    pub(crate) fn replace(&self, list: Box<[Polled]>) {
        let changing = self.changing.lock();
        let new = Box::into_raw(Box::new(list));
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

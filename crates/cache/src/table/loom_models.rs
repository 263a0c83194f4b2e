//! Entries under loom, which tries every interleaving and every reordering that the memory model allows.

use super::entries::Entries;
use super::word::Freed;
use crate::request::{Class, Kind, Rights};
use crate::why::Cause;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use rkey_base::range::VaRange;

const CLASS: Class = Class::new(Rights(1), Kind::HOST);

fn page(number: u64) -> VaRange {
    VaRange::new(number * 0x1000, 0x1000).unwrap()
}

fn pin(entries: &Entries, range: &VaRange) -> bool {
    entries.pin(0, range, CLASS, true).is_some()
}

/// A table with a valid, unused entry of page 1 in slot 0.
fn with_entry() -> Arc<Entries> {
    let entries = Arc::new(Entries::new(2));
    entries.claim(0, page(1), CLASS);
    entries.arm(0);
    assert!(entries.slot(0).word.publish());
    assert!(!entries.unpin(0));
    entries
}

/// Frees dead entries. Returns how many slots that freed.
fn reap(entries: &Entries, freed: &AtomicU64) -> u64 {
    let mut count = 0;
    entries.take_dead(|slot| {
        if let Freed::Yes(_) = entries.slot(slot).word.free() {
            freed.store(1, Ordering::Relaxed);
            count += 1;
        }
    });
    count
}

/// An entry that a change has ended while it was being registered never becomes valid.
#[test]
fn an_entry_that_ends_while_it_is_registered_never_becomes_valid() {
    loom::model(|| {
        let entries = Arc::new(Entries::new(2));
        entries.claim(0, page(1), CLASS);
        let monitor = {
            let entries = Arc::clone(&entries);
            thread::spawn(move || entries.invalidate(page(1), Cause::Unmapped))
        };
        entries.arm(0);
        let published = entries.slot(0).word.publish();
        let orphaned = entries.unpin(0);
        let ended = monitor.join().unwrap();
        assert_eq!(pin(&entries, &page(1)), ended == 0);
        assert!(published || ended == 1 && orphaned);
        if ended == 1 {
            assert_eq!(reap(&entries, &AtomicU64::new(0)), 1);
        }
    });
}

/// A pinned entry is not freed, and a dead one is freed exactly once, whichever thread unpins it last.
#[test]
fn a_pinned_entry_is_not_freed_and_a_dead_one_is_freed_once() {
    loom::model(|| {
        let entries = with_entry();
        let freed = Arc::new(AtomicU64::new(0));
        let looker = {
            let (entries, freed) = (Arc::clone(&entries), Arc::clone(&freed));
            thread::spawn(move || {
                if pin(&entries, &page(1)) {
                    assert_eq!(freed.load(Ordering::Relaxed), 0);
                    entries.unpin(0);
                }
            })
        };
        let monitor = {
            let entries = Arc::clone(&entries);
            thread::spawn(move || entries.invalidate(page(1), Cause::Unmapped))
        };
        let early = reap(&entries, &freed);
        looker.join().unwrap();
        assert_eq!(monitor.join().unwrap(), 1);
        assert_eq!(early + reap(&entries, &freed), 1);
        assert!(!pin(&entries, &page(1)));
    });
}

/// A slot that gets another entry does not serve a lookup for the old one.
#[test]
fn a_reused_slot_does_not_serve_a_lookup_for_the_old_entry() {
    loom::model(|| {
        let entries = with_entry();
        let looker = {
            let entries = Arc::clone(&entries);
            thread::spawn(move || {
                if pin(&entries, &page(1)) {
                    assert_eq!(entries.slot(0).range(), page(1));
                    entries.unpin(0);
                }
            })
        };
        if let Freed::Yes(_) = entries.slot(0).word.evict() {
            entries.remove(0);
            entries.claim(0, page(2), CLASS);
            entries.arm(0);
            assert!(entries.slot(0).word.publish());
            assert!(pin(&entries, &page(2)));
        }
        looker.join().unwrap();
    });
}

/// The kernel's part of userfaultfd. Its lock models the kernel's locks, which both sides take.
#[derive(Default)]
struct Kernel {
    /// How many changes are in progress.
    changing: u64,
    /// Whether the page was unmapped, so that its address may be reused.
    unmapped: bool,
    queued: bool,
    read: bool,
}

/// The kernel, and the condition that wakes the threads that wait for it.
type Shared = Arc<(Mutex<Kernel>, Condvar)>;

fn wait_until(shared: &Shared, it: impl Fn(&Kernel) -> bool) {
    let mut kernel = shared.0.lock().unwrap();
    while !it(&kernel) {
        kernel = shared.1.wait(kernel).unwrap();
    }
}

fn change(shared: &Shared, it: impl Fn(&mut Kernel)) {
    it(&mut shared.0.lock().unwrap());
    shared.1.notify_all();
}

/// The monitor's thread: reads the only event, and applies it while the epoch is odd.
fn reader(
    entries: &Arc<Entries>,
    kernel: &Shared,
    epoch: &Arc<AtomicU64>,
) -> thread::JoinHandle<()> {
    let (entries, kernel, epoch) = (Arc::clone(entries), Arc::clone(kernel), Arc::clone(epoch));
    thread::spawn(move || {
        wait_until(&kernel, |it| it.queued);
        epoch.fetch_add(1, Ordering::SeqCst);
        change(&kernel, |it| it.read = true);
        entries.invalidate(page(1), Cause::Unmapped);
        epoch.fetch_add(1, Ordering::SeqCst);
    })
}

/// A hit asks the kernel, then waits until the reader is between two reads, then checks the entry. Without
/// `question_first`, it does the first two in the wrong order.
fn hit_against_munmap(question_first: bool) {
    loom::model(move || {
        let entries = with_entry();
        let kernel: Shared = Arc::new((Mutex::new(Kernel::default()), Condvar::new()));
        let epoch = Arc::new(AtomicU64::new(0));
        let unmapper = {
            let kernel = Arc::clone(&kernel);
            thread::spawn(move || {
                change(&kernel, |it| {
                    it.changing += 1;
                    it.unmapped = true;
                });
                change(&kernel, |it| it.queued = true);
                wait_until(&kernel, |it| it.read);
                change(&kernel, |it| it.changing -= 1);
            })
        };
        let reader = reader(&entries, &kernel, &epoch);
        let mut reader = Some(reader);
        // This thread gets the address that was unmapped, and looks it up.
        let unmapped = kernel.0.lock().unwrap().unmapped;
        if unmapped && pin(&entries, &page(1)) {
            let mut settle = || {
                if epoch.load(Ordering::SeqCst) % 2 == 1 {
                    // The epoch becomes even when the reader has applied the only event.
                    reader.take().unwrap().join().unwrap();
                }
            };
            let quiet = || kernel.0.lock().unwrap().changing == 0;
            let quiet = if question_first {
                let quiet = quiet();
                settle();
                quiet
            } else {
                settle();
                quiet()
            };
            let hit = quiet && entries.slot(0).word.is_valid();
            assert!(!hit, "stale");
            entries.unpin(0);
        }
        unmapper.join().unwrap();
        if let Some(reader) = reader {
            reader.join().unwrap();
        }
    });
}

/// A registration against a change that the kernel reports, and then a hit by a thread that knows of the change. With `arm_first`, the
/// entry is pending before the page is pinned, which is correct. The registration does not ask the kernel after it has pinned
/// the page.
fn registration_against_munmap(arm_first: bool) {
    loom::model(move || {
        let entries = Arc::new(Entries::new(2));
        entries.claim(0, page(1), CLASS);
        let kernel: Shared = Arc::new((Mutex::new(Kernel::default()), Condvar::new()));
        let epoch = Arc::new(AtomicU64::new(0));
        let unmapper = {
            let kernel = Arc::clone(&kernel);
            thread::spawn(move || {
                change(&kernel, |it| it.changing += 1);
                change(&kernel, |it| it.unmapped = true);
                change(&kernel, |it| it.queued = true);
                wait_until(&kernel, |it| it.read);
                change(&kernel, |it| it.changing -= 1);
            })
        };
        let reader = reader(&entries, &kernel, &epoch);
        // Other memory is mapped there as soon as the page is unmapped.
        let pin_page = || kernel.0.lock().unwrap().unmapped;
        let new = if arm_first {
            entries.arm(0);
            pin_page()
        } else {
            let new = pin_page();
            entries.arm(0);
            new
        };
        if !entries.slot(0).word.publish() {
            entries.clear(0);
        }
        entries.unpin(0);
        unmapper.join().unwrap();
        let mut reader = Some(reader);
        if pin(&entries, &page(1)) {
            if epoch.load(Ordering::SeqCst) % 2 == 1 {
                reader.take().unwrap().join().unwrap();
            }
            assert!(new || !entries.slot(0).word.is_valid(), "stale");
            entries.unpin(0);
        }
        if let Some(reader) = reader {
            reader.join().unwrap();
        }
    });
}

/// A registration against a change that a hook or the program announces: the changer increments the count, ends the
/// entries, makes the change, and decrements the count. With `confirmed`, the registration begins only if no change is in
/// progress, which is correct.
fn registration_against_change(confirmed: bool) {
    loom::model(move || {
        let entries = Arc::new(Entries::new(2));
        let changing = Arc::new(AtomicU64::new(0));
        // The page that is mapped.
        let mapped = Arc::new(AtomicU64::new(1));
        entries.claim(0, page(1), CLASS);
        let changer = {
            let (entries, changing, mapped) = (
                Arc::clone(&entries),
                Arc::clone(&changing),
                Arc::clone(&mapped),
            );
            thread::spawn(move || {
                changing.fetch_add(1, Ordering::SeqCst);
                entries.invalidate(page(1), Cause::Unmapped);
                mapped.store(2, Ordering::SeqCst);
                changing.fetch_sub(1, Ordering::SeqCst);
            })
        };
        // The monitors' loads are sequentially consistent, but loom's loads are not. Loom's read-modify-writes do see the newest value.
        let quiet = || changing.fetch_add(0, Ordering::SeqCst) == 0;
        entries.arm(0);
        let mut pinned = None;
        if !confirmed || quiet() {
            pinned = Some(mapped.load(Ordering::SeqCst));
            if !quiet() || !entries.slot(0).word.publish() {
                entries.clear(0);
            }
        } else {
            entries.clear(0);
        }
        entries.unpin(0);
        changer.join().unwrap();
        if pin(&entries, &page(1)) {
            assert_eq!(pinned, Some(2), "stale");
            entries.unpin(0);
        }
    });
}

#[test]
fn a_registration_during_a_change_does_not_become_an_entry() {
    registration_against_change(true);
}

/// The model finds the mistake.
#[test]
#[should_panic(expected = "stale")]
fn the_model_finds_a_registration_that_begins_during_a_change() {
    registration_against_change(false);
}

#[test]
fn a_registration_that_spans_an_unmapping_is_never_a_stale_entry() {
    registration_against_munmap(true);
}

/// The model finds the mistake.
#[test]
#[should_panic(expected = "stale")]
fn the_model_finds_a_page_that_is_pinned_before_its_entry_is_pending() {
    registration_against_munmap(false);
}

#[test]
fn a_hit_after_a_visible_unmapping_is_refused() {
    hit_against_munmap(true);
}

/// The model finds the mistake in the wrong order.
#[test]
#[should_panic(expected = "stale")]
fn the_model_finds_a_hit_with_exchanged_steps() {
    hit_against_munmap(false);
}

//! The magazines of a thread: one for each device with which it registers memory. The thread returns them when it ends.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use rkey_base::process::ForkMark;
use rkey_core::{Magazine, Protection};

thread_local! {
    /// The most recently used magazine is first.
    static MAGAZINES: RefCell<Vec<Rc<ThreadMagazine>>> = const { RefCell::new(Vec::new()) };
}

/// A magazine that is returned when it is dropped, unless this is a forked child, where another thread may have locked the
/// table at the fork.
pub(super) struct ThreadMagazine {
    magazine: ManuallyDrop<Magazine>,
    fork: ForkMark,
}

impl Deref for ThreadMagazine {
    type Target = Magazine;

    #[inline]
    fn deref(&self) -> &Magazine {
        &self.magazine
    }
}

impl Drop for ThreadMagazine {
    #[allow(unsafe_code)]
    // UNSAFETY: takes a value out of `ManuallyDrop`.
    fn drop(&mut self) {
        if !self.fork.is_child() {
            // SAFETY: once, and nothing uses the field afterwards.
            drop(unsafe { ManuallyDrop::take(&mut self.magazine) });
        }
    }
}

/// This thread's magazine for a table, which belongs to the process that `fork` marks. `None` if the thread is ending.
#[inline]
pub(super) fn magazine(table: &Arc<Protection>, fork: ForkMark) -> Option<Rc<ThreadMagazine>> {
    MAGAZINES
        .try_with(|all| {
            if let Some(first) = all.borrow().first()
                && first.is_of(table)
            {
                return Rc::clone(first);
            }
            put_first(&mut all.borrow_mut(), table, fork)
        })
        .ok()
}

/// Moves the magazine for a table to the front, and drops those whose tables no longer exist.
#[cold]
fn put_first(
    all: &mut Vec<Rc<ThreadMagazine>>,
    table: &Arc<Protection>,
    fork: ForkMark,
) -> Rc<ThreadMagazine> {
    all.retain(|kept| kept.has_table());
    let found = all.iter().position(|kept| kept.is_of(table));
    let kept = match found {
        Some(index) => all.remove(index),
        None => Rc::new(ThreadMagazine {
            magazine: ManuallyDrop::new(table.magazine()),
            fork,
        }),
    };
    all.insert(0, Rc::clone(&kept));
    kept
}

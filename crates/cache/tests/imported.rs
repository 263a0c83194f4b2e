//! The monitor whose changes the program announces.

use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Change, Follows, Imported, Kind, Options, Registrar, Request, Rights, Timing, Why,
};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Pins a page, and then completes the change that is in progress.
struct Slow {
    /// The page that is mapped.
    page: AtomicU64,
    change: Mutex<Option<Change<'static>>>,
}

impl Registrar for Slow {
    type Registration = u64;
    type Error = Infallible;

    fn follows(&self) -> Follows {
        Follows::Pages
    }
    fn register(&self, _: &Request) -> Result<u64, Infallible> {
        let pinned = self.page.load(Ordering::SeqCst);
        if let Some(change) = self.change.lock().unwrap().take() {
            self.page.store(2, Ordering::SeqCst);
            drop(change);
        }
        Ok(pinned)
    }
    fn deregister(&self, _: u64) {}
}

/// A change that is announced before the entry is pending, and takes effect after the page was pinned, does not find the
/// entry. So the registration must not become an entry.
#[test]
fn a_change_that_spans_the_registration_leaves_no_entry() {
    let range = VaRange::new(0x1000, 0x1000).unwrap();
    let monitor = Arc::new(Imported::new((), Timing::Around));
    let announcer: &'static Arc<Imported<()>> = Box::leak(Box::new(Arc::clone(&monitor)));
    let slow = Slow {
        page: AtomicU64::new(1),
        change: Mutex::new(Some(announcer.change(range))),
    };
    let cache = Cache::new(slow, monitor, Options::default()).unwrap();
    let get = || cache.get(range, Rights(1), Kind::HOST).unwrap();
    assert_eq!(get().why(), Why::Overtaken);
    let entry = get();
    assert_eq!((entry.why(), *entry), (Why::Absent, 2));
    let hit = get();
    assert_eq!((hit.why(), *hit), (Why::Hit, 2));
}

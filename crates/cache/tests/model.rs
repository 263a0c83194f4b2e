//! Compares the cache with a model that shares no code with it: a list of ranges that is searched from end to end.

mod common;

use common::{Fake, PAGE, World, range};
use proptest::prelude::*;
use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Follows, Guard, Imported, Kind, Options, Registrar, Rights, Rounding, Source, Timing,
    Why,
};
use std::sync::Arc;

const PAGES: u64 = 24;

#[derive(Clone, Debug)]
enum Op {
    /// Look up, and keep the guard or drop it.
    Get(VaRange, Rights, Kind, bool),
    /// Drop one of the guards.
    Drop(usize),
    /// Unmap, map over or move: afterwards other pages are at these addresses.
    Change(VaRange),
    /// Deregister the entries that have ended, or evict all entries.
    Reap(bool),
}

fn any_range() -> impl Strategy<Value = VaRange> {
    let space = PAGES * PAGE;
    (0..space, 1..4 * PAGE).prop_map(move |(start, len)| range(start, len.min(space - start)))
}

fn any_op() -> impl Strategy<Value = Op> {
    let rights = (0_u32..8).prop_map(Rights);
    let kind = prop_oneof![4 => Just(Kind::HOST), 1 => Just(common::GPU)];
    prop_oneof![
        12 => (any_range(), rights, kind, any::<bool>())
            .prop_map(|(range, rights, kind, keep)| Op::Get(range, rights, kind, keep)),
        4 => any::<usize>().prop_map(Op::Drop),
        4 => any_range().prop_map(Op::Change),
        1 => any::<bool>().prop_map(Op::Reap),
    ]
}

/// An entry of the model.
#[derive(Debug)]
struct Known {
    range: VaRange,
    rights: Rights,
    kind: Kind,
    valid: bool,
    users: usize,
}

struct Model {
    known: Vec<Known>,
    rounding: Rounding,
    exact: bool,
}

impl Model {
    fn round(&self, it: VaRange) -> VaRange {
        let size = match self.rounding {
            Rounding::Exact => 1,
            Rounding::Multiples(size) => size,
            _ => PAGE,
        };
        let (start, end) = (it.start() / size * size, it.end().div_ceil(size) * size);
        range(start, end - start)
    }

    /// The entries that may serve a lookup.
    fn serving(&self, it: VaRange, rights: Rights, kind: Kind) -> Vec<usize> {
        let serves = |known: &Known| {
            let enough = if self.exact {
                known.rights == rights
            } else {
                known.rights.0 & rights.0 == rights.0
            };
            known.valid && enough && known.kind == kind && known.range.contains(&it)
        };
        (0..self.known.len())
            .filter(|&at| serves(&self.known[at]))
            .collect()
    }

    /// A new entry replaces the entries of its rights and kind that it contains.
    fn insert(&mut self, it: VaRange, rights: Rights, kind: Kind) -> usize {
        let it = self.round(it);
        for known in &mut self.known {
            if known.rights == rights && known.kind == kind && it.contains(&known.range) {
                known.valid = false;
            }
        }
        self.known.push(Known {
            range: it,
            rights,
            kind,
            valid: true,
            users: 0,
        });
        self.known.len() - 1
    }

    fn change(&mut self, it: VaRange) {
        let (start, end) = (it.start() / PAGE * PAGE, it.end().div_ceil(PAGE) * PAGE);
        let pages = range(start, end - start);
        for known in &mut self.known {
            known.valid &= !known.range.overlaps(&pages);
        }
    }

    /// How many registrations there must be: valid entries, and those that ended in use.
    fn registrations(&self) -> usize {
        let exist = |known: &&Known| known.valid || known.users > 0;
        self.known.iter().filter(exist).count()
    }
}

/// No guard is stale, lacks a right, or is of another kind.
fn check_guard(guard: &Guard<'_, Fake>, world: &World, it: VaRange, rights: Rights, kind: Kind) {
    assert!(guard.range().contains(&it));
    assert_eq!(guard.request.range, guard.range());
    assert!(
        guard.request.rights.contains(rights),
        "{guard:?} widens rights"
    );
    assert_eq!(guard.request.kind, kind);
    assert_eq!(guard.pages(&it), world.pages(&it), "{guard:?} is stale");
}

type Held<'a> = (usize, Guard<'a, Fake>);

fn run(ops: Vec<Op>, options: Options) {
    let world = World::new(PAGES as usize + 32);
    let monitor = Arc::new(Imported::new((), Timing::Around));
    let fake = Fake::new(&world, Follows::Pages);
    let cache = Cache::new(fake, monitor.clone(), options).unwrap();
    let mut model = Model {
        known: Vec::new(),
        rounding: options.rounding,
        exact: options.exact_rights,
    };
    let mut held: Vec<Held<'_>> = Vec::new();
    for op in ops {
        match op {
            Op::Get(it, rights, kind, keep) => {
                let serving = model.serving(it, rights, kind);
                let guard = cache.get(it, rights, kind).unwrap();
                check_guard(&guard, &world, it, rights, kind);
                assert_eq!(guard.why().is_hit(), !serving.is_empty(), "{guard:?}");
                let entry = if guard.why().is_hit() {
                    let found = serving.into_iter().find(|&at| {
                        let known = &model.known[at];
                        (known.range, known.rights) == (guard.range(), guard.request.rights)
                    });
                    found.expect("the entry is one that the model knows")
                } else {
                    assert!(!matches!(guard.why(), Why::Raced | Why::Full | Why::Busy));
                    model.insert(it, rights, kind)
                };
                if keep {
                    model.known[entry].users += 1;
                    held.push((entry, guard));
                }
            }
            Op::Drop(index) if !held.is_empty() => {
                let (entry, guard) = held.swap_remove(index % held.len());
                drop(guard);
                model.known[entry].users -= 1;
            }
            Op::Drop(_) => {}
            Op::Change(it) => {
                // Whole pages change, even if the caller names less.
                let change = monitor.change(it);
                world.change(&it);
                drop(change);
                model.change(it);
            }
            Op::Reap(false) => {
                cache.reap();
                assert_eq!(cache.registrar().live(), model.registrations());
            }
            Op::Reap(true) => {
                cache.flush();
                for known in &mut model.known {
                    known.valid &= known.users > 0;
                }
                assert_eq!(cache.registrar().live(), model.registrations());
            }
        }
    }
    drop(held);
    cache.flush();
    assert_eq!(cache.registrar().live(), 0);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes), (0, 0));
    assert_eq!(cache.registrar().made(), stats.misses + stats.uncached);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Each lookup is a hit exactly if the model predicts it, and no guard is stale. Every registration is deregistered once.
    /// Proves partly: FI-231, FI-243 (the cache as a library)
    #[test]
    fn hits_match_the_model(
        ops in prop::collection::vec(any_op(), 1..200),
        rounding in prop_oneof![
            Just(Rounding::Exact),
            Just(Rounding::Multiples(0x100)),
            Just(Rounding::Pages),
        ],
        exact in any::<bool>(),
    ) {
        let mut options = Options::default();
        options.rounding = rounding;
        options.exact_rights = exact;
        run(ops, options);
    }
}

/// A source that records the calls to it.
#[derive(Default)]
struct Counting {
    watched: std::sync::Mutex<Vec<VaRange>>,
}

impl Source for Counting {
    fn subscribe(&self, range: VaRange) -> bool {
        self.watched.lock().unwrap().push(range);
        range.start() != 0
    }

    fn unsubscribe(&self, range: VaRange) {
        let mut watched = self.watched.lock().unwrap();
        let at = watched.iter().position(|it| *it == range).unwrap();
        watched.swap_remove(at);
    }
}

/// Proves partly: FI-248 (the cache as a library)
#[test]
fn an_imported_monitor_is_asked_to_watch_and_ends_entries() {
    let world = World::new(64);
    let monitor = Arc::new(Imported::new(Counting::default(), Timing::Loose));
    let mut options = Options::default();
    options.rounding = Rounding::Exact;
    let fake = Fake::new(&world, Follows::Addresses);
    let cache = Cache::new(fake, monitor.clone(), options).unwrap();
    let buffer = range(0x1400, 0x80);
    let get = || {
        let guard = cache.get(buffer, common::SEND, Kind::HOST).unwrap();
        guard.why()
    };
    assert_eq!(get(), Why::Absent);
    assert_eq!(*monitor.source().watched.lock().unwrap(), [buffer]);
    assert_eq!(get(), Why::Hit);
    assert_eq!(monitor.notify(range(0x1FFF, 1)), 1);
    assert_eq!(monitor.notify(range(0x2000, 0x1000)), 0);
    assert!(matches!(get(), Why::Ended(_)));
    // Memory that the source refuses to watch is not cached.
    let refused = cache.get(range(0, 16), common::SEND, Kind::HOST).unwrap();
    assert!(matches!(refused.why(), Why::Unwatched(_)));
    drop(refused);
    drop(cache);
    assert_eq!(*monitor.source().watched.lock().unwrap(), [range(0, 16)]);
}

/// A registrar whose every registration is overtaken by a change.
struct Overtaken {
    fake: Fake,
    monitor: Arc<Imported<()>>,
}

impl Registrar for Overtaken {
    type Registration = common::Pinned;
    type Error = common::Exhausted;

    fn follows(&self) -> Follows {
        Follows::Pages
    }

    fn register(&self, request: &rkey_cache::Request) -> Result<common::Pinned, Self::Error> {
        let pinned = self.fake.register(request);
        drop(self.monitor.change(request.range));
        pinned
    }

    fn deregister(&self, registration: common::Pinned) {
        self.fake.deregister(registration);
    }
}

#[test]
fn a_registration_that_a_change_overtakes_does_not_become_an_entry() {
    let world = World::new(64);
    let monitor = Arc::new(Imported::new((), Timing::Around));
    let fake = Fake::new(&world, Follows::Pages);
    let registrar = Overtaken {
        fake,
        monitor: monitor.clone(),
    };
    let cache = Cache::new(registrar, monitor, Options::default()).unwrap();
    let guard = cache
        .get(range(0x100, 8), common::SEND, Kind::HOST)
        .unwrap();
    assert_eq!(guard.why(), Why::Overtaken);
    drop(guard);
    cache.reap();
    assert_eq!(cache.registrar().fake.live(), 0);
    assert_eq!(cache.stats().entries, 0);
}

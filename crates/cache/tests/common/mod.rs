//! A registrar that pins the pages of a simulated address space, and checks how it is used.

#![allow(
    dead_code,
    reason = "each test program uses only a part of this shared module"
)]
// UNSAFETY: forks.
#![allow(unsafe_code)]

pub(crate) mod memory;
pub(crate) mod ring;

use rkey_base::range::VaRange;
use rkey_cache::{Cache, Follows, Kind, Registrar, Request, Rights, Userfaultfd, Why};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

/// The size of a simulated page.
pub(crate) const PAGE: u64 = 0x1000;

/// The simulated address space: a number for the page at each address, which every change replaces.
pub(crate) struct World {
    pages: Vec<AtomicU64>,
    changes: AtomicU64,
}

impl World {
    pub(crate) fn new(pages: usize) -> Arc<Self> {
        Arc::new(Self {
            pages: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            changes: AtomicU64::new(0),
        })
    }

    fn indices(range: &VaRange) -> std::ops::Range<usize> {
        (range.start() / PAGE) as usize..range.end().div_ceil(PAGE) as usize
    }

    /// Maps other pages.
    pub(crate) fn change(&self, range: &VaRange) {
        let change = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        for page in &self.pages[Self::indices(range)] {
            page.store(change, Ordering::SeqCst);
        }
    }

    /// The pages behind a range.
    pub(crate) fn pages(&self, range: &VaRange) -> Vec<u64> {
        let pages = self.pages[Self::indices(range)].iter();
        pages.map(|page| page.load(Ordering::SeqCst)).collect()
    }
}

/// A registration.
#[derive(Debug)]
pub(crate) struct Pinned {
    id: u64,
    pub(crate) request: Request,
    pages: Vec<u64>,
}

impl Pinned {
    /// The pages of a part of the registration, as they were when it was registered.
    pub(crate) fn pages(&self, part: &VaRange) -> &[u64] {
        let whole = World::indices(&self.request.range);
        let part = World::indices(part);
        &self.pages[part.start - whole.start..part.end - whole.start]
    }
}

/// The error of a registrar that has reached its limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

pub(crate) struct Fake {
    pub(crate) world: Arc<World>,
    follows: Follows,
    next: AtomicU64,
    live: Mutex<HashMap<u64, Request>>,
    most: usize,
}

impl Fake {
    pub(crate) fn new(world: &Arc<World>, follows: Follows) -> Self {
        Self {
            world: Arc::clone(world),
            follows,
            next: AtomicU64::new(0),
            live: Mutex::default(),
            most: usize::MAX,
        }
    }

    /// A registrar that refuses more than `most` registrations at a time.
    pub(crate) fn limited(world: &Arc<World>, most: usize) -> Self {
        let mut fake = Self::new(world, Follows::Addresses);
        fake.most = most;
        fake
    }

    /// How many registrations were made so far.
    pub(crate) fn made(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// The ranges that are registered.
    pub(crate) fn ranges(&self) -> Vec<VaRange> {
        let live = self.live.lock().unwrap();
        live.values().map(|request| request.range).collect()
    }

    /// How many registrations there are.
    pub(crate) fn live(&self) -> usize {
        self.live.lock().unwrap().len()
    }
}

impl Registrar for Fake {
    type Registration = Pinned;
    type Error = Exhausted;

    fn follows(&self) -> Follows {
        self.follows
    }

    fn register(&self, request: &Request) -> Result<Pinned, Exhausted> {
        let mut live = self.live.lock().unwrap();
        if live.len() >= self.most {
            return Err(Exhausted);
        }
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        live.insert(id, *request);
        Ok(Pinned {
            id,
            request: *request,
            pages: self.world.pages(&request.range),
        })
    }

    fn deregister(&self, registration: Pinned) {
        let ended = self.live.lock().unwrap().remove(&registration.id);
        assert_eq!(ended, Some(registration.request), "deregistered twice");
    }

    fn is_current(&self, registration: &Pinned, range: &VaRange) -> bool {
        registration.pages(range) == self.world.pages(range)
    }

    fn is_exhausted(&self, _: &Exhausted) -> bool {
        true
    }
}

pub(crate) fn range(start: u64, len: u64) -> VaRange {
    VaRange::new(start, len).unwrap()
}

pub(crate) const SEND: Rights = Rights(1);
pub(crate) const BOTH: Rights = Rights(3);
pub(crate) const GPU: Kind = Kind(7);

/// Looks the range up. A lookup caches nothing while another thread is in a hook, so it is repeated then: the thread that
/// starts the tests frees memory too.
pub(crate) fn get<R: Registrar<Error: std::fmt::Debug>>(cache: &Cache<R>, range: VaRange) -> Why {
    loop {
        let why = cache.get(range, SEND, Kind::HOST).unwrap().why();
        if !matches!(why, Why::Busy | Why::Overtaken) {
            return why;
        }
        thread::yield_now();
    }
}

/// Makes an entry, which the next lookup hits.
pub(crate) fn enter<R: Registrar<Error: std::fmt::Debug>>(cache: &Cache<R>, range: VaRange) {
    assert!(!get(cache, range).is_hit());
    assert_eq!(get(cache, range), Why::Hit);
}

/// The monitor `userfaultfd`, whose thread reads. `None` if it is not available here.
pub(crate) fn userfaultfd() -> Option<Arc<Userfaultfd>> {
    let opened = Userfaultfd::open().inspect_err(|error| println!("skipped: {error}"));
    let (monitor, reader) = opened.ok()?;
    // Never freed: once memory is watched, the thread must not free anything.
    let started: &Barrier = Box::leak(Box::new(Barrier::new(2)));
    thread::spawn(move || {
        reader.run_after(|| {
            started.wait();
        });
    });
    started.wait();
    Some(Arc::new(monitor))
}

/// Runs code in a forked child, which may not allocate. Returns its exit status.
pub(crate) fn in_a_child(code: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the callers' code makes system calls and touches memory, and the child ends without running other code.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = code();
        // SAFETY: as above.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: waits for the child; `status` is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

/// Whether the calling test runs alone in its process. If not, runs the test of this name again in a process of its own, and
/// passes on what that prints.
pub(crate) fn is_apart(test: &str) -> bool {
    const APART: &str = "RKEY_TEST_APART";
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", test, "--nocapture"]).env(APART, "1");
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
    for line in said.lines().filter(|line| line.starts_with("skipped")) {
        println!("{line}");
    }
    false
}

pub(crate) fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| {
        value.parse().expect("the variable is a number")
    })
}

/// Sets how many attempts the tests of races make.
pub(crate) const RACES: &str = "RKEY_TEST_CACHE_RACES";

pub(crate) fn races() -> u64 {
    from_environment(RACES, 20_000)
}

/// The outcomes of many sends.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) stale: u64,
    pub(crate) hits: u64,
    pub(crate) busy: u64,
}

impl Tally {
    /// `None`: other bytes arrived than those that were sent.
    pub(crate) fn count(&mut self, sent: Option<Why>) {
        match sent {
            None => self.stale += 1,
            Some(Why::Hit) => self.hits += 1,
            Some(Why::Busy) => self.busy += 1,
            Some(_) => {}
        }
    }
}

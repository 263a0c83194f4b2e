//! Descriptions of a front end's endpoints and other objects, for inspections.
//!
//! The front end registers a function for each endpoint, or one for many objects. The engine thread calls all of them when it
//! answers an inspection, so they must not wait for the program: if the program holds the endpoint's lock for too long, the
//! inspection shows the endpoint as busy.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The maximum number of described endpoints.
pub(super) const ENDPOINTS: usize = 256;
/// The maximum number of described objects.
pub(super) const OBJECTS: usize = 1024;
/// The maximum number of peers in a description.
pub const PEERS: usize = 64;
/// The maximum number of tags in a description.
pub const TAGS: usize = 8;
/// How long the descriptions of all endpoints may take together; those of other objects may take as long again.
const TIMEOUT: Duration = Duration::from_millis(50);
/// The pause between two attempts to lock: the thread that holds the lock may share our processor.
const PAUSE: Duration = Duration::from_micros(200);

/// An endpoint of a front end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndpointView {
    /// The endpoint's number, which its error messages contain.
    pub number: u32,
    /// The endpoint's type, in the front end's terms.
    pub ep_type: String,
    /// The address at which peers find it.
    pub name: Option<String>,
    /// The operations and messages in flight. `None` if the program held the endpoint's lock until the time for descriptions
    /// ran out.
    pub traffic: Option<Traffic>,
}

/// What an endpoint has in flight.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// The number of posted untagged receives.
    pub receives: usize,
    /// The number of posted tagged receives.
    pub tagged_receives: usize,
    /// Whether the receives are in a context that other endpoints share.
    pub shared_receives: bool,
    /// The number of untagged unexpected messages.
    pub unexpected: usize,
    /// The number of tagged unexpected messages.
    pub tagged_unexpected: usize,
    /// The number of peers that sent the unexpected messages.
    pub unexpected_from: usize,
    /// The tags of the first [`TAGS`] posted receives, oldest first, each with its ignore mask.
    pub wanted_tags: Vec<(u64, u64)>,
    /// The tags of the first [`TAGS`] unexpected messages, oldest first.
    pub unexpected_tags: Vec<u64>,
    /// The number of incomplete operations that consist of several requests.
    pub operations: usize,
    /// The number of incomplete collective operations.
    pub collectives: usize,
    /// The number of completions that the program has not read.
    pub completions: usize,
    /// The number of the endpoint's peers.
    pub peers: usize,
    /// The first [`PEERS`] peers, those with operations in flight first.
    pub listed: Vec<PeerView>,
}

/// A peer of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// The peer's address.
    pub address: String,
    /// The peer's number in the address vector.
    pub number: Option<u64>,
    /// "none" (no connection needed yet), "connecting", "open" or "lost".
    #[serde(alias = "way")]
    pub connection: String,
    /// The number of the queue pair that sends requests to the peer.
    pub qpn: Option<u32>,
    /// The number of posted requests that are not complete.
    pub outstanding: u32,
    /// The number of our operations that wait for the peer's program, for example for a receive.
    pub unanswered: usize,
    /// Whether our credit with the peer is used up.
    pub out_of_credit: bool,
    /// The number of receives that are posted for messages from this peer only.
    pub receives: usize,
    /// The number of unexpected messages from the peer.
    pub unexpected: usize,
}

/// An object of a front end that the device has no type for, such as an EVD of uDAPL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectView {
    /// The kind of object, in the front end's terms.
    pub kind: String,
    /// The program's name for it: its handle, in hexadecimal (`0x...`).
    pub name: String,
    /// The state, in the front end's terms.
    pub state: String,
}

/// The objects that an inspection lists: at most the first 1,024.
#[derive(Debug, Default)]
pub struct Objects {
    pub(super) list: Vec<ObjectView>,
    pub(super) count: usize,
}

impl Objects {
    /// Adds an object. `view` is called only if there is room for it.
    pub fn add(&mut self, view: impl FnOnce() -> ObjectView) {
        self.count += 1;
        if self.list.len() < OBJECTS {
            self.list.push(view());
        }
    }
}

pub(super) type DescribeObjects = dyn Fn(Instant, &mut Objects) + Send;
pub(super) type Describe = dyn Fn(Instant) -> EndpointView + Send;

/// The descriptions that are registered with a device.
#[derive(Default)]
pub(crate) struct Descriptions(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    next: u64,
    by_number: BTreeMap<u64, Box<Describe>>,
    objects: BTreeMap<u64, Box<DescribeObjects>>,
}

impl Descriptions {
    /// Adds a description; returns the number that removes it.
    pub(super) fn add(&self, describe: Box<Describe>) -> u64 {
        let mut known = self.0.lock();
        known.next += 1;
        let number = known.next;
        known.by_number.insert(number, describe);
        number
    }

    /// Adds a description of objects; returns the number that removes it.
    pub(super) fn add_objects(&self, describe: Box<DescribeObjects>) -> u64 {
        let mut known = self.0.lock();
        known.next += 1;
        let number = known.next;
        known.objects.insert(number, describe);
        number
    }

    /// When this returns, the function is not running and will not be called again.
    pub(super) fn remove(&self, number: u64) {
        let mut known = self.0.lock();
        known.by_number.remove(&number);
        known.objects.remove(&number);
    }

    /// The objects of all front ends.
    pub(crate) fn collect_objects(&self) -> Objects {
        let until = Instant::now() + TIMEOUT;
        let mut all = Objects::default();
        for describe in self.0.lock().objects.values() {
            describe(until, &mut all);
        }
        all
    }

    /// The first descriptions, and how many there are in total.
    pub(crate) fn collect(&self) -> (Vec<EndpointView>, usize) {
        let until = Instant::now() + TIMEOUT;
        let known = self.0.lock();
        let described = known.by_number.values().take(ENDPOINTS);
        (
            described.map(|describe| describe(until)).collect(),
            known.by_number.len(),
        )
    }
}

/// Tries to take a lock that a program thread may hold, until a deadline, and at least once.
pub fn lock_until<T>(lock: &Mutex<T>, until: Instant) -> Option<parking_lot::MutexGuard<'_, T>> {
    loop {
        if let Some(guard) = lock.try_lock() {
            return Some(guard);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locking_gives_up_at_the_deadline() {
        let lock = Mutex::new(7);
        let held = lock.lock();
        let soon = Instant::now() + Duration::from_millis(1);
        assert!(lock_until(&lock, soon).is_none());
        drop(held);
        // `lock_until` tries once even if the deadline has passed.
        assert_eq!(lock_until(&lock, Instant::now()).as_deref(), Some(&7));
    }
}

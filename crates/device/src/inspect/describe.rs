//! What a front end has on top of a device, for people: it describes that when somebody looks.
//!
//! The front end of an endpoint registers a description of it. The engine thread asks for all of them when it
//! answers an inspection, so a description may not wait for the program: what cannot be told at once is
//! left out, and the endpoint is shown as busy.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::device::Device;

/// The most endpoints that are described.
const ENDPOINTS: usize = 256;
/// The most peers of one that a description lists.
pub const PEERS: usize = 64;
/// The most tags that a description lists.
pub const TAGS: usize = 8;
/// How long all descriptions together may take.
const PATIENCE: Duration = Duration::from_millis(50);
/// Pause between two tries for a lock: whoever has it may share a processor with us.
const PAUSE: Duration = Duration::from_micros(200);

/// An endpoint of a front end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndpointView {
    /// Its number, as in the text of its errors.
    pub number: u32,
    /// Its type, in words of the front end.
    pub ep_type: String,
    /// The address at which peers find it.
    pub name: Option<String>,
    /// What it has under way; nothing if its program was busy with it all the time.
    pub traffic: Option<Traffic>,
}

/// What an endpoint has under way.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Receives without a tag that no message has matched.
    pub receives: usize,
    /// The same with a tag.
    pub tagged_receives: usize,
    /// The receives are those of a context that other endpoints share.
    pub shared_receives: bool,
    /// Messages without a tag that no receive has matched.
    pub unexpected: usize,
    /// The same with a tag.
    pub tagged_unexpected: usize,
    /// From how many peers those are.
    pub unexpected_from: usize,
    /// The tags of the first [`TAGS`] receives that wait, oldest first, each with the bits of it that do not count.
    pub wanted_tags: Vec<(u64, u64)>,
    /// The tags of the first [`TAGS`] messages that wait, oldest first.
    pub unexpected_tags: Vec<u64>,
    /// Operations that have begun and are not complete, but for those that are one request.
    pub operations: usize,
    /// Collective operations of groups that are not complete.
    pub collectives: usize,
    /// Completions that the program has not read.
    pub completions: usize,
    /// How many peers it has.
    pub peers: usize,
    /// The first [`PEERS`] of them: those with something under way before the others.
    pub listed: Vec<PeerView>,
}

/// A peer of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Its address.
    pub address: String,
    /// Its number in the address vector.
    pub number: Option<u64>,
    /// "none" (nobody has asked for a connection), "connecting", "open" or "lost".
    pub way: String,
    /// The queue pair that requests to it take.
    pub qpn: Option<u32>,
    /// Requests that were posted and are not complete.
    pub outstanding: u32,
    /// Operations of ours that wait for its program: it has to receive, for example.
    pub unanswered: usize,
    /// It takes no more messages that it has not asked for.
    pub out_of_credit: bool,
    /// Receives that wait for a message of this peer and of no other.
    pub receives: usize,
    /// Messages of it that no receive has matched.
    pub unexpected: usize,
}

type Describe = dyn Fn(Instant) -> EndpointView + Send;

/// The descriptions that a device knows.
#[derive(Default)]
pub(crate) struct Descriptions(Mutex<Known>);

#[derive(Default)]
struct Known {
    next: u64,
    by_number: BTreeMap<u64, Box<Describe>>,
}

impl Descriptions {
    /// The first descriptions, and how many there are.
    pub(crate) fn ask(&self) -> (Vec<EndpointView>, usize) {
        let until = Instant::now() + PATIENCE;
        let known = self.0.lock();
        let asked = known.by_number.values().take(ENDPOINTS);
        (
            asked.map(|describe| describe(until)).collect(),
            known.by_number.len(),
        )
    }
}

/// As long as it is there, the endpoint is shown. When it has been dropped its description is not being asked
/// for, and never will be.
#[derive(Debug)]
#[must_use = "the description ends with it"]
pub struct Description {
    device: Device,
    number: u64,
}

impl Device {
    /// Shows an endpoint of a front end to those who inspect the device. `describe` runs in the engine thread or in
    /// [`Device::inspect`]; it waits for nothing beyond the time that it is given, calls nothing of the device, and
    /// drops nothing that the device would have to take apart.
    pub fn describe(
        &self,
        describe: impl Fn(Instant) -> EndpointView + Send + 'static,
    ) -> Description {
        let mut known = self.shared().descriptions.0.lock();
        known.next += 1;
        let number = known.next;
        known.by_number.insert(number, Box::new(describe));
        Description {
            device: self.clone(),
            number,
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there.
        if !self.device.is_forked() {
            let mut known = self.device.shared().descriptions.0.lock();
            known.by_number.remove(&self.number);
        }
    }
}

/// Takes a lock that a program may hold: tries until a moment, and at least once.
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
    use crate::Config;

    #[test]
    fn endpoints_are_shown_while_their_description_is_there() {
        let device = Device::open(Config::default()).unwrap();
        let view = |number| {
            move |_| EndpointView {
                number,
                ep_type: "test".to_owned(),
                name: None,
                traffic: None,
            }
        };
        let shown = || {
            let all = device.inspect().unwrap();
            let numbers: Vec<u32> = all.endpoints.iter().map(|ep| ep.number).collect();
            (numbers, all.endpoint_count)
        };
        let one = device.describe(view(1));
        let two = device.describe(view(2));
        assert_eq!(shown(), (vec![1, 2], 2));
        drop(one);
        assert_eq!(shown(), (vec![2], 1));
        let many: Vec<Description> = (0..ENDPOINTS as u32)
            .map(|number| device.describe(view(number)))
            .collect();
        let (numbers, count) = shown();
        assert_eq!((numbers.len(), count), (ENDPOINTS, ENDPOINTS + 1));
        drop((two, many));
        assert_eq!(shown(), (vec![], 0));
    }

    #[test]
    fn nobody_waits_for_a_lock_that_is_not_given_back() {
        let lock = Mutex::new(7);
        let held = lock.lock();
        let soon = Instant::now() + Duration::from_millis(1);
        assert!(lock_until(&lock, soon).is_none());
        drop(held);
        // Once is tried however late it is.
        assert_eq!(lock_until(&lock, Instant::now()).as_deref(), Some(&7));
    }
}

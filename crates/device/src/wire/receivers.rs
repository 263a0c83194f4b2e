//! The devices that receive the packets of a wire.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rkey_roce::packet::Packet;
use smallvec::SmallVec;

/// How long to wait until no thread uses a removed device. This takes microseconds, unless the wire's thread waits for another device or
/// for the log.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A packet from another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    /// Our address.
    pub(crate) local: IpAddr,
    /// The sender's address.
    pub(crate) remote: IpAddr,
    /// Whether a router has reported congestion on the way.
    pub(crate) is_marked: bool,
    pub(crate) packet: Packet<'a>,
}

/// A device that receives packets.
pub(crate) trait Receiver: Send + Sync {
    /// Whether the device owns this block of queue pair numbers.
    fn owns(&self, block: u16) -> bool;

    /// Handles packets for the device's queue pairs. If `in_poll`, the caller is a thread of the program, which polls: acknowledgements
    /// may wait until [`Receiver::send_held`] is called, a millisecond later at most.
    fn receive(&self, packets: &[Arrived<'_>], in_poll: bool);

    /// Sends acknowledgements that wait.
    fn send_held(&self);

    /// Called when the wire's thread has failed because of a bug: no more packets will arrive.
    fn failed(&self, why: &str);
}

/// The devices.
#[derive(Default)]
pub(super) struct Receivers {
    known: Mutex<Vec<Weak<dyn Receiver>>>,
    /// Locked for reading while a thread has references to the devices.
    in_use: RwLock<()>,
}

/// References to all devices.
pub(super) struct InUse<'a> {
    // Dropped first: once the lock is free, this thread has no reference.
    all: SmallVec<[Arc<dyn Receiver>; 1]>,
    _lock: RwLockReadGuard<'a, ()>,
}

impl Receivers {
    /// Adds a device, and stores how many there are.
    pub(super) fn add(&self, receiver: &Arc<dyn Receiver>, devices: &AtomicUsize) {
        let mut known = self.known.lock();
        known.retain(|it| it.strong_count() > 0);
        known.push(Arc::downgrade(receiver));
        devices.store(known.len(), Ordering::Relaxed);
    }

    /// Removes a device, stores how many are left, and waits until no other thread has a reference from [`Receivers::all`]. Returns
    /// `false` if one still has it after a second.
    ///
    /// A thread of the wire that dropped the last reference to a device would close the wire, while the program believes that this is
    /// done and exits: packets that wait would never leave.
    pub(super) fn remove(&self, receiver: &dyn Receiver, devices: &AtomicUsize) -> bool {
        let mut known = self.known.lock();
        known.retain(|it| it.strong_count() > 0 && !std::ptr::addr_eq(it.as_ptr(), receiver));
        devices.store(known.len(), Ordering::Relaxed);
        drop(known);
        self.in_use.try_write_for(TIMEOUT).is_some()
    }

    pub(super) fn all(&self) -> InUse<'_> {
        // Recursive: handling a packet may make the wire fail, which tells all devices.
        let lock = self.in_use.read_recursive();
        let known = self.known.lock();
        InUse {
            all: known.iter().filter_map(Weak::upgrade).collect(),
            _lock: lock,
        }
    }
}

impl Deref for InUse<'_> {
    type Target = [Arc<dyn Receiver>];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WireSetting;
    use crate::wire::tests::{address, wait_until};
    use crate::{Config, Device};
    use rkey_roce::icrc::PORT;
    use std::net::UdpSocket;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Sender, channel};

    /// A device that takes long to send what waits.
    struct Slow {
        begun: Sender<()>,
        has_ended: AtomicBool,
    }

    impl Receiver for Slow {
        fn owns(&self, _: u16) -> bool {
            false
        }

        fn receive(&self, _: &[Arrived<'_>], _: bool) {}

        fn send_held(&self) {
            self.begun.send(()).unwrap();
            crate::time::sleep(Duration::from_millis(50));
            self.has_ended.store(true, Ordering::Relaxed);
        }

        fn failed(&self, _: &str) {}
    }

    #[test]
    fn a_removed_device_is_no_longer_in_use() {
        let (begun, begins) = channel();
        let slow = Arc::new(Slow {
            begun,
            has_ended: AtomicBool::new(false),
        });
        let (receivers, devices) = (Receivers::default(), AtomicUsize::new(0));
        receivers.add(&(slow.clone() as Arc<dyn Receiver>), &devices);
        assert_eq!(
            (receivers.all().len(), devices.load(Ordering::Relaxed)),
            (1, 1)
        );
        std::thread::scope(|scope| {
            scope.spawn(|| receivers.all().iter().for_each(|it| it.send_held()));
            begins.recv().unwrap();
            assert!(receivers.remove(&*slow, &devices));
            assert!(slow.has_ended.load(Ordering::Relaxed));
            assert_eq!(Arc::strong_count(&slow), 1);
        });
        assert_eq!(
            (receivers.all().len(), devices.load(Ordering::Relaxed)),
            (0, 0)
        );
    }

    /// A stranger sends all the time, so the wire's thread often uses the device that is being closed.
    #[test]
    fn a_closed_device_has_closed_its_wire() {
        let (ip, test) = (address(), Arc::new(()));
        let runs = Arc::downgrade(&test);
        std::thread::spawn(move || {
            let stranger = UdpSocket::bind((address(), 0)).unwrap();
            while runs.strong_count() > 0 {
                let _ = stranger.send_to(&[0; 3], (ip, PORT));
            }
        });
        let is_still_open = |_: &u32| {
            let config = Config {
                wire: WireSetting::Addresses(vec![ip]).into(),
                ..Config::default()
            };
            let device = Device::open(config).unwrap();
            let wire = device.wire().unwrap();
            wait_until(|| !wire.describe().counts.dropped.is_empty());
            let core = Arc::downgrade(&wire.core);
            drop(device);
            core.strong_count() > 0
        };
        assert_eq!((0..300).filter(is_still_open).count(), 0);
    }
}

//! The packets that arrived together, by the device that receives them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Arrived, Receiver};

/// The packets for one device. A short message and an acknowledgement need no allocation.
type Packets<'a> = SmallVec<[Arrived<'a>; 4]>;

/// For how many packets there is room from the start, at most. A forwarded message may claim to have many more.
const RESERVED: usize = 1024;

/// Packets that arrived together.
pub(super) struct Batch<'d, 'a> {
    devices: &'d [Arc<dyn Receiver>],
    /// The packets of each device.
    packets: SmallVec<[Packets<'a>; 1]>,
    /// How many packets there are at most.
    limit: usize,
    /// The last block, and the index of the device that owns it. Consecutive packets mostly have the same destination.
    last: Option<(u16, Option<usize>)>,
}

impl<'d, 'a> Batch<'d, 'a> {
    /// An empty batch for these devices, which gets at most `limit` packets.
    pub(super) fn new(devices: &'d [Arc<dyn Receiver>], limit: usize) -> Self {
        Self {
            devices,
            packets: devices.iter().map(|_| Packets::new()).collect(),
            limit,
            last: None,
        }
    }

    /// The index of the device that owns this block of queue pair numbers; `None` if another process does.
    pub(super) fn owner_of(&mut self, block: u16) -> Option<usize> {
        match self.last {
            Some((last, owner)) if last == block => owner,
            _ => {
                let owner = self.devices.iter().position(|it| it.owns(block));
                self.last = Some((block, owner));
                owner
            }
        }
    }

    /// Adds a packet for the device at this index.
    pub(super) fn push(&mut self, owner: usize, arrived: Arrived<'a>) {
        let packets = &mut self.packets[owner];
        if packets.is_empty() {
            packets.reserve(self.limit.min(RESERVED));
        }
        packets.push(arrived);
    }

    /// How many packets there are.
    pub(super) fn count(&self) -> usize {
        self.packets.iter().map(SmallVec::len).sum()
    }

    /// Gives each device its packets.
    pub(super) fn deliver(&self, in_poll: bool) {
        for (device, packets) in self.devices.iter().zip(&self.packets) {
            if !packets.is_empty() {
                device.receive(packets, in_poll);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::packet;
    use parking_lot::Mutex;
    use rkey_roce::packet::Packet;
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A device that owns one block.
    #[derive(Default)]
    struct Device {
        block: u16,
        looks: AtomicUsize,
        psns: Mutex<Vec<Vec<u32>>>,
    }

    impl Receiver for Device {
        fn owns(&self, block: u16) -> bool {
            self.looks.fetch_add(1, Ordering::Relaxed);
            block == self.block
        }

        fn receive(&self, packets: &[Arrived<'_>], _: bool) {
            let psns = packets.iter().map(|it| it.packet.headers.psn.get());
            self.psns.lock().push(psns.collect());
        }

        fn send_held(&self) {}

        fn failed(&self, _: &str) {}
    }

    #[test]
    fn each_device_gets_its_packets_in_order_and_all_at_once() {
        let [one, other] = [1, 2].map(|block| {
            Arc::new(Device {
                block,
                ..Device::default()
            })
        });
        let devices: [Arc<dyn Receiver>; 2] = [one.clone(), other.clone()];
        let blocks = [1, 1, 1, 2, 2, 3, 3, 1, 1, 2];
        let packets = blocks.iter().zip(0..);
        let packets = packets.map(|(block, psn)| packet(u32::from(*block) << 8, psn, b""));
        let packets: Vec<_> = packets.collect();
        let mut batch = Batch::new(&devices, packets.len());
        let address = IpAddr::from([10, 0, 0, 1]);
        for (block, bytes) in blocks.into_iter().zip(&packets) {
            let Some(owner) = batch.owner_of(block) else {
                assert_eq!(block, 3);
                continue;
            };
            let arrived = Arrived {
                local: address,
                remote: address,
                is_marked: false,
                packet: Packet::decode(bytes).unwrap(),
            };
            batch.push(owner, arrived);
        }
        assert_eq!(batch.count(), 8);
        batch.deliver(false);
        assert_eq!(*one.psns.lock(), [[0, 1, 2, 7, 8]]);
        assert_eq!(*other.psns.lock(), [[3, 4, 9]]);
        // Once for each run of packets to the same block.
        assert_eq!(one.looks.load(Ordering::Relaxed), 5);
    }
}

//! Queue pairs on other hosts that use selective retransmission, as their connection manager has said.
//!
//! The messages that make a connection name the peer's queue pair, before the program here connects its own to it. If the peer is rkey, too,
//! which its GUID shows, both sides use selective retransmission.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

use parking_lot::Mutex;

/// The maximum number of queue pairs. Beyond it, the oldest are forgotten: their connections use the standard.
const MOST: usize = 4096;

/// The queue pairs whose connections are being made.
#[derive(Debug, Default)]
pub(super) struct Agreements(Mutex<Peers>);

#[derive(Debug, Default)]
struct Peers {
    /// Addresses and queue pair numbers.
    known: HashSet<(IpAddr, u32)>,
    /// The same, oldest first.
    order: VecDeque<(IpAddr, u32)>,
}

impl Agreements {
    /// Records that a queue pair uses selective retransmission if its peer does.
    pub(super) fn add(&self, host: IpAddr, qpn: u32) {
        let mut peers = self.0.lock();
        let peer = (host.to_canonical(), qpn);
        peers.remove(&peer);
        peers.known.insert(peer);
        peers.order.push_back(peer);
        if peers.order.len() > MOST
            && let Some(oldest) = peers.order.pop_front()
        {
            peers.known.remove(&oldest);
        }
    }

    /// Whether a queue pair uses selective retransmission, to which one of this process is connected now. Forgets it.
    pub(super) fn take(&self, host: IpAddr, qpn: u32) -> bool {
        self.0.lock().remove(&(host.to_canonical(), qpn))
    }
}

impl Peers {
    /// Forgets a queue pair, and returns whether it was known.
    fn remove(&mut self, peer: &(IpAddr, u32)) -> bool {
        let was_known = self.known.remove(peer);
        if was_known {
            self.order.retain(|it| it != peer);
        }
        was_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::address;
    use crate::{Config, Device, QpOptions};
    use rkey_core::Access;
    use rkey_engine::{Peer, QpAttributes, WirePeer};

    #[test]
    fn an_agreement_is_for_one_connection() {
        let (agreements, host) = (Agreements::default(), IpAddr::from([10, 0, 0, 1]));
        agreements.add(host, 5);
        assert!(!agreements.take(host, 6) && !agreements.take([10, 0, 0, 2].into(), 5));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert!(agreements.take(mapped, 5));
        assert!(!agreements.take(host, 5));
    }

    #[test]
    fn agreements_of_connections_that_are_never_made_are_forgotten() {
        let (agreements, host) = (Agreements::default(), IpAddr::from([10, 0, 0, 1]));
        let count = 3 * MOST as u32;
        for qpn in 0..count {
            agreements.add(host, qpn);
        }
        let peers = agreements.0.lock();
        assert_eq!((peers.known.len(), peers.order.len()), (MOST, MOST));
        drop(peers);
        assert!(agreements.take(host, count - 1) && !agreements.take(host, 0));
    }

    #[test]
    fn an_agreement_remains_if_the_queue_pair_cannot_be_connected() {
        let ip = address();
        let mut config = Config::default();
        config.set("RKEY_WIRE", &ip.to_string()).unwrap();
        let device = Device::open(config).unwrap();
        let cq = device.create_cq(4, None).unwrap();
        let domain = device.create_domain().unwrap();
        let qp = device.create_qp(&QpOptions::new(domain, &cq)).unwrap();
        let peer = WirePeer {
            local: ip,
            remote: [192, 0, 2, 1].into(),
        };
        device.wire().unwrap().agree(peer.remote, 7);
        let mut rtr = QpAttributes::rtr(Peer { qpn: 7, node: None }, 0);
        (rtr.wire, rtr.path_mtu) = (Some(peer), Some(1024));
        qp.modify(&rtr).unwrap_err();
        qp.modify(&QpAttributes::init(Access::empty())).unwrap();
        qp.modify(&rtr).unwrap();
        assert_eq!(qp.query().unwrap().attributes.selective, Some(true));
        assert!(!device.wire().unwrap().take_agreement(peer.remote, 7));
    }
}

//! Two engines on two hosts, connected by a network that loses, duplicates and reorders packets, under a virtual clock.

mod datagrams;
mod failures;
mod many;
mod network;
mod operations;
mod refusals;
mod schedules;

use crate::support::*;
use network::Network;
pub(crate) use network::{Random, Weather};
use rkey_core::Region;
use rkey_engine::*;
use rkey_roce::packet::Packet;
use rkey_roce::transport::PacketBuffer;

/// How much virtual time a test may take.
const LIMIT: u64 = 300_000_000_000;

/// Two nodes on different hosts.
pub(crate) struct Hosts {
    pub(crate) nodes: [Node; 2],
    pub(crate) network: Network,
    pub(crate) now: u64,
}

/// The path from a host to the other.
pub(crate) fn path(at: usize) -> WirePeer {
    let address = |at: usize| format!("192.0.2.{}", at + 1).parse().unwrap();
    WirePeer {
        local: address(at),
        remote: address(1 - at),
    }
}

impl Hosts {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        let config = EngineConfig::default();
        Self {
            nodes: [Node::with(1, config), Node::with(2, config)],
            network: Network::new(seed, weather),
            now: 1,
        }
    }

    /// Two queue pairs that are ready to send.
    pub(crate) fn connect(&mut self, change: impl Fn(usize, &mut QpConfig)) -> [Qp; 2] {
        self.connect_with(change, |_, _| {})
    }

    /// Like [`Self::connect`]. `tune` can modify the attributes of each step.
    pub(crate) fn connect_with(
        &mut self,
        change: impl Fn(usize, &mut QpConfig),
        tune: impl Fn(usize, &mut QpAttributes),
    ) -> [Qp; 2] {
        let qps = [0, 1].map(|at| self.nodes[at].qp(|config| change(at, config)));
        for at in 0..2 {
            self.up(at, &qps[at], qps[1 - at].qpn, &tune);
        }
        qps
    }

    pub(crate) fn up(
        &mut self,
        at: usize,
        own: &Qp,
        other: u32,
        tune: impl Fn(usize, &mut QpAttributes),
    ) {
        let peer = Peer {
            qpn: other,
            node: None,
        };
        let engine = &mut self.nodes[at].engine;
        let kind = engine.query_qp(own.id).unwrap().config.qp_type;
        for mut step in steps(kind, peer, at as u32) {
            step.wire = step.peer.map(|_| path(at));
            tune(at, &mut step);
            engine.modify_qp(own.id, &step).unwrap();
        }
    }

    /// A region of 64 KiB at each node, whose contents differ.
    pub(crate) fn regions(&mut self) -> [Region; 2] {
        [0, 1].map(|at| {
            let node = &self.nodes[at];
            node.fill(0, &pattern(at as u64 + 5, 1 << 16));
            node.register(0, 1 << 16, ALL)
        })
    }

    pub(crate) fn send(&mut self, at: usize, qp: &Qp, request: &SendRequest<'_>) {
        self.nodes[at].engine.post_send(qp.id, request).unwrap();
    }

    pub(crate) fn recv(&mut self, at: usize, qp: &Qp, id: u64, sges: &[Sge]) {
        let receive = RecvRequest { id, sges };
        self.nodes[at].engine.post_recv(qp.id, &receive).unwrap();
    }

    /// Takes every packet that a node sends now.
    pub(crate) fn transmit(&mut self, at: usize) {
        let mut place: Box<PacketBuffer> = Box::new([0; _]);
        while let Some((to, length)) = self.nodes[at].engine.wire_transmit(self.now, &mut place) {
            assert_eq!(to, path(at));
            self.network.send(self.now, at, &place[..length]);
        }
        assert!(!self.nodes[at].engine.has_wire_output());
    }

    /// Passes a packet to a node, as if it came over this path.
    pub(crate) fn deliver(&mut self, at: usize, from: WirePeer, packet: &[u8]) {
        self.deliver_with(at, from, packet, false);
    }

    /// Like [`Self::deliver`]. The packet may be marked: it has met congestion.
    pub(crate) fn deliver_with(
        &mut self,
        at: usize,
        from: WirePeer,
        packet: &[u8],
        is_marked: bool,
    ) {
        let packet = Packet::decode(packet).unwrap();
        let engine = &mut self.nodes[at].engine;
        engine.wire_receive(self.now, from, &packet, is_marked);
    }

    /// Runs until nothing moves and no timer is set. Returns whether that happened in time.
    pub(crate) fn run(&mut self) -> bool {
        let end = self.now + LIMIT;
        loop {
            let mut next = None;
            for at in 0..2 {
                let deadline = self.nodes[at].engine.drive(self.now, 64).next_deadline;
                next = next.into_iter().chain(deadline).min();
                self.transmit(at);
                // A packet that has left has set a timer.
                let deadline = self.nodes[at].engine.drive(self.now, 0).next_deadline;
                next = next.into_iter().chain(deadline).min();
            }
            let arrival = self.network.next_arrival();
            let Some(time) = next.into_iter().chain(arrival).min() else {
                return true;
            };
            if time > end {
                return false;
            }
            self.now = self.now.max(time);
            while let Some((to, packet)) = self.network.arrive(self.now) {
                self.deliver(to, path(to), &packet);
            }
        }
    }
}

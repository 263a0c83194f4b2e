//! A hostile network between two connection managers, driven by a script of bytes: it delivers, changes, repeats and
//! loses messages, and sends some from a third host, while the programs make their calls.
//!
//! Whatever the script does, a message gets at most one answer (and may start the end of a connection that its sender
//! has forgotten), the managers' state is bounded, and after the programs have closed everything, only the listeners
//! are left in it.

use rkey_cm::address::{Guid, PortSpace, ServiceId};
use rkey_cm::manager::{
    Accept, Config, Connect, DatagramAnswer, Event, Kind, ListenOn, PathOptions, QueuePair,
    Resolve, Transmit,
};
use rkey_cm::wire::{Ece, MAD, Mad, PrivateData, RejectReason, Transport};
use rkey_cm::{ConnectionId, Manager};
use std::net::{IpAddr, SocketAddr};

const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3)),
];
const CONNECTED: u16 = 1;
const DATAGRAM: u16 = 2;
const BACKLOG: usize = 4;
/// The maximum number of steps of a script.
const MOST: usize = 200;

struct World {
    now: u64,
    hosts: [Manager; 2],
    /// Messages that the script may still deliver.
    under_way: Vec<Transmit>,
    known: [Vec<ConnectionId>; 2],
    qpn: u32,
}

/// Runs a script.
pub fn run(script: &[u8]) {
    let mut world = World::new();
    let mut rest = script;
    for _ in 0..MOST {
        let Some((&[what, which, argument], next)) = rest.split_first_chunk() else {
            break;
        };
        rest = next;
        let side = usize::from(which & 1);
        let index = usize::from(which >> 1);
        match what % 16 {
            0 => world.connect(side, usize::from(argument)),
            1 => world.resolve(side),
            2 => world.advance(u64::from(argument) * 100_000_000),
            3..=8 => world.call(what % 16, side, index),
            9 => drop(world.take(index)),
            10 => {
                let len = rest.len().min(usize::from(argument));
                let (raw, next) = rest.split_at(len);
                rest = next;
                let mut mad = [0; MAD];
                mad[..len].copy_from_slice(raw);
                world.arrive(ADDRESSES[2 - usize::from(which & 2)], side, &mad);
            }
            11 => world.deliver(index, &[(which, argument)], true, false),
            12 => world.deliver(index, &[(argument, which)], false, false),
            13 => world.deliver(index, &[], false, true),
            _ => world.deliver(index, &[], false, false),
        }
        world.check();
    }
    world.end();
}

impl World {
    fn new() -> Self {
        let host = |number: u8| {
            let mut manager = Manager::new(Config::new(Guid([number; 8]), u128::from(number)));
            let kinds = [
                (CONNECTED, Kind::Connected(Transport::Rc)),
                (DATAGRAM, Kind::Datagram),
            ];
            for (port, kind) in kinds {
                let service = ServiceId::new(PortSpace::Tcp, port);
                let made = manager.listen(ListenOn::Any, service, kind, BACKLOG);
                assert!(made.is_ok(), "{made:?}");
            }
            manager
        };
        Self {
            now: 0,
            hosts: [host(1), host(2)],
            under_way: Vec::new(),
            known: [Vec::new(), Vec::new()],
            qpn: 16,
        }
    }

    fn queue_pair(&mut self) -> QueuePair {
        self.qpn += 1;
        QueuePair {
            qpn: self.qpn,
            starting_psn: 0,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry: 7,
            srq: false,
            flow_control: false,
        }
    }

    fn connect(&mut self, side: usize, port: usize) {
        let request = Connect {
            from: SocketAddr::new(ADDRESSES[side], 9),
            to: SocketAddr::new(ADDRESSES[1 - side], 1 + port as u16 % 3),
            space: PortSpace::Tcp,
            transport: [Transport::Rc, Transport::Uc, Transport::Xrc][port / 3 % 3],
            queue_pair: self.queue_pair(),
            path: PathOptions::default(),
            ece: Ece::default(),
            data: PrivateData::default(),
        };
        let made = self.hosts[side].connect(self.now, &request);
        self.known[side].extend(made);
    }

    fn resolve(&mut self, side: usize) {
        let request = Resolve {
            from: SocketAddr::new(ADDRESSES[side], 9),
            to: SocketAddr::new(ADDRESSES[1 - side], DATAGRAM),
            space: PortSpace::Tcp,
            data: PrivateData::default(),
        };
        let made = self.hosts[side].resolve_datagram(self.now, &request);
        self.known[side].extend(made);
    }

    fn advance(&mut self, time: u64) {
        self.now += time;
        for host in &mut self.hosts {
            host.advance(self.now);
        }
    }

    /// Makes a call, which fails if the connection's state does not allow it.
    fn call(&mut self, what: u8, side: usize, index: usize) {
        let queue_pair = self.queue_pair();
        let known = &self.known[side];
        let Some(&id) = known.get(index % known.len().max(1)) else {
            return;
        };
        let (now, host) = (self.now, &mut self.hosts[side]);
        let accept = Accept {
            queue_pair,
            ece: Ece::default(),
            data: PrivateData::default(),
        };
        let answer = DatagramAnswer {
            qpn: queue_pair.qpn,
            qkey: 1,
            data: PrivateData::default(),
        };
        let _ = host.take_request(id);
        let _ = match what {
            3 => host.accept(now, id, &accept),
            4 => host.reject(now, id, RejectReason::CONSUMER, PrivateData::default(), 0),
            5 => host.establish(now, id),
            6 => host.disconnect(now, id),
            7 => host.close(now, id),
            _ => host.accept_datagram(now, id, &answer),
        };
    }

    fn take(&mut self, index: usize) -> Option<Transmit> {
        let count = self.under_way.len();
        (count > 0).then(|| self.under_way.swap_remove(index % count))
    }

    /// Delivers a message with these bytes changed, from its sender or from a third host. With `keeps`, it can be
    /// delivered again.
    fn deliver(&mut self, index: usize, changes: &[(u8, u8)], is_stranger: bool, keeps: bool) {
        let Some(it) = self.take(index) else {
            return;
        };
        let mut mad = it.mad;
        for &(at, value) in changes {
            mad[usize::from(at)] = value;
        }
        let side = usize::from(it.to == ADDRESSES[1]);
        let from = if is_stranger { ADDRESSES[2] } else { it.from };
        if keeps {
            self.under_way.push(it);
        }
        self.arrive(from, side, &mad);
    }

    /// Delivers a message to a host. The host sends at most one answer, to the address that the message came from.
    fn arrive(&mut self, from: IpAddr, side: usize, mad: &[u8; MAD]) {
        self.collect();
        self.hosts[side].receive(self.now, from, ADDRESSES[side], mad);
        let mut answers = Vec::new();
        while let Some(it) = self.hosts[side].next_transmit() {
            assert_eq!(it.to, from);
            answers.push(it);
        }
        assert!(answers.len() <= 1);
        // Nothing arrives at the third host.
        let reachable = answers.into_iter().filter(|it| it.to != ADDRESSES[2]);
        self.under_way.extend(reachable);
    }

    /// Takes the messages and events of both managers.
    fn collect(&mut self) {
        for (host, known) in self.hosts.iter_mut().zip(&mut self.known) {
            while let Some(it) = host.next_transmit() {
                if it.to != ADDRESSES[2] {
                    self.under_way.push(it);
                }
            }
            while let Some(event) = host.next_event() {
                if matches!(event, Event::ConnectRequest(_) | Event::DatagramRequest(_)) {
                    known.push(event.connection());
                }
            }
        }
    }

    fn check(&mut self) {
        self.collect();
        for host in &self.hosts {
            // Each step makes at most one connection, which is in six tables.
            assert!(host.remembered() <= 4 + 8 * MOST, "{}", host.remembered());
        }
    }

    /// The programs close everything, and no more messages arrive.
    fn end(&mut self) {
        for (host, known) in self.hosts.iter_mut().zip(&self.known) {
            // `known` includes requests that their peer has withdrawn, but that still wait in the backlog.
            for id in known {
                let _ = host.take_request(*id);
            }
            let all: Vec<ConnectionId> = host.connections().map(|(id, ..)| id).collect();
            for id in all {
                let closed = host.close(self.now, id);
                assert!(closed.is_ok(), "{closed:?}");
            }
            while let Some(deadline) = host.next_deadline() {
                host.advance(deadline);
                while host.next_transmit().is_some() {}
            }
            assert_eq!(host.connections().count(), 0);
            while host.next_transmit().is_some() || host.next_event().is_some() {}
            assert_eq!(host.remembered(), 2, "only the two listeners are left");
        }
    }
}

/// Decodes any bytes as one message. A message that is accepted is the same after it is encoded and decoded again.
pub fn message(bytes: &[u8]) {
    if let Ok(mad) = Mad::decode(bytes) {
        assert_eq!(
            Mad::decode(&mad.encode()),
            Ok(mad),
            "encoding and decoding changes a message"
        );
    }
}

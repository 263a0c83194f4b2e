//! Many connections to other hosts: what each costs in memory, and what a message costs when there are many.
//!
//! `cargo bench -p rkey-engine --bench connections`; with two numbers, only for so many connections and peers. A server and all its peers run in one thread, under a virtual clock and
//! without sockets. Each message is a write of 8 bytes: one packet, and one that acknowledges it. The times are the best of
//! several rounds, for both sides together, from the post to the polled completion.

use rkey_base::memory::ProcessMemory;
use rkey_base::range::VaRange;
use rkey_core::{Access, LKey, Limits, Protection, RKey, RegionSpec, Secrets};
use rkey_engine::*;
use rkey_link::NodeId;
use rkey_link::loopback::Loopback;
use rkey_roce::packet::Packet;
use rkey_roce::transport::PacketBuffer;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

const MEMORY: usize = 4096;
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const FIRST_QPN: u32 = 0x100;
/// Messages in one timed round, if the round does not use every connection.
const MESSAGES: usize = 2000;
const ROUNDS: usize = 15;

/// The server, or all its peers.
struct Side {
    engine: Engine<Loopback, ProcessMemory>,
    cq: Arc<CqShared>,
    qps: Vec<QpId>,
    key: LKey,
    target: Target,
    base: u64,
    _memory: Vec<u8>,
}

impl Side {
    fn new(pid: u32, connections: usize) -> Self {
        let mut bytes = vec![0u8; 2 * MEMORY];
        let base = (bytes.as_mut_ptr() as u64).next_multiple_of(64);
        // UNSAFETY: names this process's memory by address, as programs do.
        #[allow(unsafe_code)]
        // SAFETY: the region lies inside `bytes`, which lives as long as the engine in `Side`.
        let memory = unsafe { ProcessMemory::new() };
        let protection = Arc::new(Protection::new(Limits::default(), Secrets([1, 2, 3, 4])));
        let domain = protection.create_domain().expect("the first");
        let range = [VaRange::new(base, MEMORY as u64).expect("small")];
        let region = protection
            .register(&RegionSpec::new(domain, &range, Access::all()))
            .expect("room");
        let config = EngineConfig {
            node: NodeId { pid, nonce: 1 },
            ..EngineConfig::default()
        };
        let section = protection.section().expect("the first");
        let mut engine = Engine::new(config, section, memory);
        let cq = engine.create_cq(connections.max(16) as u32).expect("room");
        let options = QpConfig {
            max_send: 16,
            max_recv: 16,
            signal_all: true,
            ..QpConfig::new(domain, &cq.id())
        };
        let qps = (0..connections as u32)
            .map(|n| engine.create_qp(&options, FIRST_QPN + n).expect("room"))
            .collect();
        let target = Target {
            addr: base,
            key: RKey::Device(region.key),
        };
        Self {
            engine,
            cq,
            qps,
            key: region.local_key,
            target,
            base,
            _memory: bytes,
        }
    }

    /// Connects each queue pair with the one that has the same number on the other side.
    fn connect(&mut self, path: impl Fn(usize) -> WirePeer) {
        for (n, qp) in self.qps.iter().enumerate() {
            let peer = Peer {
                qpn: FIRST_QPN + n as u32,
                node: None,
            };
            let rtr = QpAttributes {
                wire: Some(path(n)),
                ..QpAttributes::rtr(peer, 7)
            };
            for step in [
                QpAttributes::init(Access::REMOTE),
                rtr,
                QpAttributes::rts(7),
            ] {
                self.engine.modify_qp(*qp, &step).expect("in order");
            }
        }
    }
}

/// The server's path to the peer of a connection.
fn path_to_peer(connection: usize, peers: usize) -> WirePeer {
    let [.., high, low] = ((connection % peers) as u32).to_be_bytes();
    WirePeer {
        local: SERVER,
        remote: Ipv4Addr::new(10, high, low, 1).into(),
    }
}

fn reversed(path: WirePeer) -> WirePeer {
    WirePeer {
        local: path.remote,
        remote: path.local,
    }
}

struct World {
    server: Side,
    peers: Side,
    now: u64,
    place: Box<PacketBuffer>,
}

impl World {
    fn new(connections: usize, peers: usize) -> Self {
        let mut world = Self {
            server: Side::new(1, connections),
            peers: Side::new(2, connections),
            now: 1,
            place: Box::new([0; _]),
        };
        world.server.connect(|n| path_to_peer(n, peers));
        world.peers.connect(|n| reversed(path_to_peer(n, peers)));
        world
    }

    fn post(&mut self, connection: usize) {
        let remote = self.server.target;
        let sges = [Sge {
            addr: self.peers.base,
            len: 8,
            key: self.peers.key,
        }];
        let request = SendRequest::new(0, Work::Write { remote, imm: None }, &sges);
        let qp = self.peers.qps[connection];
        self.peers.engine.post_send(qp, &request).expect("room");
    }

    /// Passes the packets of one side to the other.
    fn pass(now: u64, place: &mut PacketBuffer, from: &mut Side, to: &mut Side) {
        from.engine.drive(now, 64);
        while let Some((path, length)) = from.engine.wire_transmit(now, place) {
            let packet = Packet::decode(&place[..length]).expect("whole");
            to.engine.wire_receive(now, reversed(path), &packet, false);
        }
    }

    /// Runs until this many requests have completed.
    fn complete(&mut self, mut requests: usize) {
        let mut all = [Completion::default(); 64];
        while requests > 0 {
            self.now += 1000;
            Self::pass(self.now, &mut self.place, &mut self.peers, &mut self.server);
            Self::pass(self.now, &mut self.place, &mut self.server, &mut self.peers);
            while let taken @ 1.. = self.peers.cq.pop(&mut all) {
                assert!(all[..taken].iter().all(|it| it.status.is_success()));
                requests -= taken;
            }
        }
    }

    /// Nanoseconds for each message: one after the other, each over another connection.
    fn one_at_a_time(&mut self) -> f64 {
        let connections = self.peers.qps.len();
        best(MESSAGES, || {
            for n in 0..MESSAGES {
                // 7919 is prime, so that the connections come in no useful order.
                self.post(n * 7919 % connections);
                self.complete(1);
            }
        })
    }

    /// Nanoseconds for each message: over all connections at once.
    fn all_at_once(&mut self) -> f64 {
        let connections = self.peers.qps.len();
        best(connections, || {
            for connection in 0..connections {
                self.post(connection);
            }
            self.complete(connections);
        })
    }
}

fn best(messages: usize, mut round: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_nanos() as f64 / messages as f64
    });
    times.fold(f64::MAX, f64::min)
}

/// The memory of this process, in bytes.
fn resident() -> usize {
    rkey_base::process::resident().expect("proc is mounted") as usize
}

fn measure(connections: usize, peers: usize) {
    let before = resident();
    let mut world = World::new(connections, peers);
    let [single, together] = [world.one_at_a_time(), world.all_at_once()];
    let memory = resident().saturating_sub(before) / 2 / connections;
    let memory = match connections {
        1000.. => format!("{memory} B"),
        _ => "-".into(),
    };
    println!("{connections:>11} {peers:>6} {single:>11.0} ns {together:>10.0} ns {memory:>23}");
}

fn main() -> std::io::Result<()> {
    let words: Vec<usize> = std::env::args().filter_map(|it| it.parse().ok()).collect();
    if let [connections, peers] = words[..] {
        measure(connections, peers);
        return Ok(());
    }
    println!("connections  peers  one at a time   all at once  memory of a connection");
    for (connections, peers) in [
        (1, 1),
        (10, 10),
        (100, 100),
        (1000, 1000),
        (10_000, 1),
        (10_000, 1000),
    ] {
        // In a process of its own, so that it uses no memory that another one has freed.
        let status = std::process::Command::new(std::env::current_exe()?)
            .args([connections, peers].map(|it| it.to_string()))
            .status()?;
        assert!(status.success(), "{status}");
    }
    Ok(())
}

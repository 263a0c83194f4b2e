//! The cost of the engine itself: requester and responder in one thread, over the loopback link.
//!
//! `cargo bench -p rkey-engine [FILTER]`. Each line shows the best of many short runs, in nanoseconds per operation,
//! from the post to the polled completion, for both sides together, and the part that the post takes.

use rkey_base::memory::ProcessMemory;
use rkey_core::{Access, Limits, Protection, RKey, RegionSpec, Secrets};
use rkey_engine::*;
use rkey_link::NodeId;
use rkey_link::loopback::Loopback;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct World {
    engine: Engine<Loopback, ProcessMemory>,
    cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    qps: [QpId; 2],
    key: rkey_core::LKey,
    target: Target,
    base: u64,
    _memory: Vec<u8>,
}

fn world() -> World {
    let node = NodeId { pid: 1, nonce: 9 };
    let mut bytes = vec![0u8; 1 << 20];
    let base = (bytes.as_mut_ptr() as u64 + 63) & !63;
    // UNSAFETY: names this process's memory by address, as programs do.
    #[allow(unsafe_code)]
    // SAFETY: every region lies inside `bytes`, which lives as long as the engine in `World`.
    let memory = unsafe { ProcessMemory::new() };
    let protection = Arc::new(Protection::new(Limits::default(), Secrets([1, 2, 3, 4])));
    let domain = protection.create_domain().expect("the first");
    let range = [rkey_base::range::VaRange::new(base, (1 << 20) - 64).expect("small")];
    let region = protection
        .register(&RegionSpec::new(domain, &range, Access::all()))
        .expect("room");
    let mut engine = Engine::new(
        EngineConfig {
            node,
            ..EngineConfig::default()
        },
        protection.section().expect("the first"),
        memory,
    );
    let link = engine.attach(Loopback::new(node));
    let cq = engine.create_cq(1024).expect("room");
    let recv_cq = engine.create_cq(1024).expect("room");
    let mut config = QpConfig::new(domain, &cq.id());
    config.recv_cq = recv_cq.id();
    let qps = [256, 257].map(|qpn| engine.create_qp(&config, qpn).expect("room"));
    for (at, qp) in qps.into_iter().enumerate() {
        let peer = Peer {
            qpn: 257 - at as u32,
            node: Some(node),
        };
        for step in [
            QpAttributes::init(Access::REMOTE),
            QpAttributes::rtr(peer, 0),
            QpAttributes::rts(0),
        ] {
            engine.modify_qp(qp, &step).expect("in order");
        }
        engine.connect_qp(qp, link).expect("connected");
    }
    let target = Target {
        addr: base + (1 << 19),
        key: RKey::Device(region.key),
    };
    World {
        engine,
        cq,
        recv_cq,
        qps,
        key: region.local_key,
        target,
        base,
        _memory: bytes,
    }
}

const BATCH: u64 = 64;

fn measure(name: &str, mut round: impl FnMut(&mut World, u64)) {
    if let Some(filter) = std::env::args().skip(1).find(|arg| !arg.starts_with('-'))
        && !name.contains(&filter)
    {
        return;
    }
    let mut world = world();
    let mut all = [Completion::default(); 128];
    let (mut best, mut best_posts) = (f64::MAX, f64::MAX);
    let mut now = 0;
    for _ in 0..2000 {
        let start = Instant::now();
        let mut posts = Duration::ZERO;
        for _ in 0..8 {
            let before = Instant::now();
            for id in 0..BATCH {
                round(&mut world, id);
            }
            posts += before.elapsed();
            let mut got = 0;
            while got < BATCH as usize {
                now += 1;
                world.engine.drive(now, 256);
                got += world.cq.pop(&mut all);
                while world.recv_cq.pop(&mut all) > 0 {}
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (8 * BATCH) as f64);
        best_posts = best_posts.min(posts.as_nanos() as f64 / (8 * BATCH) as f64);
    }
    println!("{name:<28} {best:7.1} ns, including {best_posts:5.1} ns for posting");
}

fn main() {
    measure("write 8 B inline", |world, id| {
        let mut request = SendRequest::new(
            id,
            Work::Write {
                remote: world.target,
                imm: None,
            },
            &[],
        );
        request.inline = Some(&[7; 8]);
        world
            .engine
            .post_send(world.qps[0], &request)
            .expect("room");
    });
    measure("write 8 B", |world, id| {
        let sge = [Sge {
            addr: world.base,
            len: 8,
            key: world.key,
        }];
        let request = SendRequest::new(
            id,
            Work::Write {
                remote: world.target,
                imm: None,
            },
            &sge,
        );
        world
            .engine
            .post_send(world.qps[0], &request)
            .expect("room");
    });
    measure("write 192 B", |world, id| {
        let sge = [Sge {
            addr: world.base,
            len: 192,
            key: world.key,
        }];
        let request = SendRequest::new(
            id,
            Work::Write {
                remote: world.target,
                imm: None,
            },
            &sge,
        );
        world
            .engine
            .post_send(world.qps[0], &request)
            .expect("room");
    });
    measure("send 8 B inline", |world, id| {
        let room = [Sge {
            addr: world.base + 4096,
            len: 8,
            key: world.key,
        }];
        world
            .engine
            .post_recv(world.qps[1], &RecvRequest { id, sges: &room })
            .expect("room");
        let mut request = SendRequest::new(
            id,
            Work::Send {
                imm: None,
                invalidate: None,
            },
            &[],
        );
        request.inline = Some(&[7; 8]);
        world
            .engine
            .post_send(world.qps[0], &request)
            .expect("room");
    });
    measure("read 8 B", |world, id| {
        let sge = [Sge {
            addr: world.base,
            len: 8,
            key: world.key,
        }];
        let request = SendRequest::new(
            id,
            Work::Read {
                remote: world.target,
            },
            &sge,
        );
        world
            .engine
            .post_send(world.qps[0], &request)
            .expect("room");
    });
    measure("fetch and add", |world, id| {
        let sge = [Sge {
            addr: world.base,
            len: 8,
            key: world.key,
        }];
        let request = SendRequest::new(
            id,
            Work::FetchAdd {
                remote: world.target,
                add: 1,
            },
            &sge,
        );
        world
            .engine
            .post_send(world.qps[0], &request)
            .expect("room");
    });
}
